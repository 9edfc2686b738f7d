"""Pictures from a gradient and from a report, and the files that an audit writes."""

import re

import numpy as np
import pytest
from PIL import Image
from subjects import subject

from sqsgd.audit import Finding
from sqsgd.audit.audit_page import page, write_audit
from sqsgd.audit.checklist import gathered


def test_pictures_from_a_gradient_and_from_a_report(tmp_path, monkeypatch):
    """A few steps suffice to distinguish the raw gradient from a report."""
    torch = pytest.importorskip("torch")
    from sqsgd.audit import inversion

    monkeypatch.setattr(inversion, "BATCHES", (1,))
    case = subject("sqsgd", dim=119850, epsilon=400.0, bytes=256)
    threads = torch.get_num_threads()
    (finding,) = inversion.inverted_gradients(case, steps=40)
    assert torch.get_num_threads() == threads
    assert finding.outcome == "passed"
    assert finding.measured < 0.8 < finding.limit
    (pictures,) = finding.pictures
    assert 0.3 < pictures.report_cosine < 0.6
    assert pictures.originals[0].shape == pictures.from_report[0].shape == (28, 28)
    written = write_audit(gathered(case, [finding]), tmp_path)
    assert [path.name for path in written] == ["audit.html", "audit.json", "pictures.png"]
    assert np.asarray(Image.open(tmp_path / "pictures.png")).shape == (3 * 140 + 2 * 8, 140)
    assert (tmp_path / "audit.html").read_text().count("data:image/png;base64,") == 3


def test_likeness():
    torch = pytest.importorskip("torch")
    from sqsgd.audit.inversion import likenesses

    picture = torch.rand((1, 1, 28, 28), generator=torch.Generator().manual_seed(1))
    (same,), (inverse,) = likenesses(picture, picture), likenesses(1 - picture, picture)
    assert (same.correlation, inverse.correlation) == pytest.approx((1.0, -1.0), abs=1e-5)
    assert same.decibels > 90


def test_the_page_loads_nothing_and_escapes_what_it_shows():
    finding = Finding(check="law", name="<b>", outcome="violated", sentence="a & b", measured=1.5, limit=1.0)
    text = page(gathered(subject("sqsgd"), [finding]))
    assert "<b>" not in text
    assert "a &amp; b" in text
    assert not re.search(r"https?://|@import|url\(", text)
