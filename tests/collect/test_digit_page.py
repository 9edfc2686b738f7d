"""The page on which a person draws a digit, in a real browser against the real service."""

import filecmp
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from devices import ask, served, wait_until
from javascript import client
from test_relay import NGINX, RELAY, free_port, nginx

from sqsgd.federation.collect import rounds
from sqsgd.federation.collect.database import SqliteDatabase
from sqsgd.federation.collect.rounds import create_study

SEVEN = [(0.25, 0.25), (0.5, 0.25), (0.75, 0.25), (0.6, 0.55), (0.5, 0.85)]
SETTINGS = {
    "name": "Digits of friends", "users": 40, "rounds": 2, "softmax": True, "fewest": 1, "visits": "once",
}  # fmt: skip
STATIC = {"/", "/page.css", "/page.js", "/sqsgd.js"}


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
    wait_for(browser, "progress", "ound")


def drawn(browser, label=7):
    browser.draw("#drawing", SEVEN)
    browser.click(f"#labels input[value='{label}']")


def reports(url):
    return ask(url, "GET", "/round")[1]["reports"]


def paths(browser, url):
    """What the page asked of the service."""
    return {each.removeprefix(url) for each in browser.requests} - STATIC


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
    wait_for(browser, "gradient", "a gradient of 3,920 numbers")
    assert text(browser, "bytes") == "nothing yet"
    assert text(browser, "cost") == "ε 8"
    assert text(browser, "way") == "directly to the service"
    assert "The service sees the bytes and your address" in text(browser, "who")
    before = reports(digits)
    browser.click("#send")
    wait_for(browser, "status", "Thank you")
    sent = bytes.fromhex(text(browser, "bytes"))
    assert (len(sent), sent[0]) == (int(text(browser, "size")), 1) == (7, 1)
    assert text(browser, "when") == "now: in round 1 of 2, which is open"
    assert "ε 8 of at most 16" in text(browser, "spent")
    model = ask(digits, "GET", "/round")[1]["model"]
    assert paths(browser, digits) == {"/study", "/token", "/round", model, "/report"}
    wait_for(browser, "progress", f"{before + 1} reports so far")
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


@pytest.mark.skipif(NGINX is None, reason="no nginx here: apt-get install nginx-light")
def test_through_a_relay_of_another_origin(browser, tmp_path):
    """The browser lets the page ask the relay; model and report go through it alone, all requests alike."""
    port = free_port()
    relay = f"http://127.0.0.1:{port}/digits"
    make(tmp_path / "study", admission="open", relay=relay, reports=2, epsilon=4.0)
    with served(tmp_path / "study") as url, nginx(tmp_path / "nginx", RELAY, url, port):
        loaded(browser, url)
        wait_for(browser, "progress", "0 reports so far")
        assert text(browser, "way") == f"sealed, through the relay 127.0.0.1:{port}"
        assert "The relay sees your address and not the bytes" in text(browser, "who")
        assert text(browser, "cost") == "ε 8 for 2 reports"
        drawn(browser)
        old = "() => Promise.reject(new DOMException('', 'NotSupportedError'))"  # a browser without X25519
        browser.run(f"void (crypto.subtle.generateKey = {old})")
        browser.click("#send")
        wait_for(browser, "status", "Refused: this browser lacks X25519 or Ed25519, which relays need: use a")
        browser.run("void delete crypto.subtle.generateKey")
        browser.click("#send")
        wait_for(browser, "status", "Thank you")
        assert "This browser has made its 2 reports" in text(browser, "status")
        assert re.match(r"1,\d{3} bytes, as every request: sealed, ", text(browser, "way"))
        assert paths(browser, url) == {"/study", "/token", relay}
        wait_until(lambda: reports(url) == 2)  # the service counts once a second
        assert browser.errors == []


