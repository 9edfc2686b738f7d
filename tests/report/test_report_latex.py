"""The results as LaTeX: by structure, and compiled where there is a compiler."""

import re
import shutil
import subprocess

import pytest

from sqsgd.report.charts import all_charts
from sqsgd.report.latex import escaped, latex_table, write_latex

NASTY = r"50 % of K_1 & #2 $x$ {a}~b^c \end{table} <|>"


@pytest.fixture
def groups(grouped):
    """Three seeds, a baseline, and a run whose name holds all that is special."""
    seeds = [{"seed": seed, "name": NASTY} for seed in range(3)]
    return grouped(*seeds, {"scheme": "fedsgd", "notion": "none", "best": 0.8}, {"bytes": 64, "done": 5})


def test_the_table_has_a_row_per_group_with_intervals_and_bytes(groups):
    table = latex_table(groups, "Results at 95 %")
    rules = [line for line in table.splitlines() if line.endswith("rule")]
    assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert r"\caption{Results at 95 \%." in table
    assert r"95\,\% confidence interval (Student's $t$)" in table
    body = table.partition("\\midrule\n")[2].partition("\\bottomrule")[0].strip().splitlines()
    assert len(body) == 3
    for row in body:
        assert row.endswith(r" \\")
        assert len(re.findall(r"(?<!\\)&", row)) == 7
    mean, half = groups[0].accuracy
    assert f"${100 * mean:.2f} \\pm {100 * half:.2f}$" in body[0]
    assert body[0].endswith(r"& local & $400$ & $16\,000$ & $273$ \\")
    assert r"\phantom" in body[1]
    assert r"$\infty$" in body[1]
    assert "& -- & local" in body[2]


def test_nothing_special_is_left_bare(groups):
    assert escaped(NASTY) == (
        r"50 \% of K\_1 \& \#2 \$x\$ \{a\}\textasciitilde{}b\textasciicircum{}c "
        r"\textbackslash{}end\{table\} \textless{}\textbar{}\textgreater{}"
    )
    table = latex_table(groups, "x")
    assert table.count("{") == table.count("}")
    assert table.count(r"\end{table}") == 1


def test_an_error_has_its_own_name_and_no_percent(grouped):
    groups = grouped({"metric": "RMSE", "best": 0.25, "loss": "squared-error"})
    table = latex_table(groups, "x")
    assert "& RMSE & rate &" in table
    assert "& $0.1$ & local &" in table
    assert f"${groups[0].accuracy[0]:.4g}$" in table


def test_two_runs_have_no_interval(grouped):
    table = latex_table(grouped({"seed": 0}, {"seed": 1}), "x")
    assert r"\pm" not in table
    assert "Student" not in table


def test_every_figure_is_included_once_and_there(groups, tmp_path):
    written = write_latex(groups, all_charts(groups), tmp_path / "tex", "Results")
    figures = (tmp_path / "tex/figures.tex").read_text()
    named = re.findall(r"\\includegraphics\{([\w-]+\.pdf)\}", figures)
    assert sorted(named) == sorted(path.name for path in written if path.suffix == ".pdf")
    assert all((tmp_path / "tex" / name).read_bytes().startswith(b"%PDF") for name in named)
    assert figures.count(r"\begin{figure}") == figures.count(r"\end{figure}") == len(named)


def test_it_compiles(groups, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    write_latex(groups, all_charts(groups), tmp_path, "Results")
    document = (
        r"\documentclass{article}\usepackage{booktabs,graphicx}\usepackage[utf8]{inputenc}"
        r"\begin{document}\input{table}\input{figures}\end{document}"
    )
    (tmp_path / "paper.tex").write_text(document)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_what_is_not_finished_is_marked(groups):
    table = latex_table(groups, "x")
    marked = [line for line in table.splitlines() if r"$^\dagger$ &" in line]
    assert [line.split("$")[0].strip() for line in marked] == ["sqsgd, 64 bytes"]
    assert r"$^\dagger$\,Not finished: sqsgd, 64 bytes at round 5 of 40." in table
    assert r"\dagger" not in latex_table(groups[:2], "x")
