"""docs/collect-protocol.md: vectors, RFC 9458's example byte for byte, other people's code, and damage."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyhpke", reason="needs pip install 'sqsgd[collect]'")

from devices import make, served
from protocol_vectors import FILE, RFC, SIGNER, ephemeral, vectors
from snippets import ROOT

from sqsgd.federation.collect.oblivious import (
    WELL_KNOWN,
    Answer,
    Gateway,
    GatewayKey,
    Malformed,
    Request,
    check_keys,
    encapsulate,
    pack_answer,
    pack_request,
    read_answer,
    read_request,
    sign_keys,
)

KEY = GatewayKey(9, bytes(range(1, 33)))
ASKED = Request("POST", "/report", {"content-type": "application/json"}, b'{"a":1}')


def test_the_vectors_are_those_of_the_code():
    assert json.loads(FILE.read_text()) == vectors()


def test_the_example_of_rfc_9458():
    given = {name: bytes.fromhex(value) for name, value in RFC["rfc9458"].items()}
    key = GatewayKey(1, given["gateway_private_key"])
    assert key.configuration[2:] == given["configuration"]
    pair = ephemeral(given["ephemeral_private_key"])
    capsule, opened = encapsulate(key.configuration, given["inner_request"], ephemeral=pair)
    assert capsule == given["encapsulated_request"]
    inner, seal = Gateway([key]).open(capsule)
    assert inner == given["inner_request"]
    assert read_request(inner) == Request("GET", "/", {}, b"")
    assert seal(given["inner_answer"], given["answer_nonce"]) == given["encapsulated_answer"]
    assert opened(given["encapsulated_answer"]) == given["inner_answer"]
    assert read_answer(given["inner_answer"]) == Answer(200, {}, b"")


def test_the_examples_of_rfc_9292():
    """Known-length messages, padded, and after informational answers (figure 13)."""
    request = pack_request(ASKED, 1024)
    assert (len(request), read_request(request)) == (1024, ASKED)
    assert read_answer(b"\x01\x40\x66\x00" + pack_answer(Answer(200, {}, b"x"))[1:]).body == b"x"  # after 102
    assert len(pack_answer(Answer(404, {}, b"y" * 1100), 1024)) == 2048


@pytest.mark.parametrize("aead", [1, 3])
def test_both_ciphers(aead):
    capsule, opened = encapsulate(KEY.configuration, b"inner", aead=aead)
    inner, seal = Gateway([GatewayKey(8, bytes(32)), KEY]).open(capsule)
    assert (inner, opened(seal(b"answer"))) == (b"inner", b"answer")


def test_all_requests_have_one_length_and_differ():
    inner = [pack_request(Request("GET", path, {}, b""), 1024) for path in ("/round", "/model/x/1", "/study")]
    capsules = [
        encapsulate(KEY.configuration, each)[0] for each in [*inner, pack_request(ASKED, 1024), inner[0]]
    ]
    assert len({len(capsule) for capsule in capsules}) == 1
    assert len(set(capsules)) == 5  # a repeated request does not look like the first


def test_every_changed_bit_is_refused():
    capsule, opened = encapsulate(KEY.configuration, b"inner")
    gateway = Gateway([KEY])
    _, seal = gateway.open(capsule)
    answer = seal(b"answer")
    for content, reader in ((capsule, gateway.open), (answer, opened)):
        for bit in range(8 * len(content)):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            if reader == gateway.open and 8 * 38 <= bit < 8 * 39 and bit % 8 == 7:
                continue  # X25519 ignores the highest bit of the key; the shared secret then differs
            with pytest.raises(Malformed):
                reader(bytes(damaged))


def test_a_key_that_is_not_in_use_is_named():
    capsule, _ = encapsulate(KEY.configuration, b"inner")
    with pytest.raises(Malformed) as caught:
        Gateway([GatewayKey(10, KEY.private)]).open(capsule)
    assert caught.value.unknown_key
    for short in (b"", capsule[:20]):
        with pytest.raises(Malformed):
            Gateway([KEY]).open(short)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x01", b"\x02", b"\x00\x03GE", b"\x00\x03GET\x05https\x01a",
        b"\x00\x03GET\x05https\x01a\x02/\xff",
        pack_request(ASKED) + b"\x01", pack_request(ASKED)[:-8], b"\x00" + b"\xc0" + b"\xff" * 7,
    ],
)  # fmt: skip
def test_damaged_binary_requests(content):
    with pytest.raises(Malformed):
        read_request(content)


def test_nothing_offered_is_understood():
    other = bytearray(KEY.configuration)
    other[4] = 0x11  # another KEM
    for keys in (b"", bytes(other), KEY.configuration[:-3]):
        with pytest.raises(Malformed, match="no key"):
            encapsulate(keys, b"inner")
    assert encapsulate(bytes(other) + KEY.configuration, b"inner")[0][0] == KEY.number


def test_signed_keys():
    """Every changed bit is refused, as long as they are valid and afterwards."""
    public, signed = SIGNER.public_key(), sign_keys(KEY.configuration, 2000, SIGNER)
    assert check_keys(signed, public, 1999.9) == KEY.configuration
    assert encapsulate(signed, b"x")[0][0] == KEY.number  # others skip the signature
    for bit in range(8 * len(signed)):
        damaged = bytearray(signed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed, match="did not sign"):
            check_keys(bytes(damaged), public, 0.0)
    with pytest.raises(Malformed, match="expired at 1970-01-01 00:33"):
        check_keys(signed, public, 2000.0)


def test_an_independent_implementation(tmp_path):
    """npm's @hpke/core and bhttp-js, with RFC 9458 written in JavaScript, ask a real gateway."""
    modules = ROOT / "clients/js/node_modules"
    if shutil.which("node") is None or not all(
        (modules / name).is_dir() for name in ("@hpke/core", "bhttp-js")
    ):
        pytest.skip("in clients/js: npm ci")
    study, script = make(tmp_path / "study"), Path(__file__).with_name("independent.mjs")
    with served(tmp_path / "study") as url:
        for path, status in (("/study", 200), ("/nothing", 404)):
            command = ["node", script, modules.as_uri(), url + WELL_KNOWN, path]
            found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            assert found["status"] == status
            assert (found["body"].encode() == study.description) == (status == 200)
