"""The page in a real browser without a network: clicked, typed at, resized."""

import json

import pytest
from folders import write_run

from sqsgd.report.page import write_report

GROUPS = "Array.from(document.querySelectorAll('table.results tbody th'), e => e.textContent.trim())"
FOCUS = (
    "(() => { const e = document.activeElement;"
    "return (e.id || e.getAttribute('href') || e.textContent).trim().slice(0, 40); })()"
)


def style(selector, name):
    return f"getComputedStyle(document.querySelector({json.dumps(selector)})).{name}"


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
    assert len(drawn) == 7
    assert all(drawn)
    assert opened.run("document.querySelectorAll('main b, main a[href^=javascript], svg a').length") == 0
    assert opened.run("document.title") == "5 groups on mnist5k"


def test_the_table_sorts_by_mouse(opened):
    heading = "table.results th:nth-child(3)"
    best_first = opened.run(GROUPS)
    opened.click(f"{heading} button")
    assert opened.run(f"document.querySelector('{heading}').ariaSort") == "descending"
    assert opened.run(GROUPS) == best_first
    opened.click(f"{heading} button")
    assert opened.run(f"document.querySelector('{heading}').ariaSort") == "ascending"
    *measured, last = best_first
    assert opened.run(GROUPS) == [*measured[::-1], last], "what has no accuracy stays last"
    assert opened.run("document.getElementById('sorted').textContent") == "Sorted by Accuracy, ascending."


def test_the_table_sorts_by_keyboard_on_every_heading(opened):
    opened.run("document.querySelector('table.results thead button').focus()")
    for column in range(11):
        opened.press(" " if column % 2 else "Enter")
        order = opened.run("Array.from(document.querySelectorAll('table.results thead th'), e => e.ariaSort)")
        assert [index for index, value in enumerate(order) if value] == [column]
        cells = f"document.querySelectorAll('table.results tbody tr > :nth-child({column + 1})')"
        values = opened.run(f"Array.from({cells}, e => e.dataset.value)")
        numbers = [float(value) for value in values if value]
        assert numbers == sorted(numbers, reverse=order[column] == "descending")
        opened.press("Tab")


def test_dark_and_light_by_the_button_and_by_the_system(opened):
    colours = (
        f"[{style('body', 'backgroundColor')}, {style('#plot-loss .role-axis-label text', 'fill')}, "
        + (f"{style('#plot-loss .mark-line path', 'stroke')}]")
    )
    light = opened.run(colours)
    opened.click("#theme")
    dark = opened.run(colours)
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert opened.run("document.getElementById('theme').ariaPressed") == "true"
    opened.click("#theme")
    assert opened.run(colours) == light
    opened.run("delete document.documentElement.dataset.theme")
    opened.prefer("dark")
    opened.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert opened.run(colours) == dark


def test_details_open_and_show_the_data(opened):
    for selector in ("figure details", "#configuration details"):
        opened.click(f"{selector} summary")
        assert opened.run(f"document.querySelector('{selector}').open")
        assert opened.run(f"document.querySelector('{selector} table').getBoundingClientRect().height") > 60


def test_a_click_on_the_legend_picks_out_a_group(opened):
    opacities = (
        "Array.from(document.querySelectorAll('#plot-loss .mark-line path'), e => e.getAttribute('opacity'))"
    )
    assert set(opened.run(opacities)) == {"1"}
    opened.click("#plot-loss .role-legend-label text")
    opened.run("new Promise(done => setTimeout(done, 300))")
    assert sorted(opened.run(opacities)) == ["0.08", "0.08", "0.08", "0.08", "1"]


def test_the_pointer_shows_a_value_as_text(opened):
    opened.run("document.querySelector('#plot-loss').scrollIntoView({block: 'center', behavior: 'instant'})")
    x, y = opened.run(
        "(() => { const all = document.querySelectorAll('#plot-loss .mark-symbol path[opacity=\"0\"]');"
        "const r = all[all.length - 1].getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    opened.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown = opened.run("document.querySelector('#vg-tooltip-element').textContent")
    assert "rounds" in shown
    assert "loss" in shown


def test_focus_goes_through_the_page_in_order_and_can_be_seen(opened):
    seen = []
    for _ in range(9):
        opened.press("Tab")
        seen.append(opened.run(FOCUS))
        assert opened.run("getComputedStyle(document.activeElement).outline").endswith("solid 3px")
    expected = ["#main", "theme", "#results", "#figures", "#privacy", "#configuration", "#reproduce"]
    assert seen[:7] == expected
    assert seen[8] == "Group"
    opened.press("Tab", shift=True)
    assert opened.run("document.activeElement.className") == "scroll"


def test_the_skip_link_leads_to_the_content(opened):
    opened.press("Tab")
    assert opened.run("document.activeElement.getBoundingClientRect().left") >= 0
    opened.press("Enter")
    assert opened.run("document.activeElement.id") == "main"


def test_a_phone_shows_it_without_scrolling_sideways(browser, page):
    browser.open(page, width=360, height=740, scheme="dark")
    browser.run("window.drawn")
    assert browser.run("document.documentElement.scrollWidth") == 360
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") == 360
    wide = browser.run(
        "(() => { const box = document.querySelector('#results .scroll');"
        "return [box.scrollWidth > box.clientWidth, box.getBoundingClientRect().right <= 360]; })()"
    )
    assert wide == [True, True]
    plots = browser.run(
        "Array.from(document.querySelectorAll('.plot svg'), e => e.getBoundingClientRect().right)"
    )
    assert max(plots) <= 360
    assert browser.errors == []


def test_the_window_may_change_its_width(opened):
    opened.resize(700)
    opened.run("new Promise(done => setTimeout(done, 300))")
    assert opened.run("document.documentElement.scrollWidth") <= 700
    assert opened.run("document.querySelector('#plot-loss svg').getBoundingClientRect().right") <= 700
