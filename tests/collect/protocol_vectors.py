"""Vectors for every step of docs/collect-protocol.md, made from fixed secrets; and those of the RFCs.

``python tests/collect/protocol_vectors.py`` writes them again.
"""

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pyhpke import KEMKey, KEMKeyPair

from sqsgd import make_scheme
from sqsgd.federation.collect.oblivious import (
    Answer,
    Gateway,
    GatewayKey,
    Request,
    encapsulate,
    pack_answer,
    pack_request,
    sign_keys,
)
from sqsgd.federation.collect.study import DRAWN, Study
from sqsgd.federation.collect.tokens import TokenKey, base64url, challenge, encoded, sign

FILE = Path(__file__).with_name("protocol-vectors.json")
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(64, 96)))
RFC = json.loads(Path(__file__).with_name("rfc-vectors.json").read_text())


def ephemeral(secret):
    """A device's key pair, which is random except in vectors."""
    made = X25519PrivateKey.from_private_bytes(secret)
    keys = (KEMKey.from_pyca_cryptography_key(each) for each in (made, made.public_key()))
    return KEMKeyPair(*keys)


def vectors():
    """All of them, as JSON."""
    pem = bytes.fromhex(RFC["rfc9578"][0]["skS"])  # a published key: it protects nobody
    private = load_pem_private_key(pem, None)
    key = TokenKey.of(private)
    relay = "https://relay.example/digits"
    study = Study(
        name="digits", dim=20, users=60, seed=7, scheme="privunit-index", bytes=8, rounds=4,
        epsilon=4.0, bound=0.5, lr=1.0, begins=1800000000, round_seconds=3600.0, relay=relay,
        options={"rotation": "round"}, visits=DRAWN, token_key=base64url(key.der), decay="linear",
        gateway_key=SIGNER.public_key().public_bytes_raw().hex(),
    )  # fmt: skip
    nonce, salt = bytes(range(32)), bytes(range(100, 148))
    blind = int(RFC["rfc9578"][0]["blind"], 16)
    message = key.input(challenge(study.id), nonce)
    asked = key.request(message, salt, blind)
    answer = sign(private, asked[3:])
    token = key.token(message, answer, blind)
    scheme = make_scheme("privunit-index", dim=20, epsilon=4.0, bytes=8, rotation="round")
    assert scheme.fingerprint == study.made_scheme.fingerprint
    code = 77
    import numpy as np

    from sqsgd.federation.collect.intake import task_of

    sealed = scheme.seal((np.array([code], np.uint32),), task_of(study, 2))
    body = {"study": study.id, "round": 2, "token": base64url(token), "report": base64url(sealed)}
    report = json.dumps(body, separators=(",", ":"))
    secret, device = bytes(range(1, 33)), bytes(range(201, 233))
    gateway_key, nonce_of_answer = GatewayKey(9, secret), bytes(range(16))
    field = {"content-type": "application/json"}
    inner = pack_request(Request("POST", "/report", field, report.encode()), study.request_bytes)
    capsule, opened = encapsulate(gateway_key.configuration, inner, ephemeral=ephemeral(device))
    _, seal = Gateway([gateway_key]).open(capsule)
    given = pack_answer(Answer(200, field, b'{"accepted":true,"round":2}'), 1024)
    returned = seal(given, nonce_of_answer)
    assert opened(returned) == given
    return {
        "study": {"description": study.description.decode(), "id": study.id},
        "token": {
            "private_key_pem": pem.decode(), "token_key": base64url(key.der), "token_key_id": key.id.hex(),
            "challenge": challenge(study.id).hex(), "nonce": nonce.hex(), "salt": salt.hex(),
            "blind_r": f"{blind:x}", "token_input": message.hex(),
            "encoded_message": f"{encoded(message, salt, 2048):0512x}", "request": asked.hex(),
            "answer": answer.hex(), "token": token.hex(),
        },
        "report": {
            "task": {"round": 2, "client": 0, "seed": 7, "dim": 20, "bound": 0.5, "clip": None}, "code": code,
            "message": sealed.hex(), "body": report,
        },
        "oblivious": {
            "gateway_private_key": secret.hex(), "keys": gateway_key.configuration.hex(),
            "signing_key": SIGNER.private_bytes_raw().hex(), "valid_until": 1800600000,
            "signed_keys": sign_keys(gateway_key.configuration, 1800600000, SIGNER).hex(),
            "ephemeral_private_key": device.hex(),
            "get_round": pack_request(Request("GET", "/round", {}, b""), study.request_bytes).hex(),
            "inner_request": inner.hex(), "encapsulated_request": capsule.hex(),
            "answer_nonce": nonce_of_answer.hex(), "inner_answer": given.hex(),
            "encapsulated_answer": returned.hex(),
        },
        **RFC,
    }  # fmt: skip


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n")
