"""The privacy statement: what is guaranteed to whom, without overstatement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqsgd.numerics.epsilon_sums import four_digits
from sqsgd.report.groups import Group, StatedNotion
from sqsgd.report.text import counted, number, percent
from sqsgd.training.reading import Central

LARGE = 10.0
"""An ε above this does not by itself hide whether a record was used."""

MEANINGS: dict[StatedNotion, tuple[str, str]] = {
    "local": (
        "Local differential privacy",
        "The client adds the noise itself, before anything leaves it. The guarantee holds against everyone "
        "who sees a report, including the server, and requires no trusted party.",
    ),
    "per-weight": (
        "Local privacy of each weight",
        "The client adds the noise itself, but ε covers a single weight of the report. A whole report spends "
        "that ε for every weight in it, so this ε is not comparable to that of a whole report.",
    ),
    "central": (
        "Central differential privacy",
        "The guarantee holds for the published sum of all reports, not for a single report. It requires a "
        "trusted aggregator: it does not protect against anyone who sees single reports. Such an ε is not "
        "comparable to a local one.",
    ),
    "none": (
        "No privacy",
        "These schemes have no privacy guarantee. Their reports are gradients, in full or compressed, and "
        "training data can be reconstructed from them. They serve as baselines.",
    ),
    "unknown": (
        "Unknown guarantee",
        "The meaning of its ε is unknown: the run did not record an ε and a notion of privacy that this "
        "version knows.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The guarantee of one or more groups."""

    notion: StatedNotion
    epsilon: float
    total: float
    delta: float
    reports: int
    all_rounds: bool
    secure: bool
    state: str
    once: bool = False
    """No client sends two reports."""
    central: Central | None = None
    """What holds besides for whoever sees only the models, if each client sends one report."""
    federation: bool = False
    evaluations: float = 0.0
    """The part of the total that was spent on evaluations on the clients' data."""

    @property
    def sentences(self) -> list[str]:
        """The statement, sentence by sentence."""
        if not self.reports:
            return ["No round was completed: nothing was sent and nothing was spent.", *self._noise()]
        if self.notion in ("none", "unknown"):
            return [MEANINGS[self.notion][1]]
        return [self._each(), self._total(), *self._warning(), *self._central(), *self._noise()]

    @property
    def short(self) -> str:
        """The notion and its numbers on one line."""
        name = MEANINGS[self.notion][0]
        if self.notion in ("none", "unknown") or not self.reports:
            return name
        so_far = " so far" if self.state == "unfinished" else ""
        nbsp = "\N{NO-BREAK SPACE}"
        central = f"; central ε{nbsp}{four_digits(self.central.epsilon)}" if self.central else ""
        return f"{name}, ε {number(self.epsilon)} per report, {number(self.total)} in total{so_far}{central}"

    def _each(self) -> str:
        if self.notion == "central":
            delta = f"δ = {_small(self.delta)}" if self.delta else "a δ that the run did not record"
            return (
                f"The sum of a round is (ε, δ)-differentially private with ε = {number(self.epsilon)} and "
                f"{delta}, provided that the aggregator is trusted: it sees every report and must reveal "
                "only the sum."
            )
        per_weight = self.notion == "per-weight"
        return (
            f"Each {'weight of a report' if per_weight else 'report'} is ε-locally differentially private "
            f"with ε = {number(self.epsilon)}: for any data of a client, "
            f"{'what it sends for one weight' if per_weight else 'a report'} is at most "
            f"{_factor(self.epsilon)} times as likely as with any other data. {_guess(self.epsilon)}"
        )

    def _total(self) -> str:
        if self.once and self.notion == "local":
            return (
                f"Each client sends at most one report, so {number(self.total)} is the total that a client "
                "spends, however many rounds there are."
            )
        who = (
            f"A client that took part in all {counted(self.reports, 'round')}"
            if self.all_rounds
            else f"The client that took part most often sent {counted(self.reports, 'report')}. It"
        )
        verb = {"unfinished": "has so far spent", "damaged": "spent at least"}.get(self.state, "spent")
        more = f" + {number(self.evaluations)} for evaluations on its data" if self.evaluations else ""
        amount = f"{number(self.reports)} × {number(self.epsilon)}{more} = {number(self.total)}"
        whole = {"per-weight": " for each weight", "central": " of ε"}.get(self.notion, "")
        deltas = " So do the δ of the rounds." if self.notion == "central" else ""
        return (
            f"{who} {verb} {amount}{whole} in total: the ε of its reports add up (basic composition).{deltas}"
        )

    def _warning(self) -> list[str]:
        if self.epsilon > LARGE:
            weak = "An ε this large is a weak guarantee by itself. It does not hide whether a record was used"
            limit = ", but limits how well the direction of a gradient can be inferred from one report"
            return [weak + (limit if self.notion == "local" else "") + "."]
        if self.total > LARGE:
            return [
                "The ε of one report is small, but the total is a weak guarantee by itself for a client that "
                "took part this often."
            ]
        return []

    def _central(self) -> list[str]:
        """Who is protected better, under which assumption, and what that does not cover."""
        if self.central is None:
            return []
        found = self.central
        within = found.order == "round"
        users = f"{found.users:,} clients{' of a round' * within}"
        known = " Only the order within rounds counts: who was in which round may be known." * within
        chance = percent((1 + found.delta) / (1 + math.exp(-found.epsilon)))
        shown = "times" if self.federation else "training loss and the times"
        return [
            "The models are also centrally (ε, δ)-differentially private with "
            f"ε = {four_digits(found.epsilon)} and δ = {_small(found.delta)}, for whoever sees only them, if "
            f"the operator keeps the order of the {users} and their reports to itself.{known} From the "
            f"models, such an attacker guesses right at most {chance} of the time.",
            "The central guarantee covers what is computed from the models, such as the accuracy. It does "
            f"not cover the {shown} that this page shows. It assumes that whether a client answers depends "
            "neither on its data nor on its slot, and that other clients do not reveal when they reported.",
        ]

    def _noise(self) -> list[str]:
        if self.notion == "none":
            return []
        if self.secure:
            return ["The noise was secure: it came from the operating system and cannot be reproduced."]
        return [
            "The noise was seeded: this was an experiment and protects nobody, because anyone who knows the "
            "seed can remove the noise. The numbers are what the same run would guarantee with secure noise"
            + (" and a secret order." if self.central else "."),
        ]


