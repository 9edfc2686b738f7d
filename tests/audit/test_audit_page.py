"""The page and the pictures that an audit writes."""

import re

from sqsgd.audit import Finding
from sqsgd.audit.audit_page import page
from sqsgd.audit.findings import Audit


def test_the_page_needs_nothing_and_escapes_what_it_shows():
    finding = Finding(check="law", name="<b>", outcome="violated", sentence="a & b", measured=1.5, limit=1.0)
    found = Audit(
        scheme="<script>alert",
        dim=1,
        epsilon=4.0,
        notion="local",
        message_bytes=20,
        trials=1,
        seed=0,
        findings=(finding,),
    )
    text = page(found)
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script") == 3  # the page's own
    assert "<b>" not in text
    assert "a &amp; b" in text
    assert not re.search(r"https?://|@import|url\(", text)
