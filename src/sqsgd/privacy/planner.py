"""The planner: the parameters for a budget, the predicted error, and warnings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqsgd._internal import checks
from sqsgd._internal.files import worded
from sqsgd.core import Mechanism, Scheme
from sqsgd.core.transforms import FEWEST, padded
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches
from sqsgd.privacy.reconstruction import MOST_ROUNDS, ReconstructionStatement, reconstruction_statements
from sqsgd.schemes import STATELESS, make_scheme
from sqsgd.schemes.privunit import sphere_cap
from sqsgd.schemes.sqsgd import Code, Direction, code_of, sqsgd_stateless

_FAINT, _FEW = 0.025, 40.0
_FAINT_SOFTMAX, _FEW_SOFTMAX = 0.005, 20.0
_UNSTABLE = 100.0
_READABLE = 1e6  # larger multiples of the optimum are meaningless: it is next to zero, and so is the error
CLOSE = 1.03  # errors within this factor of the least count as equal: then the fewest bytes decide
ENOUGH, NEARLY = 200, 1.25  # reports of a client, and rounds between two, for which an average was measured


@dataclass(frozen=True, kw_only=True)
class Stateless:
    """A scheme that keeps nothing between rounds, and the relative error of its report for |x| = bound."""

    name: str
    nmse: float
    message_bytes: int
    arithmetic: Literal["exact", "real"]


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The scheme to take for a budget, as options of ``sqsgd train``, and why."""

    scheme: str
    options: str
    message_bytes: int
    optimum_ratio: float  # its error over PrivUnit's at the same ε, the best possible
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parameters of ``sqsgd-stateless`` for a given budget, and the errors for vectors with |x| = bound.

    When using sparse codes, ``count`` (t) coordinates are drawn. With probability ``keep``, at least
    ``threshold`` (τ) of them are among the ``near`` (s) largest coordinates. There are three ``levels``,
    since a coordinate can be positive, negative or not drawn. For signs and levels, all coordinates are
    encoded.

    Guarantees
    ----------
    * ``epsilon`` is the exact cost of a report, never above the requested one, and the parameters are those
      that training uses: tests/privacy/test_planner.py::test_the_plan_is_what_training_uses.
    * Predicted errors agree with measured ones:
      tests/privacy/test_planner.py::test_predictions_hold_for_the_mean_over_clients.
    """

    dim: int
    clients: int
    rounds: int
    code: Code
    levels: int
    coordinates: int
    near: int
    count: int
    reach: float
    threshold: int
    keep: float
    scale: float
    epsilon: float
    epsilon_direction: float
    epsilon_norm: float
    bits: int
    message_bytes: int
    nmse: float
    """The error of a single report for the entire vector."""
    nmse_mean: float
    """The error of the mean over the reports of all clients in a round."""
    nmse_block: float
    """The error of a single report for the coordinates included in the report."""
    optimum: float
    """The optimal error, given by PrivUnit at the same ε with a known norm and 32 bits per coordinate."""
    optimum_ratio: float
    stateless: tuple[Stateless, ...]
    """Stateless schemes for encoding the entire vector in a single report, sorted by their error."""
    recommendation: Recommendation | None
    """The scheme selected by ``scheme = "auto"``, or None if only schemes in real arithmetic are suitable."""
    reconstruction: tuple[ReconstructionStatement, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary which can be serialized to JSON, using a string for infinity."""
        values = asdict(self, dict_factory=lambda pairs: {name: worded(value) for name, value in pairs})
        return {**values, "reconstruction": [statement.to_dict() for statement in self.reconstruction]}


