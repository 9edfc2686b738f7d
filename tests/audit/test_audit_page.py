"""The page and the pictures that an audit writes."""

import re

import numpy as np
from pictures import unpacked

from sqsgd.audit import Finding
from sqsgd.audit.audit_page import page, png
from sqsgd.audit.findings import Audit


def test_png():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5)).astype(np.uint8)
    found, text = unpacked(png(pixels, "seven rows"))
    assert np.array_equal(found, pixels)
    assert text == b"Description\0seven rows"


def test_the_page_needs_nothing_and_escapes_what_it_shows():
    finding = Finding(check="law", name="<b>", outcome="violated", sentence="a & b", measured=1.5, limit=1.0)
    found = Audit(
        scheme="<script>",
        dim=1,
        epsilon=4.0,
        notion="local",
        message_bytes=20,
        trials=1,
        seed=0,
        findings=(finding,),
    )
    text = page(found)
    assert "<script" not in text
    assert "<b>" not in text
    assert "a &amp; b" in text
    assert not re.search(r"https?://|@import|url\(", text)
