"""The scripts in tools/: what they list and convert."""

import csv
import hashlib
import io
import json

import pytest
from snippets import ROOT

from sqsgd.learning.features import WEIGHTS

pytest.importorskip("PIL", reason="Pillow is not installed")


def test_every_font_is_listed_with_its_licence():
    content = (ROOT / "tools/font_digits.csv").read_bytes()
    fonts = list(csv.DictReader(io.StringIO(content.decode())))
    assert len({(font["package"], font["path"]) for font in fonts}) == len(fonts) == 559
    assert all(font["licence"] and font["version"] and font["hand"] in ("yes", "no") for font in fonts)
    about = json.loads(WEIGHTS.with_suffix(".json").read_text())
    assert hashlib.sha256(content).hexdigest() in about["fonts"]
    assert f"{len(fonts)} open fonts" in about["data"]
