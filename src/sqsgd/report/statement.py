"""The privacy statement: what is guaranteed to whom, without overstatement."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqsgd._internal.exact import three_digits
from sqsgd.report.groups import Group, StatedNotion
from sqsgd.report.tables import counted, number, percent
from sqsgd.training.reading import Central

LARGE = 10.0
"""An ε above this does not by itself hide whether a record was used."""

MEANINGS: dict[StatedNotion, tuple[str, str]] = {
    "local": (
        "Local differential privacy",
        "The client adds the noise itself, before anything leaves it. The guarantee holds against everyone "
        "who sees a report, including the server, and requires no trusted party.",
    ),
    "record": (
        "Local differential privacy of each record",
        "The client adds the noise itself, before anything leaves it. The guarantee holds against everyone "
        "who sees its reports, including the server, and covers each record by itself: whether it is among "
        "the client's data. It does not hide what all records of a client have in common.",
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
class Statement:
    """What a group guarantees, on one line and in full. Equal statements are shown once."""

    notion: StatedNotion
    short: str
    sentences: tuple[str, ...]
    central: Central | None


def statement(group: Group) -> Statement:
    """Return the guarantee of a group's runs, with the largest of their totals."""
    epsilon, total = group.last("epsilon"), group.last("epsilon_total")
    rounds = max((run.rounds for run in group.counted), default=0)
    evaluations = group.last("epsilon_evaluations")
    evaluations = 0.0 if math.isnan(evaluations) else evaluations  # the part of the total spent on them
    finite = math.isfinite(epsilon) and epsilon > 0 and math.isfinite(total)
    adds_up = finite and group.notion != "record"
    reports = round((total - evaluations) / epsilon) if adds_up else rounds
    notion: StatedNotion = "unknown" if reports and math.isnan(epsilon) else group.notion
    central, short = _weakest_central(group), MEANINGS[notion][0]
    if not reports:
        sentences = ["No round was completed: nothing was sent and nothing was spent.", *_noise(group, None)]
    elif notion in ("none", "unknown"):
        sentences = [MEANINGS[notion][1]]
    else:
        so_far = " so far" if group.state == "unfinished" else ""
        short += f", ε {number(epsilon)} per report, {number(total)} in total{so_far}"
        short += f"; central ε\N{NO-BREAK SPACE}{three_digits(central.epsilon)}" if central else ""
        sentences = [_report(notion, epsilon, group.summary.delta if group.summary else 0.0)]
        if notion == "record":
            short = f"{MEANINGS[notion][0]}, ε {number(total)} in total{so_far}, δ {group.config.delta:g}"
            sentences = [_records(group, rounds, epsilon, total)]
        elif group.config.participation == "once" and notion == "local":
            row, each = group.config.is_table and not group.config.owner, group.config.reports
            sent = f"{counted(each, 'report')}, whose ε add up" if each > 1 else "one report"
            sentences.append(
                f"Each client sends at most {sent}, so {number(total)} is the total that a client "
                "spends, however many rounds there are."
                + (" A client is a row here, not an owner of several." if row else "")
            )
        else:
            who = (
                f"A client that took part in all {counted(reports, 'round')}"
                if reports == rounds
                else f"The client that took part most often sent {counted(reports, 'report')}. It"
            )
            verb = {"unfinished": "has so far spent", "damaged": "spent at least"}.get(group.state, "spent")
            more = f" + {number(evaluations)} for evaluations on its data" if evaluations else ""
            whole = " of ε" if notion == "central" else ""
            deltas = " So do the δ of the rounds." if notion == "central" else ""
            sentences.append(
                f"{who} {verb} {number(reports)} × {number(epsilon)}{more} = {number(total)}{whole} in "
                f"total: the ε of its reports add up (basic composition).{deltas}"
            )
        sentences += [*_warning(notion, epsilon, total), *_central(group, central), *_noise(group, central)]
    return Statement(notion=notion, short=short, sentences=tuple(sentences), central=central)


