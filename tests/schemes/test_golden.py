"""Golden fingerprints, sizes and messages, to the last bit; predicted errors, nearly."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import sqsgd

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


@pytest.mark.parametrize("case", GOLDEN)
def test_a_scheme_sends_what_it_always_sent(case):
    name, dim, epsilon, bits = case.split()
    name, _, code = name.partition(":")
    arguments = {"dim": int(dim), "epsilon": float(epsilon), "bytes": int(bits) // 8}
    arguments |= {"code": code} if code else {}
    expected = GOLDEN[case]
    if expected is None:
        with pytest.raises(ValueError, match="bytes"):
            sqsgd.make_scheme(name, **arguments)
        return
    scheme = sqsgd.make_scheme(name, **arguments)
    x = np.random.default_rng(5).standard_normal(scheme.dim).astype(np.float32)
    x /= np.float32(np.sqrt(scheme.dim))
    task = sqsgd.Task(round=3, client=7, seed=1234, dim=scheme.dim, bound=1.0)
    message = scheme.encode(x, task, sqsgd.seeded_rng(11))
    assert {
        "fingerprint": scheme.fingerprint,
        "bits": scheme.bits,
        "epsilon": repr(scheme.privacy.epsilon),
        "message": hashlib.sha256(message).hexdigest()[:24],
    } == {key: expected[key] for key in ("fingerprint", "bits", "epsilon", "message")}
    assert scheme.nmse == pytest.approx(float(expected["nmse"]), rel=1e-3, nan_ok=True)  # a prediction
    decoded = np.linalg.norm(scheme.decode(message, task))
    assert decoded == pytest.approx(float(expected["decode"]), rel=1e-6)
