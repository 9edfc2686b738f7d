"""What an audit shows: attempts that fail or are left out, the page, and the pictures."""

import re
import struct
import sys
import zlib

import numpy as np
import pytest
from test_audit import subject

from sqsgd import MalformedReport
from sqsgd.privacy.audit import Finding, attempts, inversion, steps
from sqsgd.privacy.audit.attempts import gathered
from sqsgd.privacy.audit.findings import Audit
from sqsgd.privacy.audit.inversion import inverted_gradients, likenesses
from sqsgd.privacy.audit.pages import page, png, write_audit


def test_a_scheme_that_refuses_its_own_messages_is_caught():
    def refuse(_subject):
        yield from ()
        raise MalformedReport("checksum", "the report is damaged")

    (finding,) = attempts.Step(name="noise", run=refuse).findings(subject("sqsgd"))
    assert finding.outcome == "violated"
    assert "damaged" in finding.sentence


def test_inversion_is_left_out_with_a_reason(monkeypatch):
    step = steps(subject("sqsgd"))[-1]
    monkeypatch.setitem(sys.modules, "sqsgd.privacy.audit.inversion", None)
    (finding,) = step.run(subject("sqsgd"))
    assert finding.outcome == "not applicable"
    assert "sqsgd[train]" in finding.sentence


# ---------------------------------------------------------------- pictures


def unpacked(data):
    """The pixels of a grey PNG, and its text."""
    at, parts = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        parts[kind] = body
        at += 12 + size
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:], parts.get(b"tEXt", b"")


def test_png():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5)).astype(np.uint8)
    found, text = unpacked(png(pixels, "seven rows"))
    assert np.array_equal(found, pixels)
    assert text == b"Description\0seven rows"


def test_pictures_from_a_gradient_and_from_a_report(tmp_path, monkeypatch):
    """A few steps suffice to tell the raw gradient from a report."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(inversion, "BATCHES", (1,))
    case = subject("sqsgd", dim=119850, epsilon=400.0, bits=2048)
    threads = torch.get_num_threads()
    (finding,) = inverted_gradients(case, steps=40)
    assert torch.get_num_threads() == threads
    assert finding.outcome == "passed"
    assert finding.measured < 0.8 < finding.limit
    (pictures,) = finding.pictures
    assert 0.3 < pictures.report_cosine < 0.6
    assert pictures.originals[0].shape == pictures.from_report[0].shape == (28, 28)
    written = write_audit(gathered(case, [finding]), tmp_path)
    assert [path.name for path in written] == ["audit.html", "audit.json", "pictures.png"]
    grid, text = unpacked((tmp_path / "pictures.png").read_bytes())
    assert grid.shape == (3 * 140 + 2 * 8, 140)
    assert b"From above" in text
    text = (tmp_path / "audit.html").read_text()
    assert text.count("data:image/png;base64,") == 3


def test_likeness():
    torch = pytest.importorskip("torch")
    picture = torch.rand((1, 1, 28, 28), generator=torch.Generator().manual_seed(1))
    (same,) = likenesses(picture, picture)
    assert same.correlation == pytest.approx(1.0, abs=1e-5)
    assert same.structure == pytest.approx(1.0, abs=1e-4)
    assert same.decibels > 90
    (inverse,) = likenesses(1 - picture, picture)
    assert inverse.correlation == pytest.approx(-1.0, abs=1e-5)
    assert inverse.structure < 0


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
