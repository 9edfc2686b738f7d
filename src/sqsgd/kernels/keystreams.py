"""Keystreams of many keys at once: BLAKE2b makes a key for each client, AES-256 in counter mode its bytes."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from sqsgd.kernels.compiling import compiled, inlined

HARDWARE = llvm.get_process_triple().startswith("x86_64") and bool(llvm.get_host_cpu_features().get("aes"))
"""The processor has AES instructions. Without them the tables below are read at places that depend on the
key, and caches may reveal such places: good enough for public streams and seeded ones only."""
TOGETHER = 8  # blocks under way at once: an AES round takes several cycles, and one can start in each

_IV = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    np.uint64,
)  # fmt: skip
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    np.int64,
)


def _times(a: int, b: int) -> int:
    """The product in AES's field of 256 elements."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a, b = (a << 1) ^ (0x11B if a & 0x80 else 0), b >> 1
    return product


def _boxes() -> tuple[Any, Any]:
    """AES's byte substitution, and what it and MixColumns make of the first byte of a column."""
    powers = [1]
    for _ in range(254):
        powers.append(_times(powers[-1], 3))
    inverse = {power: powers[-place % 255] for place, power in enumerate(powers)} | {0: 0}
    box = []
    for byte in range(256):
        value = 0x63
        for turn in range(5):
            value ^= (inverse[byte] << turn | inverse[byte] >> (8 - turn)) & 0xFF
        box.append(value)
    column = [_times(value, 2) | value << 8 | value << 16 | _times(value, 3) << 24 for value in box]
    return np.array(box, np.uint32), np.array(column, np.uint32)


_BOX, _COLUMN = _boxes()
_BLOCK = ir.VectorType(ir.IntType(64), 2)


# ---------------------------------------------------------------- AES-256, with the processor's instructions


def _instruction(builder: Any, name: str, state: Any, key: Any) -> Any:
    """One round of AES: ``aesenc``, or ``aesenclast`` for the last."""
    kind = ir.FunctionType(_BLOCK, [_BLOCK, _BLOCK])
    found = builder.module.globals.get(f"llvm.x86.aesni.{name}")
    function = found or ir.Function(builder.module, kind, f"llvm.x86.aesni.{name}")
    return builder.call(function, [state, key])


@intrinsic
def _substituted_fast(typing: Any, word: Any) -> Any:
    """AES's substitution of four bytes. Four equal columns are what ShiftRows does not change."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = ir.VectorType(ir.IntType(32), 4)
        undefined, one = ir.Constant(words, ir.Undefined), ir.IntType(32)
        state = builder.insert_element(undefined, args[0], ir.Constant(one, 0))
        state = builder.shuffle_vector(state, undefined, ir.Constant(words, [0] * 4))
        state = _instruction(
            builder, "aesenclast", builder.bitcast(state, _BLOCK), ir.Constant(_BLOCK, [0, 0])
        )
        return builder.extract_element(builder.bitcast(state, words), ir.Constant(one, 0))

    return types.uint32(types.uint32), build


@intrinsic
def _encrypt_fast(typing: Any, schedule: Any, first: Any, out: Any, at: Any) -> Any:
    """out[at:] = the keystream's blocks from the counter ``first`` on, TOGETHER of them."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def vectors(index: int, start: Any, count: int) -> list[Any]:
            array = context.make_array(signature.args[index])(context, builder, args[index])
            data = builder.bitcast(builder.gep(array.data, [start]), _BLOCK.as_pointer())
            places = (ir.Constant(ir.IntType(64), i) for i in range(count))
            return [builder.gep(data, [place]) for place in places]

        keys = vectors(0, ir.Constant(ir.IntType(64), 0), 15)
        swap = builder.module.declare_intrinsic("llvm.bswap", [ir.IntType(32)])
        states = []
        for i in range(TOGETHER):
            counter = builder.add(args[1], ir.Constant(ir.IntType(32), i))
            high = builder.zext(builder.call(swap, [counter]), ir.IntType(64))
            high = builder.shl(high, ir.Constant(ir.IntType(64), 32))
            zero = ir.Constant(_BLOCK, [0, 0])
            states.append(builder.insert_element(zero, high, ir.Constant(ir.IntType(32), 1)))
        for place, pointer in enumerate(keys):
            key = builder.load(pointer, align=4)
            if place == 0:
                states = [builder.xor(state, key) for state in states]
            else:
                name = "aesenclast" if place == 14 else "aesenc"
                states = [_instruction(builder, name, state, key) for state in states]
        for pointer, state in zip(vectors(2, args[3], TOGETHER), states, strict=True):
            builder.store(state, pointer, align=8)
        return context.get_dummy_value()

    return types.void(schedule, types.uint32, out, types.intp), build


# ---------------------------------------------------------------- AES-256, with tables


@inlined
def _substituted_slow(word):
    low = np.uint32(0xFF)
    result = _BOX[word & low] | (_BOX[(word >> np.uint32(8)) & low] << np.uint32(8))
    result |= _BOX[(word >> np.uint32(16)) & low] << np.uint32(16)
    return np.uint32(result | (_BOX[word >> np.uint32(24)] << np.uint32(24)))


@inlined
def _turned(word, bits):
    return np.uint32((word << np.uint32(bits)) | (word >> np.uint32(32 - bits)))


