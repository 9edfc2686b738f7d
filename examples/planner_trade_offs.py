# %% [markdown]
# # What a budget buys
#
# The planner predicts, before anything is trained, how well a gradient is estimated for a given ε and a given
# number of bytes, and how far that is from the optimum. Nothing here is simulated: these are closed forms,
# which the tests compare with measurements (`tests/privacy/test_planner.py`). The model is LeNet-5 with
# 119,850 weights.
# %%
import matplotlib.pyplot as plt
import numpy as np

import sqsgd

DIM = 119850
# %% [markdown]
# ## Bytes: diminishing returns
#
# At a given ε, more bytes help until only the noise remains; beyond about 2 ε bits they gain nothing, and the
# planner does not use them. The dashed lines are the error of PrivUnit at that ε with 32 bits per coordinate:
# the optimum.
# %%
sizes = [2**power for power in range(4, 11)]
for epsilon, colour in ((100.0, "tab:blue"), (400.0, "tab:green"), (1600.0, "tab:red")):
    plans = [sqsgd.plan(dim=DIM, epsilon=epsilon, bytes=size) for size in sizes]
    plt.loglog(sizes, [plan.nmse for plan in plans], "o-", color=colour, label=f"ε = {epsilon:g}")
    plt.axhline(plans[0].optimum, color=colour, linestyle="--", linewidth=0.8)
    print(
        f"ε = {epsilon:5g}:",
        *(f" {size} bytes {plan.nmse:.0f}" for size, plan in zip(sizes, plans, strict=True)),
    )
plt.xlabel("bytes of codes in a report")
plt.ylabel("relative squared error of one report")
plt.legend()
plt.show()
# %% [markdown]
# ## Codes: which coordinates, signs or levels
#
# A sparse code names a few coordinates of the rotated gradient, each with its sign, in 91 of the 256 bytes.
# The same bytes can hold the signs of many coordinates, or more levels of fewer coordinates.
# %%
chosen = sqsgd.plan(dim=DIM, epsilon=400.0, bytes=256, clients=10)
print(f"{chosen.count} signed coordinates of {chosen.coordinates}: error {chosen.nmse:.0f}")
for levels in (2, 3, 4, 8, 16):
    other = sqsgd.make_scheme("sqsgd-stateless", dim=DIM, epsilon=400.0, bytes=256, levels=levels)
    print(f"{levels:2} levels of {other.mechanism.dim:5} coordinates: error {other.nmse:8.0f}")
# %% [markdown]
# ## Clients against ε
#
# The error of a round's mean falls with the number of clients. The same accuracy is reached with few clients
# at a large ε, or with many at a small one, which protects each of them far better.
# %%
target = chosen.nmse_mean
for epsilon in (2.0, 4.0, 8.0, 40.0, 400.0):
    one = sqsgd.plan(dim=DIM, epsilon=epsilon, bytes=256)
    print(f"ε = {epsilon:5g}: {int(np.ceil(one.nmse / target)):8,} clients for the same mean")
# %% [markdown]
# ## What stays hidden
#
# The largest cosine with a gradient's direction that an attacker can reach, except with a probability of one
# in a million, after this many reports about the same gradient. A cosine of 1 means no protection.
# %%
for reports in (1, 10, 100, 600):
    cosine = sqsgd.reconstruction_bound(400.0 * reports, DIM)
    angle = np.degrees(np.arccos(cosine))
    print(f"{reports:4} reports at ε = 400: cosine at most {cosine:.3f}, {angle:.0f} degrees")
