"""Every refusal says what is wrong and what to do."""

import re
from pathlib import Path

import pytest

from sqsgd.federation import collect
from sqsgd.federation.collect.intake import CODES, Rejection


@pytest.mark.parametrize("code", CODES)
def test_every_refusal_says_what_to_do(code):
    rejection = Rejection(code=code, reason="because")
    body = rejection.to_dict()
    assert body["error"] == code
    assert body["reason"] == "because"
    assert body["what_to_do"]
    assert 400 <= rejection.status < 600
    assert ("retry-after" in rejection.headers) == (rejection.status in (429, 503))
    assert rejection.status != 500 or code == "internal"


def test_no_refusal_asks_for_a_second_report():
    """Encoding again draws new noise for the same data, which is a second report."""
    assert (
        Rejection(code="malformed", reason="because")
        .to_dict()["what_to_do"]
        .startswith("do not encode again")
    )


def test_every_code_that_is_used_is_known():
    text = "".join(path.read_text() for path in Path(collect.__file__).parent.glob("*.py"))
    used = set(re.findall(r'(?:code=|Refused\(|\.count\()"([a-z-]+)"', text))
    assert used == set(CODES)