@inlined
def _encrypt_slow(schedule, first, out, at):
    low, eight = np.uint32(0xFF), np.uint32(8)
    state, after = np.empty(4, np.uint32), np.empty(4, np.uint32)
    for block in range(TOGETHER):
        counter = np.uint32(first + np.uint32(block))
        for j in range(4):
            state[j] = schedule[j]
        for byte in range(4):
            shifted = (counter >> np.uint32(24 - 8 * byte)) & low
            state[3] ^= np.uint32(shifted << np.uint32(8 * byte))
        for turn in range(1, 15):
            for j in range(4):
                first_byte = state[j] & low
                second = (state[(j + 1) & 3] >> eight) & low
                third = (state[(j + 2) & 3] >> np.uint32(16)) & low
                fourth = state[(j + 3) & 3] >> np.uint32(24)
                if turn < 14:
                    mixed = _COLUMN[first_byte] ^ _turned(_COLUMN[second], 8)
                    mixed ^= _turned(_COLUMN[third], 16) ^ _turned(_COLUMN[fourth], 24)
                else:
                    mixed = _BOX[first_byte] | (_BOX[second] << eight)
                    mixed |= (_BOX[third] << np.uint32(16)) | (_BOX[fourth] << np.uint32(24))
                after[j] = np.uint32(mixed ^ schedule[4 * turn + j])
            for j in range(4):
                state[j] = after[j]
        for half in range(2):
            high = np.uint64(state[2 * half + 1]) << np.uint64(32)
            out[at + 2 * block + half] = np.uint64(state[2 * half]) | high


_substituted, _encrypt = (
    (_substituted_fast, _encrypt_fast) if HARDWARE else (_substituted_slow, _encrypt_slow)
)


@inlined
def _expand(key, schedule):
    """The round keys of AES-256; ``key`` holds four 64-bit words."""
    for i in range(8):
        schedule[i] = np.uint32(key[i >> 1] >> np.uint64(32 * (i & 1)))
    constant = np.uint32(1)
    for i in range(8, 60):
        word = schedule[i - 1]
        if i % 8 == 0:
            word = np.uint32(_substituted(_turned(word, 24)) ^ constant)
            constant = np.uint32(constant << np.uint32(1))
        elif i % 8 == 4:
            word = _substituted(word)
        schedule[i] = np.uint32(schedule[i - 8] ^ word)


@inlined
def _stream(key, first, schedule, blocks, row):
    """row = the keystream of a key from block ``first`` on; ``schedule`` and ``blocks`` are scratch."""
    _expand(key, schedule)
    whole = row.size - row.size % (2 * TOGETHER)
    for at in range(0, whole, 2 * TOGETHER):
        _encrypt(schedule, np.uint32(2 + first + (at >> 1)), row, at)
    if whole < row.size:
        _encrypt(schedule, np.uint32(2 + first + (whole >> 1)), blocks, 0)
        for i in range(whole, row.size):
            row[i] = blocks[i - whole]


@compiled
def streams(keys, first, rows):
    """Each row of 64-bit words = the keystream of its key, from block ``first`` on; blocks count from 2."""
    schedule, blocks = np.empty(60, np.uint32), np.empty(2 * TOGETHER, np.uint64)
    for i in range(rows.shape[0]):
        _stream(keys[i], first, schedule, blocks, rows[i])


# ---------------------------------------------------------------- BLAKE2b


@inlined
def _rotated(word, bits):
    return (word >> np.uint64(bits)) | (word << np.uint64(64 - bits))


@inlined
def _digest(start, message, length, v, key):
    """key = the first 32 bytes of BLAKE2b of a message of at most 16 words, ``length`` bytes."""
    for i in range(8):
        v[i], v[i + 8] = start[i], _IV[i]
    v[12] ^= np.uint64(length)
    v[14] = ~v[14]
    for turn in range(12):
        order = _SIGMA[turn % 10]
        for diagonal in range(2):
            for i in range(4):
                a, b = i, 4 + ((i + diagonal) & 3)
                c, d = 8 + ((i + 2 * diagonal) & 3), 12 + ((i + 3 * diagonal) & 3)
                step = 8 * diagonal + 2 * i
                v[a] = v[a] + v[b] + message[order[step]]
                v[d] = _rotated(v[d] ^ v[a], 32)
                v[c] = v[c] + v[d]
                v[b] = _rotated(v[b] ^ v[c], 24)
                v[a] = v[a] + v[b] + message[order[step + 1]]
                v[d] = _rotated(v[d] ^ v[a], 16)
                v[c] = v[c] + v[d]
                v[b] = _rotated(v[b] ^ v[c], 63)
    for i in range(4):
        key[i] = start[i] ^ v[i] ^ v[i + 8]


@compiled
def derived_keys(start, template, length, place, numbers, keys):
    """keys[i] = the 32-byte digest of the message whose word ``place`` is numbers[i].

    ``start`` is BLAKE2b's state after its parameters (:func:`starting_state`), ``template`` the message as
    16 words, of which ``length`` bytes count.
    """
    message, v = template.copy(), np.empty(16, np.uint64)
    for i in range(numbers.size):
        message[place] = numbers[i]
        _digest(start, message, length, v, keys[i])


def starting_state(person: bytes) -> Any:
    """BLAKE2b's state for digests of 32 bytes with a personalisation and without key or salt."""
    state = _IV.copy()
    state[0] ^= np.uint64(0x01010020)
    state[6:] ^= np.frombuffer(person.ljust(16, b"\0"), "<u8")
    return state
