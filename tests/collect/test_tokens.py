"""Blind tokens: the vectors of RFC 9474 and RFC 9578, forgeries, and the raw private operation."""

import os

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from protocol_vectors import RFC

from sqsgd.federation.collect import tokens
from sqsgd.federation.collect.tokens import TokenKey, TokenRefused, blinded_parts, challenge, encoded, sign

STUDY = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def private():
    return load_pem_private_key(bytes.fromhex(RFC["rfc9578"][0]["skS"]), None)


@pytest.fixture(scope="module")
def public(private):
    return TokenKey.of(private)


def new_token(private, public, study=STUDY):
    message = public.input(challenge(study), os.urandom(32))
    blind = public.new_blind()
    (blinded,) = blinded_parts(public, public.request(message, os.urandom(48), blind), 1)
    return public.token(message, sign(private, blinded), blind)


@pytest.mark.parametrize("number", range(2))
def test_the_vectors_of_rfc_9578(private, number):
    given = {name: bytes.fromhex(value) for name, value in RFC["rfc9578"][number].items() if name != "blind"}
    key, blind = TokenKey(given["pkS"]), int(RFC["rfc9578"][number]["blind"], 16)
    assert TokenKey.of(private).der == key.der
    message = key.input(given["token_challenge"], given["nonce"])
    assert key.request(message, given["salt"], blind) == given["token_request"]
    (blinded,) = blinded_parts(key, given["token_request"], 1)
    assert sign(private, blinded) == given["token_response"]
    assert key.token(message, given["token_response"], blind) == given["token"]
    assert key.nonce(given["token"], given["token_challenge"]) == given["nonce"]


def test_the_vectors_of_rfc_9474():
    given = {name: int(value.removeprefix("0x"), 16) for name, value in RFC["rfc9474"].items()}
    p, q, n, e, d = (given[name] for name in "pqned")
    numbers = rsa.RSAPrivateNumbers(
        p, q, d, d % (p - 1), d % (q - 1), rsa.rsa_crt_iqmp(p, q), rsa.RSAPublicNumbers(e, n)
    )
    texts = {
        name: bytes.fromhex(RFC["rfc9474"][name])
        for name in ("prepared_msg", "salt", "blinded_msg", "blind_sig")
    }
    message = encoded(texts["prepared_msg"], texts["salt"], n.bit_length())
    assert message == given["encoded_msg"]
    assert message * pow(pow(given["inv"], -1, n), e, n) % n == given["blinded_msg"]
    assert sign(numbers.private_key(), texts["blinded_msg"]) == texts["blind_sig"]
    assert given["blind_sig"] * given["inv"] % n == given["sig"]


def test_every_changed_bit_is_refused(private, public):
    token = bytearray(new_token(private, public))
    assert public.nonce(bytes(token), challenge(STUDY)) == bytes(token[2:34])
    for bit in range(8 * len(token)):
        token[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TokenRefused):
            public.nonce(bytes(token), challenge(STUDY))
        token[bit // 8] ^= 1 << bit % 8


def test_another_study_and_another_length_are_refused(private, public):
    token = new_token(private, public)
    for wrong, study in ((token, "f" * 64), (token[:-1], STUDY), (token + b"\x00", STUDY), (b"", STUDY)):
        with pytest.raises(TokenRefused, match="not one of this study"):
            public.nonce(wrong, challenge(study))


def test_an_issuer_with_another_key_is_found_out(private, public):
    """A key for one user would tell the user when the token is spent: the token would not verify."""
    other = rsa.generate_private_key(65537, 2048)
    message, blind = public.input(challenge(STUDY), bytes(32)), 12345
    (blinded,) = blinded_parts(public, public.request(message, bytes(48), blind), 1)
    small = int.from_bytes(blinded) % other.public_key().public_numbers().n
    with pytest.raises(TokenRefused, match="signature is wrong"):
        public.token(message, sign(other, small.to_bytes(256)), blind)


def test_a_blinded_message_is_uniform_whatever_the_message(public):
    """Each message and each request have exactly one r in common: the request tells nothing."""
    n = int.from_bytes(public.der[-261:-5])
    d = load_pem_private_key(bytes.fromhex(RFC["rfc9578"][0]["skS"]), None).private_numbers().d
    messages = [public.input(challenge(STUDY), bytes([i]) * 32) for i in range(2)]
    request = public.request(messages[0], bytes(48), 777)
    blinded = int.from_bytes(request[3:])
    other = pow(blinded * pow(encoded(messages[1], bytes(48), 2048), -1, n) % n, d, n)
    assert public.request(messages[1], bytes(48), other) == request


def test_other_keys_are_refused(public, tmp_path):
    for der in (b"", public.der[:-1], public.der[:-5] + bytes.fromhex("0203010003"), public.der + b"\x00"):
        with pytest.raises(TokenRefused, match="2,048 bits"):
            TokenKey(der)
    path = tmp_path / tokens.KEY
    made = tokens.new_token_key(path)
    assert path.stat().st_mode & 0o077 == 0
    assert TokenKey.of(tokens.read_token_key(path, made)).der == made.der
    with pytest.raises(ValueError, match="another study"):
        tokens.read_token_key(path, public)
    path.write_text("nonsense")
    with pytest.raises(ValueError, match="holds no key"):
        tokens.read_token_key(path, made)


def test_what_cannot_be_signed(private, public):
    request = public.request(b"message", bytes(48), 5)
    for wrong in (request[:-1], request * 2, b"\x00\x01" + request[2:], request[:3] + b"\xff" * 256):
        with pytest.raises(TokenRefused):
            blinded_parts(public, wrong, 1)
    for blinded in (b"\xff" * 256, bytes(256), b"\x01"):
        with pytest.raises(TokenRefused, match="out of range"):
            sign(private, blinded)


def test_a_wrong_result_is_not_returned(private, monkeypatch):
    """A fault in one of the two halves would factor the modulus."""
    real = pow

    def faulty(base, exponent, modulus=None):
        return real(base, exponent, modulus) ^ (
            modulus is not None and modulus.bit_length() == 1024 and exponent > 2**64
        )

    monkeypatch.setattr(tokens, "pow", faulty, raising=False)
    with pytest.raises(ArithmeticError):
        sign(private, bytes(255) + b"\x07")


def test_the_private_operation_never_sees_the_request(private, monkeypatch):
    """Base and exponents differ each time, for the same request."""
    seen, real = [], pow

    def watched(base, exponent, modulus=None):
        if modulus is not None and modulus.bit_length() == 1024 and exponent > 2**64:
            seen.append((base, exponent))
        return real(base, exponent, modulus)

    monkeypatch.setattr(tokens, "pow", watched, raising=False)
    answers = {sign(private, bytes(255) + b"\x07") for _ in range(3)}
    assert len(answers) == 1
    assert len(set(seen)) == len({exponent for _, exponent in seen}) == len({base for base, _ in seen}) == 6
