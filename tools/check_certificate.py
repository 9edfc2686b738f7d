"""Verify a central certificate, with Python alone: python tools/check_certificate.py central.json

The file says: whoever sees only what is published learns at most (epsilon, delta) about one user. This
program computes that again from the file, in whole numbers and fractions that are rounded to the side of a
larger delta (docs/proofs/shuffled-reports.md and several-reports.md prove the formulas):

1. ``law``: the densities of a report, from the text that identifies its scheme.
2. ``spent``: delta(e) of one report among n users, at each of the file's dots (i, d): it must be at most d.
       delta(e) = E(W_1 + ... + W_n)+ / (n share),   W = a - growth b with probability share * chance, else 0.
3. ``composed``: the lower hull of the dots is the divergence of a pair of laws. Their privacy losses add up
   over all passes, and what is beyond epsilon must be at most delta.

The program prints what it did not verify.
"""

import hashlib
import json
import math
import re
import sys
from bisect import bisect_right
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from itertools import accumulate, pairwise, product
from pathlib import Path

UNIT = 1 << 320  # of fixed-point numbers
FINE = 2.0**-12  # of the variance of a sum, what one step may add
TINY = Fraction(1, 2**290)  # more than the growths at all dots were rounded down
SPARE = 2**14  # the part of a bound that may be lost in sums: this one in so many
DIGITS = Context(prec=120, Emax=10**6, Emin=-(10**6))


