"""The public datasets' constants against the data."""

import hashlib
import os
from pathlib import Path

import pytest

from sqsgd.learning.dataset_files import check_file
from sqsgd.learning.dataset_sources import SOURCES, Source
from sqsgd.learning.datasets import load_dataset

SHARED = Path(os.environ.get("SQSGD_DATA") or Path(__file__).parents[2].parent / "shared" / "data")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_published_gzip_checksums_and_our_content_checksums_name_the_same_files(name: str) -> None:
    source: Source = SOURCES[name]
    folder = SHARED / name.replace("-", "_")
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: run sqsgd data fetch {name}")
    for file in source.files:
        data = (folder / f"{file.name}.gz").read_bytes()
        assert hashlib.md5(data, usedforsecurity=False).hexdigest() == file.gzip_md5
        check_file(source, file, folder / f"{file.name}.gz")


def test_the_published_mean_and_deviation_of_the_digits_are_those_of_the_embedded_ones():
    inputs = load_dataset("mnist5k").train_inputs
    assert abs(float(inputs.mean())) < 0.02
    assert abs(float(inputs.std()) - 1) < 0.02