def plan(
    *,
    dim: int,
    epsilon: float,
    bytes: int,
    clients: int = 1,
    rounds: int = 1,
    probability: float = 1e-6,
    prior: float = 0.0,
) -> Plan:
    """Find the best parameters for a budget and predict the error of the mean over clients.

    Reports are unbiased with independent noise, so the same parameters are best for any number of clients.

    Args:
        dim: The number of weights.
        epsilon: The privacy budget of a report.
        bytes: The budget for the packed codes of a report.
        clients: Reports per round.
        rounds: Number of rounds in which a client takes part.
        probability: The failure probability of the bounds on reconstruction.
        prior: The prior knowledge of the attacker as a log density ratio (ρ₀).

    Returns:
        The parameters of ``sqsgd-stateless``, its errors, other schemes, a recommendation, and warnings.

    Raises:
        ValueError: If an argument is out of range, or ``bytes`` cannot hold a report.

    >>> chosen = plan(dim=119850, epsilon=400.0, bytes=256, clients=10)
    >>> chosen.code, chosen.near, chosen.count, round(chosen.nmse), round(chosen.optimum_ratio, 2)
    ('sparse', 184, 53, 188, 1.23)
    """
    clients = checks.integer("clients", clients, 1, 2**40)
    rounds = checks.integer("rounds", rounds, 1, MOST_ROUNDS)
    scheme = sqsgd_stateless(dim, epsilon, bytes)
    block, size = scheme.mechanism.relative_error(1.0), scheme.mechanism.dim
    nmse = at_the_bound(scheme)
    optimum = sphere_cap(dim, epsilon).error
    statements = reconstruction_statements(epsilon, min(size, dim), dim, rounds, probability, prior)
    ways = stateless_choices(dim=dim, epsilon=epsilon, bytes=bytes)
    forecast = outlook(scheme, clients * rounds)
    return Plan(
        dim=dim,
        clients=clients,
        rounds=rounds,
        coordinates=size,
        **_parameters(scheme.mechanism),
        epsilon=scheme.privacy.epsilon,
        bits=scheme.code_bits,
        message_bytes=scheme.bits // 8,
        nmse=nmse,
        nmse_mean=nmse / clients,
        nmse_block=block,
        optimum=optimum,
        optimum_ratio=ratio(nmse, optimum),
        stateless=tuple(ways),
        recommendation=recommended(ways, optimum, dim=dim, epsilon=epsilon, bytes=bytes, visits=rounds),
        reconstruction=statements,
        warnings=(
            *([forecast] if forecast else []),
            *_warnings(scheme.mechanism, epsilon, statements),
            *_few_numbers(ways[0], dim, epsilon, bytes),
        ),
    )


def _parameters(mechanism: Mechanism) -> dict[str, Any]:
    if isinstance(mechanism, SparseMatches):
        law: SparseLaw | PrivQuant = mechanism.law
        near, count = mechanism.law.near, mechanism.law.count
        levels, reach, scale = 3, 0.0, mechanism.scale
    elif isinstance(mechanism, Direction):
        law = mechanism.quantizer
        near = count = mechanism.dim
        levels, reach, scale = mechanism.quantizer.levels, mechanism.reach, mechanism.quantizer.scale
    else:
        raise TypeError(f"{mechanism.identity} is not a mechanism of sqsgd-stateless")
    return {
        "code": code_of(mechanism),
        "levels": levels,
        "near": near,
        "count": count,
        "reach": reach,
        "scale": scale,
        "threshold": law.threshold,
        "keep": law.keep,
        "epsilon_direction": law.epsilon,
        "epsilon_norm": mechanism.norm.epsilon if mechanism.norm else 0.0,
    }


def stateless_choices(*, dim: int, epsilon: float, bytes: int) -> list[Stateless]:
    """Return the schemes of ``STATELESS`` under a budget: those with exact arithmetic, the best first, then
    others.

    The best has the fewest bytes of those within 3 % of the least error.
    """
    found = []
    for name in STATELESS:
        try:
            scheme = make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes)
        except ValueError:  # it does not fit into the bytes
            continue
        size, arithmetic = scheme.bits // 8, scheme.privacy.arithmetic
        found.append(Stateless(name=name, nmse=scheme.nmse, message_bytes=size, arithmetic=arithmetic))
    if not found:
        raise ValueError(f"bytes = {bytes} cannot hold a report of {dim} numbers at epsilon = {epsilon:g}")
    least = {way.arithmetic: way.nmse for way in sorted(found, key=lambda way: -way.nmse)}

    def order(way: Stateless) -> tuple[bool, bool, float]:
        close = way.nmse <= CLOSE * least[way.arithmetic]
        return way.arithmetic == "real", not close, way.message_bytes if close else way.nmse

    return sorted(found, key=order)


