"""The page on which a person draws a digit, in a real browser against the real service."""

import filecmp
import json
import time
from pathlib import Path

import pytest
from devices import ask, invited
from javascript import client
from served import served

from sqsgd.collect import opening
from sqsgd.collect.opening import create_study
from sqsgd.collect.outcome import flat

SEVEN = [(0.25, 0.25), (0.5, 0.25), (0.75, 0.25), (0.6, 0.55), (0.5, 0.85)]
SETTINGS = {"name": "Digits of friends", "users": 40, "rounds": 2, "softmax": True, "fewest": 1}


def make(folder, **changes):
    import numpy as np

    weights, names = flat({"weights": np.zeros(3920, np.float32)})
    return create_study(folder, weights, names, {**SETTINGS, **changes}, page="digits")


def text(browser, name):
    return browser.run(f"document.getElementById({json.dumps(name)}).textContent")


def wait_for(browser, name, part):
    """Until an element says something. The deadline is for a page that failed."""
    deadline = time.monotonic() + 60
    while part not in (found := text(browser, name)):
        assert time.monotonic() < deadline, (found, text(browser, "status"), browser.errors)
        time.sleep(0.05)


def loaded(browser, url, **window):
    browser.connect(online=True)
    browser.open(url, **window)
    wait_for(browser, "spent", "of at most")


def drawn(browser, label=7):
    browser.draw("#drawing", SEVEN)
    browser.click(f"#labels input[value='{label}']")


def reports(url):
    return ask(url, "GET", "/study")[1]["reports"]


@pytest.fixture
def digits(tmp_path):
    make(tmp_path / "study", admission="open")
    with served(tmp_path / "study") as url:
        yield url


def test_a_person_draws_sends_and_is_refused_the_second_time(browser, digits):
    loaded(browser, digits)
    assert text(browser, "name") == "Digits of friends"
    assert browser.run("document.getElementById('send').disabled")
    drawn(browser)
    assert text(browser, "label") == "7"
    assert text(browser, "features") == "392 numbers"
    assert text(browser, "gradient") == "a gradient of 3,920 numbers"
    assert text(browser, "bytes") == "nothing yet"
    before = reports(digits)
    browser.requests.clear()
    browser.click("#send")
    wait_for(browser, "status", "Thank you")
    sent = bytes.fromhex(text(browser, "bytes"))
    assert (len(sent), sent[0]) == (7, 2)
    assert "ε 8 of at most 16" in text(browser, "spent")
    asked = {url.removeprefix(digits) for url in browser.requests} - {"/study"}
    study = ask(digits, "GET", "/study")[1]["study"]
    assert asked == {"/join", f"/model/{study}/0", "/report"}
    wait_for(browser, "progress", f"{before + 1} of 20 reports")
    browser.requests.clear()
    browser.click("#send")
    wait_for(browser, "status", "Refused: this browser has made its one report")
    assert browser.requests == []
    loaded(browser, digits)  # another visit
    drawn(browser, 3)
    browser.click("#send")
    wait_for(browser, "status", "Refused")
    assert reports(digits) == before + 1
    assert browser.errors == []


def test_what_the_service_refuses_is_said_in_words(browser, tmp_path):
    study = make(tmp_path / "invited")
    (invitation,) = invited(tmp_path / "invited", study, 1)
    with served(tmp_path / "invited") as url:
        loaded(browser, url)
        drawn(browser)
        browser.click("#send")
        wait_for(browser, "status", "The service says")
        assert "ask the operator for an invitation" in text(browser, "status")
        assert "ε 0 of" in text(browser, "spent")
        browser.errors.clear()  # a refused request is an error in the console
        browser.open("about:blank")
        loaded(browser, f"{url}#invitation={invitation}")
        drawn(browser)
        browser.click("#send")
        wait_for(browser, "status", "Thank you")
        assert browser.errors == []


def test_a_report_whose_answer_was_lost_is_sent_again(browser, tmp_path):
    """The service dies before it answers; on the next visit the same bytes are offered."""
    make(tmp_path / "study", admission="open", seed=5)
    with served(tmp_path / "study") as url:
        loaded(browser, url)
        drawn(browser)
        browser.run(
            "globalThis.usual = fetch; globalThis.fetch = (path, options) =>"
            " path === 'report' ? Promise.reject(new TypeError('lost')) : usual(path, options)"
        )
        browser.click("#send")
        wait_for(browser, "status", "cannot be reached")
        first = text(browser, "bytes")
        loaded(browser, url)
        wait_for(browser, "status", "send it again")
        browser.click("#send")
        wait_for(browser, "status", "Thank you")
        assert text(browser, "bytes") == first


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits(browser, digits, width, scheme):
    loaded(browser, digits, width=width, scheme=scheme)
    assert browser.run("document.documentElement.scrollWidth") <= width
    small = (
        "Array.from(document.querySelectorAll('button')).every((e) => e.getBoundingClientRect().height >= 44)"
    )
    assert browser.run(small)
    assert browser.errors == []


def test_the_bundle_is_that_of_the_client():
    built = client() / "dist/sqsgd.min.js"
    kept = Path(opening.__file__).with_name("digit_page") / "sqsgd.js"
    assert filecmp.cmp(built, kept, shallow=False), f"copy {built} to {kept}"