def test_a_drawn_round_is_shown_and_waited_for(browser, tmp_path, monkeypatch):
    """Nothing is sent before its time; then it is, if the page stays open."""
    shift, now = 0.0, SqliteDatabase.now
    monkeypatch.setattr(SqliteDatabase, "now", lambda self: now(self) + shift)
    begins = int(time.time()) + 3600
    make(tmp_path / "study", admission="open", visits="drawn", rounds=1, round_seconds=3600.0, begins=begins)
    with served(tmp_path / "study") as url:
        browser.connect(online=True)
        browser.open(url)
        wait_for(browser, "progress", "This study begins on ")
        assert "This browser drew round 1 of 1, on " in text(browser, "when")
        drawn(browser)
        browser.run("globalThis.timers = []; void (globalThis.setTimeout = (...given) => timers.push(given))")
        browser.click("#send")
        wait_for(browser, "status", "if this page stays open")
        assert text(browser, "bytes") == "nothing yet"
        assert browser.run("document.getElementById('send').disabled")
        shift = 7000.0  # its time has come, for the service and for the page
        browser.run("void (Date.now = () => 1e15)")
        wait_until(lambda: ask(url, "GET", "/round")[1]["state"] == "open")
        browser.run("void timers.find(([, time]) => time !== 1500)[0]()")
        wait_for(browser, "status", "Thank you")
        wait_until(lambda: reports(url) == 1)


def replace_fetch(browser, path, code):
    """Answer requests for paths with this name in another way."""
    browser.run(
        "globalThis.usual = fetch; void (globalThis.fetch = (path, options) =>"
        f" path.includes('/{path}') ? ({code}) : usual(path, options))"
    )


def test_the_report_is_of_what_was_drawn_at_the_click(browser, digits):
    """Clearing the drawing while the service answers changes nothing: no report of nothing is sent."""
    loaded(browser, digits)
    drawn(browser)
    wait_for(browser, "gradient", "a gradient")
    browser.run("void (globalThis.asked = new Promise((resolve) => { globalThis.model = resolve; }))")
    late = "new Promise((resolve) => { model({resolve}); }).then(() => usual(path, options))"
    replace_fetch(browser, "model", late)
    browser.click("#send")
    browser.run("asked.then(() => 1)")  # the page waits for the model
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


@pytest.mark.parametrize("broken", ["undefined", "{open: () => { throw new DOMException(); }}"])
def test_a_browser_without_storage_is_told_so(browser, digits, broken):
    script = f"Object.defineProperty(window, 'indexedDB', {{value: {broken}}})"
    added = browser.send("Page.addScriptToEvaluateOnNewDocument", source=script)
    try:
        browser.connect(online=True)
        browser.open(digits)
        wait_for(browser, "status", "Refused: this browser keeps no record of reports: allow this site")
        assert browser.run("document.getElementById('send').disabled")
        assert paths(browser, digits) <= {""}
    finally:
        browser.send("Page.removeScriptToEvaluateOnNewDocument", **added)


def test_the_example_of_the_client_reports(browser, digits):
    """The code in clients/js/README.md, with this service, in a page of its own."""
    example = (client() / "README.md").read_text().split("```js\n")[1].split("```")[0]
    code = re.sub(r'import (\{.*\}) from "sqsgd";', r'const \1 = await import("/sqsgd.js");', example)
    given = (
        "const service = location.origin, invitation = undefined;"
        "const pixels = new Uint8Array(784).fill(255, 300, 340);"
    )
    run = f"(async () => {{ {given} {code} return [done.accepted, await ledger.spent()]; }})()"
    loaded(browser, digits)
    before = reports(digits)
    for _ in range(2):  # the second visit has nothing left to do
        assert browser.run(run) == [1, 8]
    wait_until(lambda: reports(digits) == before + 1)  # the service counts once a second
    assert browser.errors == []


def test_the_bundle_is_that_of_the_client():
    built = client() / "dist/sqsgd.min.js"
    kept = Path(rounds.__file__).with_name("digit_page") / "sqsgd.js"
    assert filecmp.cmp(built, kept, shallow=False), f"copy {built} to {kept}"
