"""The wire format: golden bytes, columns, subsets, and messages that must be rejected."""

import math
import pickle
import struct

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsgd import MalformedReport, Task, make_scheme, seeded_rng
from sqsgd.core import codec
from sqsgd.core.codec import Column, SignedSubset

BINDING = Task(round=5, client=2, seed=77, dim=4, bound=1.5).binding

# Golden values: a change here is a new version of the wire format.
GOLDEN_CHECKSUM = "be155e79"
GOLDEN_FINGERPRINT = "fcf3f9a9"
GOLDEN_PAPER_FINGERPRINT = "ba9d8a93"
GOLDEN_SLOT_MESSAGE = "018fe9c223e70e"
GOLDEN_MESSAGE = "0143e0684ea1338d7d9bf1106901"


def sealed(columns, layout):
    return codec.seal(layout, columns, scheme=0xA1B2C3D4, binding=BINDING)


def unsealed(message, layout, **changes):
    return codec.unseal(message, layout, **{"scheme": 0xA1B2C3D4, "binding": BINDING, **changes})


def test_golden_bytes():
    layout = (Column(5, 16), Column(3, 3), Column(1, 30))
    message = sealed((np.array([1, 2, 3, 4, 15]), np.array([2, 1, 0]), np.array([29])), layout)
    # version and checksum; then 4-bit codes, base 3, a symbol
    assert message[0] == 1
    assert message[5:].hex(" ") == "21 43 0f 05 1d"
    assert message[1:5].hex() == GOLDEN_CHECKSUM
    assert [column.tolist() for column in unsealed(message, layout)] == [[1, 2, 3, 4, 15], [2, 1, 0], [29]]


def test_golden_message_of_a_scheme():
    scheme = make_scheme("sqsgd", dim=100, epsilon=50.0, bytes=8, code="signs")
    task = Task(round=1, client=2, seed=3, dim=100, bound=4.0)
    assert f"{scheme.fingerprint:08x}" == GOLDEN_FINGERPRINT
    scheme.decode(bytes.fromhex(GOLDEN_MESSAGE), task)
    paper = make_scheme("sqsgd-paper", dim=100, epsilon=50.0, bytes=8)
    assert f"{paper.fingerprint:08x}" == GOLDEN_PAPER_FINGERPRINT


def test_golden_message_of_a_slot():
    """Where each user reports once, the task's client is the slot's number in the round."""
    scheme = make_scheme("privunit-index", dim=3920, epsilon=4.0)
    task = Task(round=3, client=17, seed=1234, dim=3920, bound=0.5)
    message = scheme.encode(np.linspace(-1, 1, 3920).astype(np.float32), task, seeded_rng(11))
    assert message.hex() == GOLDEN_SLOT_MESSAGE
    assert scheme.open(message, task)[0].tolist() == [int.from_bytes(message[5:], "little")]


def reseal(body):
    """Any bytes behind a valid envelope."""
    return sealed((np.frombuffer(body, np.uint8),), (Column(len(body), 256),))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m[:4], "length"),
        (lambda m: b"", "length"),
        (lambda m: m[:-1], "length"),
        (lambda m: m + b"\0", "length"),
        (lambda m: b"\2" + m[1:], "version"),
        (lambda m: b"\0" + m[1:], "version"),
        (lambda m: m[:1] + b"\0\0\0\0" + m[5:], "checksum"),
        (lambda m: m[:-1] + bytes([m[-1] ^ 1]), "checksum"),
        (lambda m: "text", "type"),
        (lambda m: None, "type"),
    ],
)
def test_damage_is_named(change, reason):
    layout = (Column(5, 16), Column(3, 3))
    message = sealed((np.array([1, 2, 3, 4, 15]), np.array([2, 1, 0])), layout)
    with pytest.raises(MalformedReport) as caught:
        unsealed(change(message), layout)
    assert caught.value.reason == reason
    assert isinstance(caught.value, ValueError)


def test_any_view_of_the_bytes_is_read_and_none_crashes():
    layout = (Column(5, 16),)
    message = sealed((np.arange(5, dtype=np.uint8),), layout)
    doubled = bytes(byte for byte in message for _ in range(2))
    for same in (bytearray(message), memoryview(message), memoryview(doubled)[::2]):
        assert unsealed(same, layout)[0].tolist() == [0, 1, 2, 3, 4]
    released = memoryview(message)
    released.release()
    with pytest.raises(MalformedReport) as caught:
        unsealed(released, layout)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (again.reason, str(again)) == (caught.value.reason, str(caught.value)) == ("type", str(again))


def test_codes_and_padding_are_checked_behind_a_valid_checksum():
    for body, layout, reason in (
        (b"\x21\x43\xff", (Column(5, 16),), "padding"),
        (bytes([27]), (Column(3, 3),), "code"),  # three codes below 3 make a number below 27
        (bytes([63]), (Column(1, 60),), "code"),
    ):
        with pytest.raises(MalformedReport) as caught:
            unsealed(reseal(body), layout)
        assert caught.value.reason == reason


def mutations(messages, numbers, count):
    """Flips, cuts, extensions, overwritten bytes, swaps and splices of valid messages."""
    for _ in range(count):
        message, other = (bytearray(messages[i]) for i in numbers.integers(len(messages), size=2))
        first, last = sorted(numbers.integers(len(message) + 1, size=2).tolist())
        bits = np.packbits(numbers.random((last - first, 8)) < 0.05)
        changed = [
            (np.frombuffer(message[first:last], np.uint8) ^ bits).tobytes() + message[last:],
            b"",
            message[first:] + numbers.bytes(1 + last),
            numbers.bytes(last - first) + message[last:],
            message[first:last][::-1] + message[last:],
            other[first:],
        ]
        yield bytes(message[:first] + changed[numbers.integers(len(changed))])


