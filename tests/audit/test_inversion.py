"""Pictures from a gradient and from a report."""

import pytest
from pictures import unpacked
from subjects import subject

from sqsgd.audit import inversion
from sqsgd.audit.audit_page import write_audit
from sqsgd.audit.checklist import gathered
from sqsgd.audit.inversion import inverted_gradients, likenesses


def test_pictures_from_a_gradient_and_from_a_report(tmp_path, monkeypatch):
    """A few steps suffice to distinguish the raw gradient from a report."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(inversion, "BATCHES", (1,))
    case = subject("sqsgd", dim=119850, epsilon=400.0, bytes=256)
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
    assert b"From top to bottom" in text
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
