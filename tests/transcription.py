"""Algorithm 2 (direction mode, K = 2) in a straight line: NumPy, AES and mpmath, nothing of sqsgd.

Written from the paper, docs/wire-format.md and the order in which a report draws its noise.
"""

from __future__ import annotations

import hashlib
import math
import struct

import mpmath
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

F = np.float32


def keystream(message: bytes, person: bytes, length: int, first_block: bytes = bytes(16)) -> bytes:
    key = hashlib.blake2b(message, digest_size=32, person=person).digest()
    return Cipher(algorithms.AES(key), modes.CTR(first_block)).encryptor().update(bytes(length))


def public(seed, round, client, purpose, length=4096):
    message, first_block = struct.pack("<QQ", seed, round) + purpose.encode(), struct.pack(">QQ", client, 0)
    return keystream(message, b"sqsgd public", length, first_block)


def coordinates(seed, round, client, dim, size):
    drawn, words = set(), struct.iter_unpack("<I", public(seed, round, client, "coordinates"))
    while len(drawn) < min(size, dim - size):
        product = next(words)[0] * dim
        if product % 2**32 >= 2**32 % dim:
            drawn.add(product // 2**32)
    return np.array(sorted(drawn if size <= dim - size else set(range(dim)) - drawn))


def rotation(seed, round, client, size):
    """Signs, Hadamard, signs, Hadamard."""
    return sign_and_mix(seed, round, client, size, 1) @ sign_and_mix(seed, round, client, size, 0)


def sign_and_mix(seed, round, client, size, which):
    stream = public(seed, round, client, f"signs {which}")
    bits = np.unpackbits(np.frombuffer(stream, np.uint8), bitorder="little")
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix * (1.0 - 2.0 * bits[:size]) / size**0.5


def match_law(size, threshold, epsilon):
    """P(L <= l) for K = 2 on the privacy boundary, to fifty digits; and the scale m."""
    mpmath.mp.dps = 50
    power = mpmath.exp(mpmath.mpf(epsilon))
    counts = range(size + 1)
    weights = [mpmath.binomial(size, count) * (power if count >= threshold else 1) for count in counts]
    total = mpmath.fsum(weights)
    scale = mpmath.binomial(size - 1, threshold - 1) * (power - 1) / total
    return [mpmath.fsum(weights[: count + 1]) / total for count in counts], float(scale)


class Noise:
    """The private words of one report: single ones from the end of 512 bytes, the rest in one piece."""

    def __init__(self, seed):
        stream = keystream(seed.to_bytes(32, "little"), b"sqsgd seeded", 512 + 16384)
        self.words = list(struct.unpack("<64Q", stream[:512]))
        self.bulk = stream[512:]

    def word(self):
        return self.words.pop()


def privatise(x, half_range, law, noise):
    """Signs of x, moved to exactly L matches."""
    n = len(x)
    uniform = mpmath.mpf(noise.word()) / 2**64
    wanted = next(count for count, edge in enumerate(law) if uniform < edge)
    rounding, spares = n + (-n & 7), n + (-n & 7) + 2 * n + (-2 * n & 7)
    tries = spares + 32 * -(-n // 256)
    sixteen = np.frombuffer(noise.bulk[rounding : rounding + 2 * n], "<u2").astype(int)
    t = np.clip(F(1 / (2 * half_range)) * x + F(0.5), F(0), F(1))
    codes = (np.floor(t * F(65536)).astype(int) + sixteen) >> 16
    share = max(0.0, 2 * wanted / n - 1)
    keep = 256 if 16 * (n - wanted) < n else min(round(share * 128), 127) * 2
    eight = np.frombuffer(noise.bulk[:n], np.uint8).astype(int)
    out = np.where(eight < keep, codes, eight & 1)
    words = struct.iter_unpack("<Q", noise.bulk[tries : tries + 8 * (64 + 4 * int(n**0.5))])
    while (count := int((out == codes).sum())) != wanted:
        word = next(words)[0]
        place = (word >> 32) * n
        if place % 2**32 < 2**32 % n:
            continue
        if (out[place >> 32] == codes[place >> 32]) == (count > wanted):
            out[place >> 32] ^= 1
    return out


def scalar(value, levels, epsilon, noise):
    """ScalarDP on [0, 1]."""
    position = levels * min(max(value, 0.0), 1.0)
    lower = min(int(position), levels - 1)
    symbol = lower + ((noise.word() >> 11) * 2.0**-53 < position - lower)
    leaves = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)) / levels)
    if mpmath.mpf(noise.word()) / 2**64 >= leaves:
        return symbol
    return (symbol + 1 + noise.word() % levels) % (levels + 1)  # levels: a power of two


def scalar_estimate(symbol, levels, epsilon):
    power = np.exp(epsilon)
    return (
        (power + levels) / ((power - 1) * levels) * (symbol - levels * (levels + 1) / (2 * (power + levels)))
    )


def train(
    gradient_of, weights, *, clients, rounds, size, threshold, eps1, eps2, levels, rate, bound, seed,
    clip=np.inf, alpha=1.0, beta=1.0,
):  # fmt: skip
    """All rounds; returns the weights, the bound, and every (codes, symbol) that was sent."""
    dim, sent = len(weights), []
    residuals = np.zeros((clients, dim), F)
    law, scale = match_law(size, threshold, eps1)
    first_bound = bound
    for t in range(rounds):
        total, norms = np.zeros(dim), []
        for s in range(clients):
            chosen = coordinates(seed, t, s, dim, size)
            gradient = gradient_of(weights, t, s)
            waiting, accumulated = residuals[s] + F(alpha) * gradient, residuals[s] + F(beta) * gradient
            length = np.sqrt(np.dot(accumulated, accumulated))
            accumulated = accumulated if length <= clip else accumulated * F(clip / length)
            turned = rotation(seed, t, s, size)
            y = (turned @ accumulated[chosen].astype(float)).astype(F)
            norm = float(np.sqrt(np.sum(y.astype(float) ** 2)))
            noise = Noise((seed << 128) | (t << 64) | s)
            codes = privatise(y, 2.0**-12 * norm / size**0.5, law, noise)
            symbol = scalar(norm / bound, levels, eps2, noise)
            sent.append((codes.tolist(), symbol))
            residuals[s] = waiting
            residuals[s][chosen] = 0
            norms.append(bound * scalar_estimate(symbol, levels, eps2))
            # E|u_j| of a uniform unit vector: Γ(n/2) / (√π Γ((n+1)/2))
            sign = math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.pi**0.5
            direction = (2.0 * codes - 1) / (size * sign * scale)
            total[chosen] += turned.T @ (norms[-1] * direction)
        weights = (weights - rate * total / clients).astype(F)
        seen = sorted(np.clip(norms, 0, 2 * bound))[int(0.75 * (clients - 1))]
        bound = max(1e-4 * first_bound, min(max(1.5 * seen, bound / 2), 2 * bound))
    return weights, bound, sent