@pytest.mark.parametrize(
    ("name", "options"), [("sqsgd", {"code": "sparse"}), ("sqsgd-paper", {"levels": 5, "adaptive": True})]
)
def test_no_mutated_message_is_accepted(name, options):
    scheme, rng = make_scheme(name, dim=60, epsilon=30.0, bytes=8, **options), seeded_rng(1)
    tasks = [Task(round=3, client=client, seed=1, dim=60, bound=1.0) for client in range(8)]
    x = np.linspace(-1, 1, 60).astype(np.float32)
    messages = [scheme.encode(x, task, rng) for task in tasks]
    accepted = refused = 0
    for message in mutations(messages, np.random.default_rng(2), 12_000):
        if message == messages[0]:
            continue
        try:
            scheme.open(message, tasks[0])
            accepted += 1
        except MalformedReport:
            refused += 1
    assert accepted == 0
    assert refused > 10_000


def test_a_report_fits_no_other_task():
    scheme, rng = make_scheme("sqsgd", dim=60, epsilon=30.0, bytes=8, code="signs"), seeded_rng(1)
    right = {"round": 3, "client": 1, "seed": 1, "dim": 60, "bound": 1.0}
    message = scheme.encode(np.ones(60, np.float32), Task(**right), rng)
    scheme.open(message, Task(**right))
    for change in ({"round": 4}, {"client": 2}, {"seed": 2}, {"bound": 1.5}, {"clip": 1.0}):
        with pytest.raises(MalformedReport):
            scheme.open(message, Task(**{**right, **change}))


@pytest.mark.parametrize("alphabet", [*range(2, 20), 64, 100, 127, 128, 129, 255, 256])
def test_packed_size(alphabet):
    column = Column(100_000, alphabet)
    ideal = 100_000 * math.log2(alphabet)
    if alphabet & (alphabet - 1) == 0:
        assert column.bits == round(ideal)
    else:
        assert ideal <= column.bits <= 1.02 * ideal
    for count in (1, 7, 50):  # short columns lose at most the rounding of their last group
        assert Column(count, alphabet).bits <= 1.02 * count * math.log2(alphabet) + 1


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_round_trip(data):
    alphabet = data.draw(st.one_of(st.integers(2, 300), st.integers(2, 2**32)))
    values = data.draw(st.lists(st.integers(0, alphabet - 1), min_size=1, max_size=200))
    column = Column(len(values), alphabet)
    packed = column.pack(np.array(values, np.uint32 if alphabet > 256 else np.uint8))
    assert len(packed) == column.length
    assert column.unpack(packed).tolist() == values
    if not column.code_bits:
        assert packed == reference.pack_groups(values, alphabet, *column.group)


def test_float_column():
    values = np.array([1.5, -2.25, 0.0], np.float32)
    column = Column(3, None)
    assert column.pack(values) == struct.pack("<3f", *values)
    assert np.array_equal(column.unpack(column.pack(values)), values)
    for bad in (np.nan, np.inf):
        with pytest.raises(MalformedReport, match="not finite"):
            column.unpack(memoryview(struct.pack("<3f", 1.0, bad, 2.0)))


@pytest.mark.parametrize(
    "column",
    [
        Column(1, 8192), Column(1, 2), Column(1, 256), Column(1, 30), Column(1, 2**32), Column(5, 16),
        Column(7, 3), SignedSubset(1, 4096), SignedSubset(40, 4096), SignedSubset(3, 5),
    ],
    ids=str,
)  # fmt: skip
def test_many_rows_are_packed_and_unpacked_as_single_ones(column):
    numbers = np.random.default_rng(3)
    if isinstance(column, SignedSubset):
        places = [np.sort(numbers.choice(column.size, column.count, replace=False)) for _ in range(30)]
        rows = np.array([2 * each + numbers.integers(0, 2, column.count) for each in places], np.uint32)
    else:
        rows = numbers.integers(0, column.alphabet, (30, column.count))
        rows = rows.astype(np.uint8 if column.alphabet <= 256 else np.uint32)
    packed = column.pack_many(rows)
    assert [row.tobytes() for row in packed] == [bytes(column.pack(row)) for row in rows]
    unpacked = column.unpack_many(packed)
    assert np.array_equal(unpacked, rows)
    assert unpacked.dtype == column.unpack(memoryview(packed[0].tobytes())).dtype


SMALL = [(2, 5), (3, 6), (4, 4), (1, 7), (5, 6), (1, 1)]


@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_each_subset_has_its_number_and_no_other_number_is_read(shape):
    column = SignedSubset(*shape)
    packed = {bytes(column.pack(codes)): codes.tolist() for codes in column.every()}
    assert len(packed) == math.comb(column.size, column.count) * 2**column.count
    for number in range(1 << (8 * column.length)):
        body = number.to_bytes(column.length, "little")
        if body in packed:
            assert column.unpack(memoryview(body)).tolist() == packed[body]
        else:
            with pytest.raises(MalformedReport, match="no subset has"):
                column.unpack(memoryview(body))


@pytest.mark.parametrize("size", [1, 2, 3, 64, 1000, 4096, 131072, 2**21, 2**24])
def test_a_subset_takes_at_most_one_bit_more_than_it_must(size):
    for count in (1, 2, 3, 5, 17, 64, 255, 1000):
        if count <= size:
            least = (math.comb(size, count) << count) - 1
            more = SignedSubset(count, size).bits - least.bit_length()
            assert 0 <= more <= (1 if 2 * count <= size else 8)
