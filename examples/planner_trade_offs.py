# %% [markdown]
# # What a budget buys
#
# The planner answers before anything is trained: how much of a gradient arrives for a given ε and a given
# number of bytes, and how far that is from the best that is possible. Nothing here is simulated; these are
# the closed forms that the tests hold against measurements (`tests/test_planner.py`). The model is LeNet-5,
# 119,850 weights.
# %%
import matplotlib.pyplot as plt
import numpy as np

import sqsgd

DIM = 119850
# %% [markdown]
# ## Bytes: enough is enough
#
# At a given ε more bytes help until the noise is all that is left; beyond about 4 ε / ln 2 bits they buy
# next to nothing. The dashed lines are PrivUnit's error at that ε with 32 bits a coordinate: the best
# possible.
# %%
sizes = [2**power for power in range(7, 14)]
for epsilon, colour in ((100.0, "tab:blue"), (400.0, "tab:green"), (1600.0, "tab:red")):
    plans = [sqsgd.plan(dim=DIM, epsilon=epsilon, bits=bits) for bits in sizes]
    plt.loglog(sizes, [plan.nmse for plan in plans], "o-", color=colour, label=f"ε = {epsilon:g}")
    plt.axhline(plans[0].optimum, color=colour, linestyle="--", linewidth=0.8)
    print(
        f"ε = {epsilon:5g}:",
        *(f" {bits} bits {plan.nmse:.0f}" for bits, plan in zip(sizes, plans, strict=True)),
    )
plt.xlabel("bits of codes in a report")
plt.ylabel("relative squared error of one report")
plt.legend()
plt.show()
# %% [markdown]
# ## Levels: one bit a coordinate
#
# The same 2,048 bits as signs of many coordinates, or as more levels of fewer. The paper's choice is its 16
# levels.
# %%
chosen = sqsgd.plan(dim=DIM, epsilon=400.0, bits=2048, clients=10)
for other in (*chosen.alternatives, chosen.paper):
    print(f"{other.name:40} {other.coordinates:5} coordinates, error {other.nmse:8.0f}")
# %% [markdown]
# ## Clients against ε
#
# The error of a round's mean falls with the number of clients. So the same mean can be had from few clients
# with a large ε, or from many with a small one, which is worth far more to each of them.
# %%
target = chosen.nmse_mean
for epsilon in (2.0, 4.0, 8.0, 40.0, 400.0):
    one = sqsgd.plan(dim=DIM, epsilon=epsilon, bits=2048)
    print(f"ε = {epsilon:5g}: {int(np.ceil(one.nmse / target)):8,} clients for the same mean")
# %% [markdown]
# ## What stays hidden
#
# The largest cosine with a gradient's direction that an attacker can be sure of, but for a chance of one in
# a million, after so many reports about the same gradient. At 1 nothing is promised.
# %%
for reports in (1, 10, 100, 600):
    cosine = sqsgd.reconstruction_bound(400.0 * reports, DIM)
    angle = np.degrees(np.arccos(cosine))
    print(f"{reports:4} reports at ε = 400: cosine at most {cosine:.3f}, {angle:.0f} degrees")