def down(x):
    return Fraction(x.numerator * UNIT // x.denominator, UNIT)


def exponential(x):
    """Fractions around e^x: ``decimal`` rounds both steps to 120 digits, of which 110 count."""
    value = Fraction(DIGITS.exp(DIGITS.divide(Decimal(x.numerator), Decimal(x.denominator))))
    return down(value - value / 10**110), down(value + value / 10**110) + Fraction(1, UNIT)


# ---------------------------------------------------------------- 1. the law of a report


def near_share(kind, numbers):
    """The share of all outputs that have the high density: two whole numbers."""
    if kind == "nearest":
        near, outputs = numbers
        return Fraction(near, outputs)
    if kind == "scalardp":
        return Fraction(1, numbers[0] + 1)
    if kind == "privquant":
        n, levels, least = numbers
        return Fraction(
            sum(math.comb(n, hits) * (levels - 1) ** (n - hits) for hits in range(least, n + 1)), levels**n
        )
    size, near, count, least = numbers  # sparse: `hits` right signs, `wrong` wrong ones
    high = sum(
        math.comb(near, hits) * math.comb(near - hits, wrong)
        * math.comb(size - near, count - hits - wrong) << (count - hits - wrong)
        for hits in range(least, min(near, count) + 1)
        for wrong in range(min(near, count) - hits + 1)
    )  # fmt: skip
    return Fraction(high, math.comb(size, count) << count)


LAWS = re.compile(
    r"(nearest) (\d+) of (\d+) vertices ([^ ()]+)|(sparse) (\d+) (\d+) (\d+) (\d+) ([^ ()]+)"
    r"|(privquant) (\d+) (\d+) (\d+) boundary ([^ ()]+)|(scalardp) (\d+) ([^ ()]+)"
)


def law(entry):
    """(share, [(a, b, chance), ...]) and the local epsilon.

    With e^epsilon from above, whose reports have any smaller epsilon if some are replaced by uniform ones.
    """
    total = Fraction(entry["local_epsilon"])
    parts = [(total, Fraction(1, 2))]
    if entry["bound"] == "blanket":
        line = entry["scheme"].splitlines()[-1]
        if not re.fullmatch(r"(direction [^ ()]+|range|reach [^ ()]+|coin|[ ()])*", LAWS.sub("", line)):
            raise ValueError(f"unknown law: {line}")
        found = [[text for text in groups if text] for groups in LAWS.findall(line)]
        parts = [(Fraction(float(f[-1])), near_share(f[0], [int(x) for x in f[1:-1]])) for f in found]
        total = sum(epsilon for epsilon, _ in parts)
    require(parts and all(epsilon > 0 and 0 < near < 1 for epsilon, near in parts), "the law of a report")
    share, options = Fraction(1), []
    for epsilon, near in parts:
        odds, chance = exponential(epsilon)[1], min(near, 1 - near)
        low = 1 / ((odds - 1) * near + 1)
        same = low if near <= Fraction(1, 2) else odds * low
        options.append([(odds * low, low, chance), (low, odds * low, chance), (same, same, 1 - 2 * chance)])
        share *= low if entry["bound"] == "blanket" else 1 / odds
    return share, [[math.prod(x) for x in zip(*chosen, strict=True)] for chosen in product(*options)], total


# ---------------------------------------------------------------- 2. the divergence of one report


def multiplied(one, other, bits):
    """The product of two polynomials with whole coefficients >= 0, divided by 2^bits and rounded down."""
    size = (max(one).bit_length() + max(other).bit_length() + len(one).bit_length()) // 8 + 1
    a, b = (int.from_bytes(b"".join(c.to_bytes(size, "little") for c in x), "little") for x in (one, other))
    whole, count = a * b, len(one) + len(other) - 1
    text = whole.to_bytes(size * count, "little")
    return [int.from_bytes(text[size * i : size * (i + 1)], "little") >> bits for i in range(count)]


def trimmed(first, masses, allowed):
    """Without a mass of at most ``allowed`` at the upper end; as much is moved up at the lower end."""
    below, above = list(accumulate(masses)), list(accumulate(masses[::-1]))
    start, end = bisect_right(below, allowed), len(masses) - bisect_right(above, allowed)
    return first + start, [below[start], *masses[start + 1 : end]]


def coarser(law, level):
    """On a grid 2^level as coarse: a mass at an odd point is split between its neighbours, with its mean."""
    first, masses, draws, now = law
    for _ in range(now, level):
        masses = [0] * (first % 2 + 2) + masses + [0] * 3  # from an even point on
        even, odd, first = masses[::2], masses[1::2], first // 2
        masses = [mass + (a + b) // 2 for mass, a, b in zip(even[1:], odd, odd[1:], strict=False)]
    return first, masses, draws, max(now, level)


def added(one, other, bits, allowed, deviation=0.0):
    """The sum of two independent sums; a sum is (first point, masses in 2^-bits, draws, level of its grid).

    The mass that is missing from one is at the largest possible value, and at most ``allowed`` for each draw.
    """
    level = max(one[3], other[3])
    (start, a, draws, _), (begin, b, more, _) = coarser(one, level), coarser(other, level)
    law = *trimmed(start + begin, multiplied(a, b, bits), int(allowed * (draws + more))), draws + more, level
    while deviation * math.sqrt(draws + more) / 2**level > 128:
        level += 1
    return coarser(law, level)


def repeated(single, count, *how):
    """The sum of ``count`` draws, by doubling."""
    law = single
    for bit in bin(count)[3:]:
        law = added(law, law, *how)
        law = added(law, single, *how) if bit == "1" else law
    return law


def spent(share, pairs, users, growth, most):
    """An upper bound of delta(ln growth), close enough to be compared with ``most``."""
    jumps = [(math.ceil((a - growth * b) * 2**128), share * chance) for a, b, chance in pairs]
    top, base = max(value for value, _ in jumps), jumps[-1][0]
    if top <= 0:
        return Fraction(0)
    square = sum(float(chance) * (value / top) ** 2 for value, chance in jumps if value > 0)
    for power in range(7, 13):  # a unit of the grid, on which the value of equal densities nearly lies
        unit = top >> power
        if -base >= unit:
            unit = -base // math.ceil(-base / unit)
        parts = [(value % unit / unit, float(chance)) for value, chance in jumps]
        if sum(p * part * (1 - part) for part, p in parts) * (unit / top) ** 2 <= FINE * square:
            break
    lost = most * share * 2**128 / (SPARE * top)  # of the mass: as if it were at n times the top
    bits = math.ceil(1 / lost).bit_length() + users.bit_length() + 24
    # More than all values above zero together, in effect (Bernstein's inequality): what is lower stays lost.
    mean, rare = users * sum(float(p) * value / top for value, p in jumps if value > 0), -math.log(lost)
    lowest = -math.ceil((mean + rare + math.sqrt(2 * mean * rare)) * top / unit)
    places = {0: math.floor((1 - share) * 2**bits)}
    for value, chance in jumps:
        at, part = divmod(max(value, lowest * unit), unit)
        mass = math.floor(chance * 2**bits)
        places[at] = places.get(at, 0) + mass * (unit - part) // unit
        places[at + 1] = places.get(at + 1, 0) + mass * part // unit
    first = min(places)
    single = first, [places.get(i, 0) for i in range(first, max(places) + 1)], 1, 0
    deviation = math.sqrt(square) * top / unit  # of one jump, in units
    first, masses, _, level = repeated(single, users, bits, lost * 2**bits / (64 * users), deviation)
    total = sum((first + i) * mass for i, mass in enumerate(masses) if first + i > 0) * unit << level
    total += (2**bits - sum(masses)) * users * 2 * top  # the grid moves the top, by a few percent
    return Fraction(total, users << bits + 128) / share


# ---------------------------------------------------------------- 3. several reports


def losses(dots, step, bits):
    """The first loss, in steps, and the masses from there on, in 2^-bits; the rest is infinite."""
    points = [(Fraction(0), Fraction(1), 0)]
    above = [(down(exponential(place * step)[0]), d, place) for place, d in dots]
    points += [(1 / growth, 1 - (1 - d) / growth, -place) for growth, d, place in above[::-1] if place]
    hull = []
    for point in points + above:
        while len(hull) > 1 and slope(hull[-2], hull[-1]) >= slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    slopes = [slope(one, other) for one, other in pairwise(hull)] + [Fraction(0)]
    masses = [0] * (hull[-1][2] - hull[1][2] + 1)
    for (growth, _, place), (before, after) in zip(hull[1:], pairwise(slopes), strict=True):
        masses[place - hull[1][2]] = max(0, math.floor(growth * (after - before) * 2**bits))
    return hull[1][2], masses


def slope(one, other):
    return (other[1] - one[1]) / (other[0] - one[0])


def composed(passes, step, epsilon, delta):
    """An upper bound of delta(epsilon) of all passes; ``passes`` are (dots, reports)."""
    reports = sum(count for _, count in passes)
    bits = math.ceil(1 / delta).bit_length() + 2 * reports.bit_length() + 48
    how = bits, delta * 2**bits / (SPARE * reports)
    laws = [repeated((*losses(dots, step, bits), 1, 0), count, *how) for dots, count in passes]
    first, masses, *_ = reduce(lambda one, other: added(one, other, *how), laws)
    epsilon -= reports * TINY
    beyond, weight = 2**bits - sum(masses), Fraction(0)
    shrink = down(1 / exponential(step)[1])
    for i in range(len(masses) - 1, -1, -1):
        if (first + i) * step <= epsilon:
            break
        beyond, weight, last = beyond + masses[i], down(weight * shrink) + masses[i], first + i
    if weight:  # E(1 - e^(epsilon - loss))+, with e^(epsilon - last step) from below
        beyond -= weight / exponential(last * step - epsilon)[1]
    return beyond / 2**bits


# ---------------------------------------------------------------- the file


def verify(content, say):
    """Raise a ValueError at the first thing that does not hold."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    require(hashlib.sha256(text.encode()).hexdigest() == content["digest"], "the file was changed: digest")
    require(content["format"] == "sqsgd central certificate 1", "unknown format")
    epsilon, delta, local = (Fraction(content[name]) for name in ("epsilon", "delta", "local_epsilon"))
    require(0 < epsilon < local and 0 < delta < 1, "epsilon or delta")
    step, passes, entries = Fraction(1, 2 ** content["step_bits"]), [], content["passes"]
    counted = sum(entry["reports"] for entry in entries)
    linked = bool(content["linked"])
    require(counted == (1 if linked else content["reports"]), "the number of reports")
    require(sum(Fraction(e["local_epsilon"]) * e["reports"] for e in entries) <= local, "the local epsilon")
    require(not linked or entries[0]["bound"] == "generic", "linked reports have the generic bound only")
    for entry in entries:
        users, bound = entry["users"], Fraction(entry["local_epsilon"])
        require(users >= 1 and entry["reports"] >= 1, "the users and reports of a pass")
        require(entry["bound"] in ("blanket", "generic", "local"), "an unknown bound")
        dots = [(place, Fraction(d, 2 ** content["dot_bits"]) + TINY) for place, d in entry["dots"]]
        require(all(one < other for (one, _), (other, _) in pairwise(dots)), "the order of the dots")
        require(all(place >= 0 and d >= TINY for place, d in dots), "a dot")
        *densities, has = law(entry)
        require(has <= bound, "the local epsilon of a report")
        for place, most in dots:
            growth = exponential(place * step)[0]
            if place * step >= bound:
                found = 0
            elif entry["bound"] == "local":
                found = (exponential(bound)[1] - growth) / (exponential(bound)[1] + 1)
            else:
                found = spent(*densities, users, growth, most)
            require(found <= most, f"the dot at {float(place * step):.4g} is below {float(found):.4g}")
        passes.append((dots, entry["reports"]))
        say(f"verified: {len(dots)} bounds of the divergence of one report among {users:,} users")
    found = composed(passes, step, epsilon, delta)
    require(found <= delta, f"delta({float(epsilon):.4g}) = {float(found):.4g} > {float(delta):.4g}")
    several = f"for {content['reports']:,} reports of a user"
    say(f"verified: delta({float(epsilon):.6g}) <= {float(delta):.6g} {several}")
    say("not verified: that the reports have this law (tests and proofs of sqsgd), and the assumptions:")
    for assumption in content["assumptions"]:
        say(f"  * {assumption}")


def require(holds, words):
    if not holds:
        raise ValueError(words)


def main(path):
    try:
        verify(json.loads(Path(path).read_text("utf-8")), print)
    except (ValueError, KeyError, TypeError, IndexError, ArithmeticError) as error:
        print(f"REFUSED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
