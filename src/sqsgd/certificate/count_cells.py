"""How many users hide the target: the binomial law of their number, gathered into a few cells."""

from __future__ import annotations

from flint import arb

_CELL = 100  # numbers that differ by one part in so many are treated as the least of them
_REST = 2.0**-6  # the share of the largest numbers that forms one cell


def count_cells(trials: int, share: arb, negligible: arb) -> tuple[arb, list[tuple[int, arb]]]:
    """Cells (m, P(m <= M < next m)) of M = 1 + Bin(trials, share), and a bound on P(M < first m).

    The last cell has no upper end. The bound is below ``negligible``; the m are evenly spaced.

    Guarantees
    ----------
    * The cells and the bound cover the law: tests/certificate/test_count_cells.py::test_cells_cover_the_law.
    """
    odds = share / (1 - share)
    peak = min(trials, int(float(trials * share)))
    down, below = [_chance(trials, share, peak)], arb(0)
    for successes in range(peak, 0, -1):
        # P(successes - 1) / P(successes), which falls with the number of successes.
        ratio = successes / ((trials - successes + 1) * odds)
        if ratio < 1 and down[-1] * ratio / (1 - ratio) < negligible:
            below = down[-1] * ratio / (1 - ratio)
            break
        down.append(down[-1] * ratio)
    chances = down[::-1]
    total, term = sum(chances, arb(0)), chances[-1]
    for successes in range(peak + 1, trials + 1):
        if total > 1 - _REST:
            break
        term = term * (trials - successes + 1) * odds / successes
        chances.append(term)
        total += term
    first = peak + 2 - len(down)
    size = max(1, first // _CELL)
    cells = [
        (first + start, sum(chances[start : start + size], arb(0))) for start in range(0, len(chances), size)
    ]
    rest = 1 - sum((chance for _, chance in cells[:-1]), arb(0))
    return below.upper(), [*cells[:-1], (cells[-1][0], rest)]


def _chance(trials: int, share: arb, successes: int) -> arb:
    """P(Bin(trials, share) = successes)."""
    ways = arb(trials + 1).lgamma() - arb(successes + 1).lgamma() - arb(trials - successes + 1).lgamma()
    failures = trials - successes
    return (ways + successes * share.log() + failures * (-share).log1p()).exp()