def promise(group: Group) -> Promise:
    """The guarantee of a group's runs, with the largest of their totals."""
    epsilon, total = group.last("epsilon"), group.last("epsilon_total")
    evaluations = group.last("epsilon_evaluations")
    evaluations = 0.0 if math.isnan(evaluations) else evaluations
    finite = math.isfinite(epsilon) and epsilon > 0 and math.isfinite(total)
    reports = (
        round((total - evaluations) / epsilon)
        if finite
        else max((run.rounds for run in group.counted), default=0)
    )
    return Promise(
        notion="unknown" if reports and math.isnan(epsilon) else group.notion,
        epsilon=epsilon,
        total=total,
        delta=group.summary.delta if group.summary else 0.0,
        reports=reports,
        all_rounds=reports == max((run.rounds for run in group.counted), default=0),
        secure=group.config.secure,
        state=group.counted[0].state if group.counted else "unfinished",
        once=group.config.participation == "once",
        central=_worst_central(group),
        federation=any(run.federation for run in group.counted),
        evaluations=evaluations,
    )


def _worst_central(group: Group) -> Central | None:
    """The weakest central guarantee of the group's finished runs; None if one of them has none."""
    if group.config.participation != "once" or any(run.state != "finished" for run in group.counted):
        return None
    found = [run.summary.central if run.summary else None for run in group.counted]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.epsilon) if known and len(known) == len(found) else None


def promises(groups: Sequence[Group]) -> list[tuple[Promise, list[int]]]:
    """Each distinct guarantee with the indices of its groups, the strongest notion first.

    Guarantees that are stated in the same words are one, even if they differ in what is not stated, such as
    the number of rounds of a baseline without privacy.
    """
    shared: dict[tuple[str, ...], tuple[Promise, list[int]]] = {}
    for series, group in enumerate(groups):
        made = promise(group)
        shared.setdefault((made.short, *made.sentences), (made, []))[1].append(series)
    order = list(MEANINGS)
    return sorted(shared.values(), key=lambda each: order.index(each[0].notion))


def _factor(epsilon: float) -> str:
    """e^ε as text."""
    if epsilon < 12:
        return number(math.exp(epsilon))
    return f"about {_power(round(epsilon / math.log(10)))}"


def _power(exponent: int) -> str:
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _small(delta: float) -> str:
    """A δ as text, such as 10⁻⁶ or 2.5 × 10⁻⁷."""
    mantissa, _, exponent = f"{delta:g}".partition("e")
    if not exponent:
        return mantissa
    return _power(int(exponent)) if mantissa == "1" else f"{mantissa} × {_power(int(exponent))}"


def _guess(epsilon: float) -> str:
    """The best guess between two equally likely inputs is right with probability at most 1 / (1 + e^-ε)."""
    chance = 1 / (1 + math.exp(-epsilon))
    if chance < 0.999:
        return (
            "An attacker who considers two possibilities equally likely guesses right from one report "
            f"at most {percent(chance)} of the time, compared to 50 % without it."
        )
    return (
        "By itself this ε does not prevent an attacker who considers two possibilities from guessing right "
        "nearly always."
    )
