"""The page in a real browser without a network: clicked, typed at, resized."""

import pytest
from folders import write_run

from sqsgd.report.page import write_report

GROUPS = "Array.from(document.querySelectorAll('table.results tbody th'), e => e.textContent.trim())"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Five groups: three seeds, an unfinished one, a failed one, a baseline, one with a hostile name."""
    folder = tmp_path_factory.mktemp("page")
    for seed in range(3):
        write_run(folder / "runs" / f"a{seed}", seed=seed, best=0.9)
    write_run(folder / "runs" / "b", bytes=64, done=20, best=0.7)
    write_run(folder / "runs" / "c", bytes=32, done=3, error="</script><b>broken</b>")
    write_run(folder / "runs" / "d", scheme="fedsgd", notion="none", best=0.8, dim=100000)
    nasty = "</script><b>bold</b><a href='javascript:alert(1)'>" + "long" * 30
    write_run(folder / "runs" / "e", best=0.6, options={"name": nasty})
    return write_report([folder / "runs"], folder / "report.html")


@pytest.fixture
def opened(browser, page):
    """The page, just opened on a wide screen; at the end nothing has gone wrong in it."""
    browser.open(page)
    browser.run("window.drawn")
    yield browser
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


def test_every_figure_is_drawn_and_nothing_breaks_out(opened):
    drawn = opened.run(
        "Array.from(document.querySelectorAll('.plot'), e => "
        "e.querySelectorAll('.mark-line path, .mark-rect path').length)"
    )
    assert len(drawn) == 6
    assert all(drawn)
    assert opened.run("document.querySelectorAll('main b, main a[href^=javascript], svg a').length") == 0


def test_the_table_sorts_by_mouse_and_by_keyboard_on_every_heading(opened):
    *measured, last = opened.run(GROUPS)
    for order in ("descending", "ascending"):
        opened.click("table.results th:nth-child(3) button")
        assert opened.run("document.querySelector('table.results th:nth-child(3)').ariaSort") == order
    assert opened.run(GROUPS) == [*measured[::-1], last], "what has no accuracy stays last"
    opened.run("document.querySelector('table.results thead button').focus()")
    for column in range(10):
        opened.press("Enter")
        orders = opened.run(
            "Array.from(document.querySelectorAll('table.results thead th'), e => e.ariaSort)"
        )
        assert [index for index, value in enumerate(orders) if value] == [column]
        cells = f"document.querySelectorAll('table.results tbody tr > :nth-child({column + 1})')"
        values = opened.run(f"Array.from({cells}, e => e.dataset.value)")
        numbers = [float(value) for value in values if value]
        assert numbers == sorted(numbers, reverse=orders[column] == "descending")
        opened.press("Tab")
