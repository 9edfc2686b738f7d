"""The page on which a person draws a digit, in a real browser against the real service."""

import filecmp
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from devices import ask, invited, served, wait_until
from javascript import client

from sqsgd.federation.collect import rounds
from sqsgd.federation.collect.rounds import create_study

SEVEN = [(0.25, 0.25), (0.5, 0.25), (0.75, 0.25), (0.6, 0.55), (0.5, 0.85)]
SETTINGS = {"name": "Digits of friends", "users": 40, "rounds": 2, "softmax": True, "fewest": 1}


def make(folder, **changes):
    arrays = {"weights": np.zeros(3920, np.float32)}
    return create_study(folder, arrays, {**SETTINGS, **changes}, page="digits")


def text(browser, name):
    return browser.run(f"document.getElementById({json.dumps(name)}).textContent")


def wait_for(browser, name, part):
    """Until an element says something. The deadline is for a page that failed."""
    deadline = time.monotonic() + 60
    while part not in (found := text(browser, name)):
        assert time.monotonic() < deadline, (found, text(browser, "status"), browser.errors)
        time.sleep(0.05)


def loaded(browser, url):
    browser.connect(online=True)
    browser.open(url)
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
    assert (len(sent), sent[0]) == (7, 1)
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
        said = text(browser, "status")
        assert "no invitation was given. What to do: ask the operator for an invitation" in said
        assert "ε 0 of" in text(browser, "spent")
        browser.errors.clear()  # a refused request is an error in the console
        browser.open("about:blank")
        loaded(browser, f"{url}#invitation={invitation}")
        drawn(browser)
        browser.click("#send")
        wait_for(browser, "status", "Thank you")
        assert browser.errors == []


def replace_fetch(browser, path, code):
    """Answer requests for paths that begin like this one in another way."""
    browser.run(
        "globalThis.usual = fetch; void (globalThis.fetch = (path, options) =>"
        f" path.startsWith({json.dumps(path)}) ? ({code}) : usual(path, options))"
    )


LOST = "Promise.reject(new TypeError('lost'))"


@pytest.mark.parametrize(("arrives", "reload"), [(True, False), (False, True)])
def test_a_report_whose_answer_was_lost_is_sent_again(browser, tmp_path, arrives, reload):
    """Whether or not the service has the report: the same bytes are sent, and no slot is taken for them."""
    study = make(tmp_path / "study")
    page = f"#invitation={invited(tmp_path / 'study', study, 1)[0]}"
    with served(tmp_path / "study") as url:
        browser.open("about:blank")
        loaded(browser, url + page)
        drawn(browser)
        replace_fetch(browser, "report", f"usual(path, options).then(() => {LOST})" if arrives else LOST)
        browser.click("#send")
        wait_for(browser, "status", "cannot be reached")
        first = text(browser, "bytes")
        if reload:
            browser.open("about:blank")
            loaded(browser, url + page)
            wait_for(browser, "status", "send it again")
        else:
            browser.run("void (globalThis.fetch = usual)")
        browser.requests.clear()
        browser.click("#send")
        wait_for(browser, "status", "Thank you")
        assert text(browser, "bytes") == first
        assert {each.removeprefix(url) for each in browser.requests} - {"/study"} == {"/report"}
        wait_for(browser, "progress", "1 of 20 reports")
        drawn(browser, 3)
        browser.click("#send")
        wait_for(browser, "status", "Refused: this browser has made its one report")


def test_a_model_that_could_ask_about_data_is_refused(browser, digits):
    """The service sends a bad weight to a device that has joined: no report, whatever was drawn."""
    for weight in ("-Infinity", "NaN", "2e13"):
        loaded(browser, digits)
        drawn(browser)
        bad = f"Promise.resolve(new Response(new Float32Array(3920).fill({weight}, 77, 78)))"
        replace_fetch(browser, "model", bad)
        browser.requests.clear()
        browser.click("#send")
        wait_for(browser, "status", "a model that this page does not use: weight 77")
        assert "ε 0 of" in text(browser, "spent")
        assert {each.removeprefix(digits) for each in browser.requests} == {"/join"}


def test_the_report_is_of_what_was_drawn_at_the_click(browser, digits):
    """Clearing the drawing while the service answers changes nothing: no report of nothing is sent."""
    loaded(browser, digits)
    drawn(browser)
    browser.run("void (globalThis.asked = new Promise((resolve) => { globalThis.join = resolve; }))")
    late = "new Promise((resolve) => { join({resolve}); }).then(() => usual(path, options))"
    replace_fetch(browser, "join", late)
    browser.click("#send")
    browser.run("asked.then(() => 1)")  # the page waits for its slot
    browser.click("#clear")
    browser.run("asked.then(({resolve}) => { resolve(); })")
    wait_for(browser, "status", "Thank you")
    assert browser.errors == []  # a report of zero in place of a failed gradient would be one


def test_what_epsilon_means_is_not_understated(browser, tmp_path):
    known = {1.0: "at most 73.2 % success", 8.0: "at most 99.97 %", 12.0: "does not limit"}
    for epsilon, said in known.items():
        make(tmp_path / f"{epsilon:g}", admission="open", epsilon=epsilon)
        with served(tmp_path / f"{epsilon:g}") as url:
            loaded(browser, url)
            assert said in text(browser, "meaning")


def test_the_page_does_not_work_inside_another(browser, digits):
    loaded(browser, digits)
    said = browser.run(
        "new Promise((resolve) => { const frame = document.createElement('iframe');"
        " frame.src = location.href;"
        " frame.onload = () => resolve(["
        " frame.contentDocument.getElementById('status').textContent,"
        " frame.contentDocument.querySelectorAll('#labels input').length]);"
        " document.body.append(frame); })"
    )
    assert said == ["This page does not work inside another page. Open it in a window of its own.", 0]


def test_the_example_of_the_client_reports(browser, digits):
    """The code in clients/js/README.md, with this service, in a page of its own."""
    example = (client() / "README.md").read_text().split("```js\n")[1].split("```")[0]
    code = re.sub(r'import (\{.*\}) from "sqsgd";', r'const \1 = await import("/sqsgd.js");', example)
    given = (
        "const service = location.origin, invitation = undefined;"
        "const pixels = new Uint8Array(784).fill(255, 300, 340);"
    )
    run = f"(async () => {{ {given} {code} return ledger.spent(); }})()"
    loaded(browser, digits)
    before = reports(digits)
    assert browser.run(run) == 8
    wait_until(lambda: reports(digits) == before + 1)  # the service counts once a second
    with pytest.raises(RuntimeError, match="this device has reported"):
        browser.run(run)
    assert browser.errors == []


def test_the_bundle_is_that_of_the_client():
    built = client() / "dist/sqsgd.min.js"
    kept = Path(rounds.__file__).with_name("digit_page") / "sqsgd.js"
    assert filecmp.cmp(built, kept, shallow=False), f"copy {built} to {kept}"