def automatic_scheme(
    *,
    dim: int,
    epsilon: float,
    bytes: int,
    visits: float = 1,
    apart: float = 1,
    options: Mapping[str, Any] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return the name and the options that ``scheme = "auto"`` stands for.

    If each client reports in nearly every round, this is ``sqsgd`` with a running ``average``, which removes
    noise of the client's batches at the cost of a report's length. An average over rounds that are far apart,
    or a residual, is about old models, and where clients differ it loses more than it gains. Otherwise it is
    the best of ``stateless_choices`` with exact arithmetic or, with ``options``, ``sqsgd-stateless``, which
    also takes them.

    Args:
        dim: The number of weights.
        epsilon: The privacy budget of a report.
        bytes: The budget for its packed codes.
        visits: Reports of a client in the whole training.
        apart: Rounds from one report of a client to its next.
        options: Options that are given.

    tests/privacy/test_planner.py::test_auto_never_chooses_real_arithmetic,
    tests/training/test_choice.py::test_an_average_is_kept_only_while_it_is_new.
    """
    share, given = average_for(visits, apart), dict(options or {})
    if share and _fits("sqsgd-stateless", dim, epsilon, bytes):
        return "sqsgd", {"average": share, **given}
    if given:
        return "sqsgd-stateless", given
    best = stateless_choices(dim=dim, epsilon=epsilon, bytes=bytes)[0]
    if best.arithmetic == "real":
        raise ValueError(
            f"bytes = {bytes} hold no report with exact arithmetic of {dim} numbers at epsilon {epsilon:g}; "
            f"{best.name!r} must be asked for by name"
        )
    return best.name, given


def average_for(visits: float, apart: float = 1.0) -> float:
    """Return the share of the past in a client's average, over ten rounds; 0: none, where rounds are few or
    apart.

    >>> average_for(200), average_for(100), average_for(600, apart=10)
    (0.9, 0.0, 0.0)
    """
    return 0.9 if visits >= ENOUGH and apart <= NEARLY else 0.0


def _fits(name: str, dim: int, epsilon: float, bytes: int) -> bool:
    try:
        make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes)
    except ValueError:
        return False
    return True


def recommended(
    ways: Sequence[Stateless], optimum: float, *, dim: int, epsilon: float, bytes: int, visits: float = 1
) -> Recommendation | None:
    """What ``automatic_scheme`` takes for reports in every round, and why; the errors and bytes of others."""
    share, budget = average_for(visits), f"--epsilon {epsilon:g} --bytes {bytes}"
    if share and _fits("sqsgd-stateless", dim, epsilon, bytes):
        scheme = make_scheme("sqsgd", dim=dim, epsilon=epsilon, bytes=bytes, average=share)
        return Recommendation(
            scheme="sqsgd",
            options=f"--scheme sqsgd --option average={share:g} {budget}",
            message_bytes=scheme.bits // 8,
            optimum_ratio=ratio(scheme.nmse, optimum),
            reason=f"each client reports {visits:.0f} times, so it sends the average of its last "
            f"{1 / (1 - share):.0f} gradients, which has less noise than one",
        )
    best, *others = ways
    if best.arithmetic == "real":
        return None
    relative = optimum > 0 and best.nmse < _READABLE * optimum
    unit, measure = (optimum, " times the optimum") if relative else (1.0, "")
    described = [
        f"{way.name}{' (real arithmetic only)' if way.arithmetic == 'real' else ''} {way.nmse / unit:.3g} in "
        f"{way.message_bytes:,}"
        for way in others
    ]
    reason = f"error {best.nmse / unit:.3g}{measure} in {best.message_bytes:,} bytes"
    return Recommendation(
        scheme=best.name,
        options=f"--scheme {best.name} {budget}",
        message_bytes=best.message_bytes,
        optimum_ratio=ratio(best.nmse, optimum),
        reason=f"{reason}; {', '.join(described)}" if others else reason,
    )


def at_the_bound(scheme: Scheme) -> float:
    """Return the error of a vector as long as the bound: less than without, as its norm is clamped.

    The norm of n of D rotated coordinates, rescaled, is about 1 + σ Z with σ² = (1 - n/D) / 2n. Half of the
    time it is clamped, which leaves 1 - σ √(2/π) of the error. Reports of one length stay as they are.
    """
    if scheme.mechanism.traits.fixed_length:
        return scheme.nmse
    size = scheme.mechanism.dim
    deviation = math.sqrt(max(0.0, 1 - size / padded(scheme.dim)) / (2 * size))
    return scheme.nmse * (1 - deviation * math.sqrt(2 / math.pi))


def ratio(error: float, least: float) -> float:
    """error / least; infinite where ``least`` underflows to zero."""
    return error / least if least > 0 else math.inf


def _warnings(
    mechanism: Mechanism, epsilon: float, statements: tuple[ReconstructionStatement, ...]
) -> list[str]:
    found, size = [], mechanism.dim
    if isinstance(mechanism, SparseMatches):
        law = mechanism.law
        if law.keep > 0.99 and law.near == law.count == law.threshold:
            found.append(
                f"epsilon = {epsilon:g} sends the {law.near:,} largest of {size:,} coordinates nearly in "
                "the clear. Use more bytes or a smaller epsilon."
            )
    elif isinstance(mechanism, Direction):
        quantizer, enough = mechanism.quantizer, 4 * epsilon / math.log(2)
        if quantizer.law.loss < 0.01:
            found.append(
                f"epsilon = {epsilon:g} saturates {quantizer.levels} levels of {size} coordinates: the "
                "codes are sent nearly in the clear. Send more coordinates or use a smaller epsilon."
            )
        if mechanism.layout[0].bits > enough:
            found.append(
                f"bytes beyond about {math.ceil(enough / 8):,} (epsilon / (2 ln 2)) improve the error by "
                "less than 10 %."
            )
    found += [statement.sentence for statement in statements if statement.vacuous]
    if epsilon > 10:
        found.append(
            f"epsilon = {epsilon:g} per report does not hide whether a record was used (membership "
            "inference); it limits reconstruction."
        )
    return found


def _few_numbers(best: Stateless, dim: int, epsilon: float, bytes: int) -> list[str]:
    """A sentence where ``piecewise`` is far better; browsers cannot encode it, so ``auto`` skips it."""
    if dim >= FEWEST:
        return []
    scheme = make_scheme("piecewise", dim=dim, epsilon=epsilon, bytes=bytes)
    if scheme.nmse > best.nmse / 2:
        return []
    return [
        f"--scheme piecewise has an error of {scheme.nmse:.3g} instead of {best.nmse:.3g} here: for so few "
        "numbers it is better, but it must be asked for by name and is not for browsers."
    ]


def least_reports(scheme: Scheme, bound: float, *, softmax: bool = False) -> float:
    """Reports before which little or nothing is learned, at any rate.

    The mean of N reports about a weight has the error NMSE / N of a gradient as long as the bound. Noise
    under a fixed bound spreads over all d weights, so the error over d counts, or with few weights the error
    itself; noise relative to the gradient grows with it, for any d. The thresholds were measured on digits:
    tests/training/test_runs.py::test_what_cannot_be_learned_is_told_before.
    """
    error, mechanism = scheme.nmse, scheme.mechanism
    if mechanism.traits.chooses:
        error = mechanism.unbiased_error(1.0)
    elif mechanism.traits.bounds_coordinates and not scheme.follows_norms:  # in units of the bound
        error *= (bound * mechanism.longest) ** 2
    elif scheme.sends_block:
        error *= scheme.dim / mechanism.dim
    if scheme.follows_norms:
        return error / _UNSTABLE
    share, few = (_FAINT_SOFTMAX, _FEW_SOFTMAX) if softmax else (_FAINT, _FEW)
    return error / max(share * scheme.dim, few)


def outlook(scheme: Scheme, reports: int, bound: float = 0.0, *, softmax: bool = False) -> str:
    """One sentence if little or nothing is predicted to be learned from so many reports; else empty.

    ``softmax``: by a softmax on features, to which each user reports once.
    """
    needed = least_reports(scheme, bound or scheme.first_bound, softmax=softmax)
    if not needed > reports:
        return ""
    least = f"at least {math.ceil(needed):,} are needed" if needed < 1e15 else "no number of them helps"
    many = f"{reports:,} report{'s' if reports > 1 else ''}"
    return f"little or nothing will be learned from {many}: they are too noisy; {least}, or more epsilon"
