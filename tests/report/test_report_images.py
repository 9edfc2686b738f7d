"""Figures for a paper."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from folders import write_run

from sqsgd.report.images import write_images

NAMES = ["accuracy-by-round", "accuracy-by-bytes", "loss", "epsilon", "bound", "clip-rate", "time"]


def test_svg_has_the_same_bytes_each_time_and_text_as_text(tmp_path):
    write_run(tmp_path / "runs" / "a", options={"name": r"_$\bad{$ <b> & _"})
    write_run(tmp_path / "runs" / "b", seed=1, options={"name": r"_$\bad{$ <b> & _"})
    write_run(tmp_path / "runs" / "c", scheme="fedsgd", notion="none", dim=100000)
    first = write_images([tmp_path / "runs"], tmp_path / "one", "svg")
    again = write_images([tmp_path / "runs"], tmp_path / "two", "svg")
    assert [path.stem for path in first] == NAMES
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    words = "".join(ElementTree.parse(first[0]).getroot().itertext())  # noqa: S314
    assert "accuracy" in words
    assert r"$\bad{$ <b> & _" in words


def test_png_and_figures_without_curves_left_out(tmp_path):
    write_run(tmp_path / "runs" / "a", scheme="fedsgd", notion="none", done=3)
    written = write_images([tmp_path / "runs"], tmp_path / "out", "png")
    assert [path.name for path in written] == ["loss.png", "time.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_mistakes_are_named(tmp_path):
    run = write_run(tmp_path / "a")
    with pytest.raises(ValueError, match="kind = 'gif'"):
        write_images([run], tmp_path / "out", "gif")
    with pytest.raises(ValueError, match="is a file"):
        write_images([run], run / "config.toml", "svg")
    with pytest.raises(ValueError, match="does not exist"):
        write_images([tmp_path / "none"], tmp_path / "out", "svg")


def test_importing_the_room_loads_no_plotting_library():
    code = (
        "import sys, sqsgd.report.page, sqsgd.report.images, sqsgd.report.figures\n"
        "print([name for name in ('matplotlib', 'torch', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
