"""The scripts in tools/: what they draw, list and convert."""

import csv
import dataclasses
import hashlib
import importlib
import io
import json
import tarfile

import numpy as np
import pytest
import torch
from snippets import ROOT

from sqsgd.learning.features import WEIGHTS
from sqsgd.learning.files import File, find_folder, read_source

pytest.importorskip("PIL", reason="Pillow is not installed")
pytest.importorskip("scipy", reason="SciPy is not installed")


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module


def test_every_font_is_listed_with_its_licence():
    content = (ROOT / "tools/font_digits.csv").read_bytes()
    fonts = list(csv.DictReader(io.StringIO(content.decode())))
    assert len({(font["package"], font["path"]) for font in fonts}) == len(fonts) == 559
    assert all(font["licence"] and font["version"] and font["hand"] in ("yes", "no") for font in fonts)
    about = json.loads(WEIGHTS.with_suffix(".json").read_text())
    assert hashlib.sha256(content).hexdigest() in about["fonts"]
    assert f"{len(fonts)} open fonts" in about["data"]


def test_drawings_vary_and_are_centred_as_mnist_is(tool):
    strokes = tool("digit_strokes")
    ink = np.zeros((1, 20, 20), bool)
    ink[0, 3:17, 8:13] = True
    (thin,) = strokes.thinned(ink)
    assert (thin.sum(axis=1).max(), thin.sum() >= 9, (thin & ~ink[0]).any()) == (1, True, False)
    glyphs = np.zeros((2, 10, 64, 64), np.float32)
    glyphs[0, :, 10:54, 20:28] = glyphs[0, :, 44:54, 20:48] = glyphs[1, :, 20:40, 12:52] = 1
    fields = strokes.make_fields(glyphs, torch.tensor([1.0, 1.0]))
    drawn, again = (
        strokes.draw(fields, torch.zeros(40, dtype=torch.long), torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert drawn.shape == (40, 1, 28, 28)
    assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 1
    assert float((drawn[0] - drawn[1]).abs().max()) > 0.5
    assert torch.equal(drawn, again)
    places = torch.arange(28) - 13.5
    for image in drawn[:, 0]:
        for axis in (0, 1):
            assert abs(float((image.sum(dim=axis) * places).sum() / image.sum())) < 1


def test_sheets_of_images_become_the_usual_files(tool, tmp_path, monkeypatch, capsys):
    from PIL import Image

    script = tool("cifar10_files")
    pixels = np.random.default_rng(2).integers(0, 256, (4, 32, 32, 3), np.uint8)
    sheet = io.BytesIO()
    Image.fromarray(pixels.reshape(4, 1024, 3)).save(sheet, "PNG")
    members = {
        "data_batch_1.png": sheet.getvalue(),
        "train_lables.json": b"[3, 1, 4, 1]",
        "test_lables.json": b"[]",
    }
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as package:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            package.addfile(entry, io.BytesIO(content))
    planes = pixels.transpose(0, 3, 1, 2)
    content = np.hstack([[[3], [1], [4], [1]], planes.reshape(4, -1)]).astype(np.uint8).tobytes()
    batch = File(name="data_batch_1", sha256=hashlib.sha256(content).hexdigest())
    source = dataclasses.replace(script.SOURCE, files=(batch,), sizes=(0, 4))
    monkeypatch.setattr(script, "PER_FILE", 4)
    monkeypatch.setattr(script, "SOURCE", source)
    script.main(str(tmp_path / "package.tgz"), str(tmp_path))
    _, _, images, labels = read_source(source, find_folder(source, tmp_path))
    assert labels.tolist() == [3, 1, 4, 1]
    np.testing.assert_array_equal(images, planes)
    assert "data_batch_1.bin" in capsys.readouterr().out
