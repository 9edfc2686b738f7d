"""The wire format: golden bytes, round trips, sizes, and messages that must be rejected."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from sqsgd import MalformedReport, Task, codec, make_scheme, seeded_rng
from sqsgd.codec import Column

BINDING = Task(round=5, client=2, seed=77, dim=4, bound=1.5).binding

# Golden values: a change here is a new version of the wire format.
GOLDEN_CHECKSUM = "d849cd68"
GOLDEN_FINGERPRINT = "ed5ed59d"
GOLDEN_PAPER_FINGERPRINT = "ba9d8a93"
GOLDEN_SLOT_MESSAGE = "021f90dc92ce0b"
GOLDEN_MESSAGE = "535101009dd55eed01000000b84058b94674e7a82affeb9a03"


def sealed(columns, layout):
    return codec.seal(layout, columns, scheme=0xA1B2C3D4, round=5, binding=BINDING)


def unsealed(message, layout, **changes):
    return codec.unseal(message, layout, **{"scheme": 0xA1B2C3D4, "round": 5, "binding": BINDING, **changes})


def test_golden_bytes():
    layout = (Column(5, 16), Column(3, 3), Column(1, 30))
    message = sealed((np.array([1, 2, 3, 4, 15]), np.array([2, 1, 0]), np.array([29])), layout)
    # envelope: magic, version 1, reserved, scheme, round, checksum; then 4-bit codes, base 3, a symbol
    assert message[:12].hex(" ") == "53 51 01 00 d4 c3 b2 a1 05 00 00 00"
    assert message[16:].hex(" ") == "21 43 0f 05 1d"
    assert message[12:16].hex() == GOLDEN_CHECKSUM
    assert [column.tolist() for column in unsealed(message, layout)] == [[1, 2, 3, 4, 15], [2, 1, 0], [29]]


def test_golden_message_of_a_scheme():
    scheme = make_scheme("sqsgd", dim=100, epsilon=50.0, bytes=8, code="signs")
    task = Task(round=1, client=2, seed=3, dim=100, bound=4.0)
    assert f"{scheme.fingerprint:08x}" == GOLDEN_FINGERPRINT
    scheme.decode(bytes.fromhex(GOLDEN_MESSAGE), task)
    paper = make_scheme("sqsgd-paper", dim=100, epsilon=50.0, bytes=8)
    assert f"{paper.fingerprint:08x}" == GOLDEN_PAPER_FINGERPRINT


def test_golden_message_of_a_slot():
    """Wire format 2 where each user reports once: the task's client is the slot's number in the round."""
    scheme = replace(make_scheme("privunit-index", dim=3920, epsilon=4.0), wire=2)
    task = Task(round=3, client=17, seed=1234, dim=3920, bound=0.5)
    x = np.linspace(-1, 1, 3920).astype(np.float32)
    message = scheme.encode(x, task, seeded_rng(11))
    assert message.hex() == GOLDEN_SLOT_MESSAGE
    assert message[0] == 2
    place, value = divmod(int.from_bytes(message[5:], "little"), 2)
    assert scheme.open(message, task)[0].tolist() == [2 * place + value]
    for change in ({"client": 18}, {"round": 4}, {"seed": 1235}, {"bound": 1.0}):
        with pytest.raises(MalformedReport, match="another scheme, round, client"):
            scheme.decode(message, replace(task, **change))
    with pytest.raises(MalformedReport):  # version 1 is another format, and read by its own schemes
        replace(scheme, wire=1).decode(message, task)


def reseal(body):
    """Any bytes behind a valid envelope."""
    return sealed((np.frombuffer(body, np.uint8),), (Column(len(body), 256),))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m[:10], "length"),
        (lambda m: b"", "length"),
        (lambda m: m[:-1], "length"),
        (lambda m: m + b"\0", "length"),
        (lambda m: b"XX" + m[2:], "magic"),
        (lambda m: m[:2] + b"\2" + m[3:], "version"),
        (lambda m: m[:3] + b"\1" + m[4:], "version"),
        (lambda m: m[:4] + b"\0\0\0\0" + m[8:], "scheme"),
        (lambda m: m[:8] + b"\6" + m[9:], "round"),
        (lambda m: m[:12] + b"\0\0\0\0" + m[16:], "checksum"),
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


def test_wrong_task_or_scheme_is_named():
    layout = (Column(5, 16),)
    message = sealed((np.zeros(5, np.uint8),), layout)
    for changes, reason in (
        ({"scheme": 1}, "scheme"),
        ({"round": 6}, "round"),
        ({"binding": b"other"}, "checksum"),
    ):
        with pytest.raises(MalformedReport) as caught:
            unsealed(message, layout, **changes)
        assert caught.value.reason == reason


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
    """Flips, cuts, extensions, swaps, overwritten bytes and splices of valid messages."""
    for _ in range(count):
        message = bytearray(messages[numbers.integers(len(messages))])
        kind = numbers.integers(6)
        if kind == 0:
            for at in numbers.integers(0, 8 * len(message), numbers.integers(1, 9)):
                message[at >> 3] ^= 1 << (at & 7)
        elif kind == 1:
            message = message[: numbers.integers(len(message))]
        elif kind == 2:
            message += numbers.bytes(int(numbers.integers(1, 9)))
        elif kind == 3:
            i, j = numbers.integers(0, len(message), 2)
            message[i], message[j] = message[j], message[i]
        elif kind == 4:
            start = int(numbers.integers(len(message)))
            piece = numbers.bytes(int(numbers.integers(1, 9)))[: len(message) - start]
            message[start : start + len(piece)] = piece
        else:
            other, cut = messages[numbers.integers(len(messages))], numbers.integers(len(message))
            message[cut:] = other[cut:]
        yield bytes(message)


@pytest.mark.parametrize(
    ("name", "options"), [("sqsgd", {"code": "signs"}), ("sqsgd-paper", {"levels": 5, "adaptive": True})]
)
def test_no_mutated_message_is_accepted(name, options):
    scheme, rng = make_scheme(name, dim=60, epsilon=30.0, bytes=8, **options), seeded_rng(1)
    tasks = [Task(round=3, client=client, seed=1, dim=60, bound=1.0) for client in range(8)]
    x = np.linspace(-1, 1, 60).astype(np.float32)
    messages = [scheme.encode(x, task, rng) for task in tasks]
    accepted = refused = 0
    for message in mutations(messages, np.random.default_rng(2), 60_000):
        if message == messages[0]:
            continue
        try:
            scheme.open(message, tasks[0])
            accepted += 1
        except MalformedReport:
            refused += 1
    assert accepted == 0
    assert refused > 50_000


def test_a_report_fits_no_other_task():
    scheme, rng = make_scheme("sqsgd", dim=60, epsilon=30.0, bytes=8, code="signs"), seeded_rng(1)
    right = {"round": 3, "client": 1, "seed": 1, "dim": 60, "bound": 1.0}
    message = scheme.encode(np.ones(60, np.float32), Task(**right), rng)
    scheme.open(message, Task(**right))
    for change in ({"round": 4}, {"client": 2}, {"seed": 2}, {"bound": 1.5}, {"clip": 1.0}):
        with pytest.raises(MalformedReport):
            scheme.open(message, Task(**{**right, **change}))