def _report(notion: StatedNotion, epsilon: float, delta: float) -> str:
    """What holds for one report, or for the sum of a round."""
    if notion == "central":
        known = f"δ = {delta:g}" if delta else "a δ that the run did not record"
        return (
            f"The sum of a round is (ε, δ)-differentially private with ε = {number(epsilon)} and {known}, "
            "provided that the aggregator is trusted: it sees every report and must reveal only the sum."
        )
    factor = number(math.exp(epsilon)) if epsilon < 12 else f"about 10^{epsilon / math.log(10):.0f}"
    chance = 1 / (1 + math.exp(-epsilon))  # of the best guess between two equally likely inputs
    guess = (
        "By itself this ε does not prevent an attacker who considers two possibilities from guessing right "
        "nearly always."
    )
    if chance < 0.999:
        guess = (
            "An attacker who considers two possibilities equally likely guesses right from one report at "
            f"most {percent(chance)} of the time, compared to 50 % without it."
        )
    return (
        f"Each report is ε-locally differentially private with ε = {number(epsilon)}: for any data of a "
        f"client, a report is at most {factor} times as likely as with any other data. {guess}"
    )


def _records(group: Group, rounds: int, epsilon: float, total: float) -> str:
    """What holds for one record in all rounds."""
    drawn = "in each round with the same chance, which only the client knows the outcome of"
    if group.config.batching == "disjoint":
        drawn = "once in every few rounds"
    return (
        f"All reports of a client in {counted(rounds, 'round')} are (ε, δ)-differentially private together "
        f"for each of its records, with ε = {number(total)} and δ = {group.config.delta:g}, between data "
        f"with and without that record. One round costs ε = {number(epsilon)}; all rounds cost less than the "
        f"sum of these, by the tight profile of Gaussian noise. A record is used {drawn}."
    )


def _warning(notion: StatedNotion, epsilon: float, total: float) -> list[str]:
    if epsilon > LARGE:
        weak = "An ε this large is a weak guarantee by itself. It does not hide whether a record was used"
        limit = ", but limits how well the direction of a gradient can be inferred from one report"
        return [weak + (limit if notion == "local" else "") + "."]
    if total > LARGE:
        return [
            "The ε of one report is small, but the total is a weak guarantee by itself for a client that "
            "took part this often."
        ]
    return []


def _central(group: Group, central: Central | None) -> list[str]:
    """Who is protected better, what that does not cover, and what it rests on."""
    if central is None:
        return []
    federation = any(run.federation for run in group.counted)
    return [
        f"The models are also centrally (ε, δ)-differentially private: {central.note}.",
        "The central guarantee covers what is computed from the models, such as the accuracy. It does not "
        f"cover the {'times' if federation else 'training loss and the times'} that this page shows. It "
        f"assumes that {'; that '.join(central.assumptions)}.",
    ]


def _noise(group: Group, central: Central | None) -> list[str]:
    if group.notion == "none":
        return []
    if group.config.secure:
        return ["The noise was secure: it came from the operating system and cannot be reproduced."]
    return [
        "The noise was seeded: this was an experiment and protects nobody, because anyone who knows the seed "
        "can remove the noise. The numbers are what the same run would guarantee with secure noise"
        + (" and a secret order." if central else "."),
    ]


def _weakest_central(group: Group) -> Central | None:
    """Return the weakest central guarantee of the group's finished runs, or None if one of them has none."""
    if group.config.participation != "once" or any(run.state != "finished" for run in group.counted):
        return None
    found = [run.summary.central if run.summary else None for run in group.counted]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.epsilon) if known and len(known) == len(found) else None


def statements(groups: Sequence[Group]) -> list[tuple[Statement, list[str]]]:
    """Return each distinct statement with the labels of its groups, the strongest notion first."""
    shared: dict[tuple[str, ...], tuple[Statement, list[str]]] = {}
    for group in groups:
        made = statement(group)
        shared.setdefault((made.short, *made.sentences), (made, []))[1].append(group.label)
    return sorted(shared.values(), key=lambda each: list(MEANINGS).index(each[0].notion))
