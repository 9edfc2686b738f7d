"""The JavaScript client in a real browser: reports, and the ledger in IndexedDB through crashes."""

import base64
import json
import time
from pathlib import Path

import pytest
from chromium import Chromium
from javascript import client

from sqsgd.cli.doctor import find_chromium

IDENTITY = "privunit-index 3920\nrotate 2 shared=0\nnearest 25 of 8192 vertices 8.0"
TASK = {"round": 3, "client": "12", "seed": "99", "dim": 3920, "bound": 0.5}
PREPARE = f"""
  globalThis.scheme = new sqsgd.Scheme({json.dumps(IDENTITY)}, 2);
  globalThis.task = sqsgd.makeTask({json.dumps(TASK)});
  globalThis.gradient = Float32Array.from({{length: 3920}}, (_, i) => Math.sin(i) / 100);
  globalThis.hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  globalThis.drawn = 0;
  globalThis.report = (study, epsilon = scheme.epsilon, request = "slot 12") => ledger
    .report(study, epsilon, request, () => {{ drawn++; return scheme.encode(gradient, task); }})
    .then(hex, (error) => error.reason ?? String(error));
"""


class Device:
    """A browser with a profile on disk, whose page has loaded the minified client."""

    def __init__(self, folder: Path, cap: float = 8.0) -> None:
        program = find_chromium()
        if program is None:
            pytest.skip("no Chromium: apt-get install chromium, or name one in $SQSGD_CHROMIUM")
        code = base64.b64encode((client() / "dist/sqsgd.min.js").read_bytes()).decode()
        page = folder / "page.html"
        page.write_text("<!doctype html><title>device</title>")
        self.browser = Chromium(program, folder / "profile")
        self.browser.open(page)
        self.run(f"import('data:text/javascript;base64,{code}').then((all) => {{ globalThis.sqsgd = all; }})")
        self.run(f"(() => {{ {PREPARE} }})()")
        self.run(f"sqsgd.Ledger.open({cap}).then((ledger) => {{ globalThis.ledger = ledger; }})")

    def run(self, code):
        return self.browser.run(code)

    def crash(self) -> None:
        """Kill the browser without a chance to write anything."""
        self.browser._process.kill()
        self.browser._process.wait()


def test_one_report_per_study(tmp_path):
    device = Device(tmp_path)
    try:
        message = device.run("report('digits')")
        assert len(message) == 14
        assert message.startswith("02")
        # Not yet confirmed: the same bytes again, for the same request alone.
        assert device.run("report('digits')") == message
        assert device.run("report('digits', scheme.epsilon, 'slot 13')") == "changed"
        assert device.run("drawn") == 1
        device.run("ledger.confirm('digits')")
        assert device.run("report('digits')") == "reported"
        # Another study is another report, which the cap does not allow.
        assert device.run("report('letters')") == "cap"
        assert device.run("drawn") == 1
        assert device.run("ledger.spent()") == 8.0
        assert device.run("ledger.entries().then((all) => all.map((entry) => entry.message))") == [None]
        assert device.browser.errors == []
    finally:
        device.browser.close()


def test_after_a_crash_the_same_bytes_are_sent_and_nothing_is_drawn(tmp_path):
    device = Device(tmp_path)
    message = device.run("report('digits')")
    device.crash()
    device = Device(tmp_path)
    assert device.run("report('digits')") == message
    assert device.run("drawn") == 0
    device.run("ledger.confirm('digits')")
    device.crash()
    device = Device(tmp_path)
    try:
        assert device.run("report('digits')") == "reported"
        assert device.run("drawn") == 0
    finally:
        device.browser.close()


@pytest.mark.parametrize("seconds", [0.0, 0.003, 0.02])
def test_killed_at_any_moment_no_draw_is_seen_without_its_entry(seconds, tmp_path):
    """Whatever the page could have sent when it was killed is what the next one sends."""
    device = Device(tmp_path)
    device.run("void report('digits').then((message) => { console.info(message); })")
    time.sleep(seconds)
    shown = device.run("ledger.entries().then((all) => all.map((entry) => hex(entry.message)))")
    device.crash()
    device = Device(tmp_path)
    try:
        stored = device.run("ledger.entries().then((all) => all.map((entry) => hex(entry.message)))")
        assert stored[: len(shown)] == shown
        message = device.run("report('digits')")
        assert device.run("drawn") == 1 - len(stored)
        assert [message] == (stored or [message])
        assert device.run("ledger.spent()") == 8.0
    finally:
        device.browser.close()


def test_two_tabs_send_one_report(tmp_path):
    """Both draw, one is stored, and both get the stored one."""
    device = Device(tmp_path, cap=100.0)
    try:
        both = device.run("Promise.all(Array.from({length: 8}, () => report('digits')))")
        assert len(set(both)) == 1
        assert device.run("drawn") > 1, "the race did not happen"
        studies = device.run("Promise.all(Array.from({length: 20}, (_, i) => report('study ' + i)))")
        assert sum(len(found) == 14 for found in studies) == 11, "the cap holds in a race too"
        assert device.run("ledger.spent()") == 96.0
    finally:
        device.browser.close()


def test_a_report_of_a_browser_is_read_by_python(tmp_path):
    from dataclasses import replace

    from sqsgd import Task, make_scheme

    scheme = replace(make_scheme("privunit-index", dim=3920, epsilon=8.0, nearest=25), wire=2)
    assert scheme.identity == IDENTITY
    task = Task(round=3, client=12, seed=99, dim=3920, bound=0.5)
    device = Device(tmp_path, cap=8.0)
    try:
        message = bytes.fromhex(device.run("report('digits')"))
        assert scheme.decode(message, task).shape == (3920,)
    finally:
        device.browser.close()
