"""Figures for a paper."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from folders import write_run

from sqsgd.report.charts import all_charts
from sqsgd.report.groups import group_runs
from sqsgd.report.images import table_rows, write_charts, write_images, write_table
from sqsgd.report.wording import Wording
from sqsgd.training.reading import read_runs

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


def test_pdf_has_the_same_bytes_each_time_and_fonts_that_publishers_take(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"runs/{seed}", seed=seed)
    first, again = (write_images([tmp_path / "runs"], tmp_path / name, "pdf") for name in ("one", "two"))
    assert [path.stem for path in first] == NAMES
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert b"/Type3" not in one.read_bytes()


def test_a_title_is_drawn_where_one_was_set(tmp_path):
    write_run(tmp_path / "runs" / "a")
    groups = group_runs(read_runs([tmp_path / "runs"])[0])
    words = ("loss.title=How it learns", "time.title=Hours", "loss.y=cross $entropy")
    charts = Wording(figures=words).titled(all_charts(groups))
    texts = {path.stem: path.read_text() for path in write_charts(charts, tmp_path / "svg", "svg")}
    assert "How it learns" in texts["loss"]
    assert "cross $entropy" in texts["loss"]
    assert "Hours" in texts["time"]
    assert "Accuracy by round" not in texts["accuracy-by-round"]


def test_the_table_as_pdf(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"runs/{seed}", seed=seed, name="A name that takes more than one line " * 2)
    groups = group_runs(read_runs([tmp_path / "runs"])[0])
    place = write_table(groups, tmp_path, "Results of $x_1")
    assert place.read_bytes().startswith(b"%PDF")
    heads, row = table_rows(groups)
    assert heads[2:4] == ["accuracy", "rate"]
    assert "%" in row[2]
    assert row[3] == "0.1"


def test_the_table_names_another_metric_and_does_not_call_it_a_percentage(tmp_path):
    write_run(tmp_path / "runs/a", metric="RMSE", best=0.25)
    groups = group_runs(read_runs([tmp_path / "runs"])[0])
    heads, row = table_rows(groups)
    assert (heads[2], row[2]) == ("RMSE", f"{groups[0].accuracy[0]:.4g}")


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
