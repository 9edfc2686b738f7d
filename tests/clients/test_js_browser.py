"""The JavaScript client in a real browser: reports, and the ledger in IndexedDB through crashes."""

import base64
import json
import time
from pathlib import Path

import pytest
from chromium import Chromium, find_chromium
from javascript import client

from sqsgd import Task, make_scheme

IDENTITY = "privunit-index 3920\nrotate 2 shared=0\nnearest 25 of 8192 vertices 8.0"
TASK = {"round": 3, "client": "12", "seed": "99", "dim": 3920, "bound": 0.5}
PREPARE = f"""
  globalThis.scheme = new sqsgd.Scheme({json.dumps(IDENTITY)}, 2);
  globalThis.task = sqsgd.makeTask({json.dumps(TASK)});
  globalThis.gradient = Float32Array.from({{length: 3920}}, (_, i) => Math.sin(i) / 100);
  globalThis.hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  globalThis.drawn = 0;
  globalThis.report = (study, other = task, from = scheme) => ledger
    .report(study, from, other, () => {{ drawn++; return gradient; }})
    .then(hex, (error) => error.reason ?? String(error));
"""


EMPTY = """indexedDB.databases().then((all) => Promise.all(all.map(({name}) =>
  new Promise((resolve) => { indexedDB.deleteDatabase(name).onsuccess = () => resolve(); }))))"""


class Device:
    """A browser with a profile on disk, whose page has loaded the minified client."""

    def __init__(self, folder: Path, cap: float = 8.0) -> None:
        program = find_chromium()
        if program is None:
            pytest.skip("no Chromium: apt-get install chromium, or name one in $SQSGD_CHROMIUM")
        self.code = base64.b64encode((client() / "dist/sqsgd.min.js").read_bytes()).decode()
        self.page = folder / "page.html"
        self.page.write_text("<!doctype html><title>device</title>")
        self.browser = Chromium(program, folder / "profile")
        self.load(cap)

    def load(self, cap, *, empty=False):
        """Load the page; ``empty``: with nothing left of what was stored before."""
        self.browser.open(self.page)
        if empty:
            self.run(EMPTY)
        module = f"data:text/javascript;base64,{self.code}"
        self.run(f"import('{module}').then((all) => {{ globalThis.sqsgd = all; }})")
        self.run(f"(() => {{ {PREPARE} }})()")
        self.run(f"sqsgd.Ledger.open({cap}).then((ledger) => {{ globalThis.ledger = ledger; }})")

    def run(self, code):
        return self.browser.run(code)

    def crash(self) -> None:
        """Kill the browser without a chance to write anything."""
        self.browser._process.kill()
        self.browser._process.wait()


@pytest.fixture
def start(tmp_path):
    """Starts a browser, always with the same profile; the last one is closed at the end."""
    started = []

    def make(cap=8.0):
        started.append(Device(tmp_path, cap))
        return started[-1]

    yield make
    for each in started[-1:]:
        each.browser.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One browser for all tests that do not kill it."""
    device = Device(tmp_path_factory.mktemp("shared"))
    yield device
    device.browser.close()


@pytest.fixture
def fresh(shared):
    """A device that has stored nothing, with a cap."""

    def make(cap=8.0):
        shared.load(cap, empty=True)
        return shared

    return make


@pytest.fixture
def device(fresh):
    return fresh()


def test_one_report_per_study(device):
    message = device.run("report('digits')")
    assert len(message) == 14
    assert message.startswith("01")
    scheme = make_scheme("privunit-index", dim=3920, epsilon=8.0, nearest=25)
    assert scheme.identity == IDENTITY
    read = scheme.decode(bytes.fromhex(message), Task(round=3, client=12, seed=99, dim=3920, bound=0.5))
    assert read.shape == (3920,)
    # Not yet confirmed: the same bytes again, for the same request alone.
    assert device.run("report('digits')") == message
    for change in ("round: 4", "client: 13n", "seed: 98n", "bound: 0.6", "clip: 1"):
        assert device.run(f"report('digits', {{...task, {change}}})") == "changed"
    assert "RangeError" in device.run("report('digits', {...task, dim: 3919})")
    other = json.dumps(IDENTITY.replace("nearest 25", "nearest 24"))
    assert device.run(f"report('digits', task, new sqsgd.Scheme({other}, 2))") == "changed"
    assert device.run("drawn") == 1
    device.run("ledger.confirm('digits')")
    assert device.run("report('digits')") == "reported"
    # Another study is another report, which the cap does not allow.
    assert device.run("report('letters')") == "cap"
    assert device.run("drawn") == 1
    assert device.run("ledger.spent()") == 8.0
    assert device.run("ledger.entries().then((all) => all.map((entry) => entry.message))") == [None]
    assert device.browser.errors == []


def test_killed_at_any_moment_no_report_is_seen_without_its_entry(start):
    """Whatever the page could have sent when it was killed is stored, and is what the next page sends.

    None: it is killed as soon as it has a report.
    """
    device = start(100.0)
    for number, seconds in enumerate((0.0, 0.003, 0.02, None)):
        study = f"study {number}"
        device.browser.printed.clear()
        device.run(f"void report('{study}').then((message) => {{ console.info(message); }})")
        deadline = time.monotonic() + (60 if seconds is None else seconds)
        while time.monotonic() < deadline and (seconds is not None or not device.browser.printed):
            device.browser.drain()
        device.crash()
        device.browser.drain()
        shown = device.browser.printed
        assert shown or seconds is not None
        device = start(100.0)
        entries = "ledger.entries().then((all) => all.map((entry) => [entry.study, hex(entry.message)]))"
        stored = [message for name, message in device.run(entries) if name == study]
        assert shown in ([], stored)
        message = device.run(f"report('{study}')")
        assert device.run("drawn") == 1 - len(stored)
        assert [message] == (stored or [message])
        assert device.run("ledger.spent()") == 8.0 * (number + 1)


def test_after_a_crash_the_same_bytes_are_sent_and_nothing_is_drawn(start):
    """Neither the ticket, nor a report, nor one that the service has confirmed."""
    device = start()
    tickets = device.run("Promise.all(Array.from({length: 8}, () => ledger.ticket('digits')))")
    assert len(set(tickets)) == 1
    assert len(bytes.fromhex(tickets[0])) == 32
    assert device.run("ledger.ticket('letters')") != tickets[0]
    message = device.run("report('digits')")
    device.crash()
    device = start()
    # A second connection, as another tab has.
    assert device.run("sqsgd.Ledger.open(8).then((tab) => tab.ticket('digits'))") == tickets[0]
    assert device.run("report('digits')") == message
    device.run("ledger.confirm('digits')")
    device.crash()
    device = start()
    assert device.run("ledger.ticket('digits').catch((error) => error.reason)") == "reported"
    assert device.run("report('digits')") == "reported"
    assert device.run("drawn") == 0


def test_every_step_waits_for_the_disk(device):
    """A kill finds the moment between a promise and its transaction too rarely; this sees their order."""
    for step in ("ledger.ticket('digits')", "report('digits')", "ledger.confirm('digits')"):
        found = device.run(
            f"""(async () => {{
              const order = [], usual = IDBDatabase.prototype.transaction;
              IDBDatabase.prototype.transaction = function (...given) {{
                const made = usual.apply(this, given);
                if (given[1] === "readwrite") {{
                  order.push(made.durability);
                  made.addEventListener("complete", () => order.push("complete"));
                }}
                return made;
              }};
              await {step};
              IDBDatabase.prototype.transaction = usual;
              return [...order, "resolved"];
            }})()"""
        )
        assert found == ["strict", "complete", "resolved"], step


def test_no_refusal_depends_on_the_vector(fresh):
    """A vector that cannot be computed or encoded is a report of zero, which is paid for like any other."""
    device = fresh(48.0)
    for number, compute in enumerate(
        (
            "() => gradient.slice().fill(NaN, 7, 8)",
            "() => gradient.slice().fill(-Infinity, 7, 8)",
            "() => gradient.slice().fill(1e14)",
            "() => gradient.subarray(1)",
            "() => { throw new Error('of the data'); }",
            "() => Promise.reject(new Error('of the data'))",
        ),
        start=1,
    ):
        message = device.run(f"ledger.report('study {number}', scheme, task, {compute}).then(hex)")
        assert len(message) == 14
        assert device.run("ledger.spent()") == 8.0 * number
        assert device.run(f"report('study {number}')") == message
        assert device.run("drawn") == 0
        assert len(device.browser.errors) == number
        assert "zero is reported" in device.browser.errors[-1]  # the device's owner can see it


def test_what_is_reported_in_place_of_a_bad_vector_is_zero(fresh):
    """At a large epsilon the report of zero is the first vertex, with either sign half of the time."""
    device = fresh(1e6)
    found = device.run(
        """(async () => {
          const exact = new sqsgd.Scheme("privunit-index 64\\nnearest 1 of 128 vertices 50.0", 2);
          const one = sqsgd.makeTask({round: 0, client: 0, seed: 1, dim: 64, bound: 1});
          const codes = [];
          for (let i = 0; i < 40; i++) {
            const bad = () => new Float32Array(64).fill(NaN);
            const message = await ledger.report(`study ${i}`, exact, one, bad);
            codes.push(exact.open(message, one)[0][0]);
          }
          return codes;
        })()"""
    )
    assert set(found) == {0, 1}


def test_a_request_that_does_not_fit_is_refused_before_any_data_are_used(device):
    assert "task.dim" in device.run("report('digits', {...task, dim: 5})")
    assert "bound" in device.run("report('digits', {...task, bound: NaN})")
    assert device.run("drawn") == 0
    assert device.run("ledger.spent()") == 0


def test_two_tabs_send_one_report(fresh):
    """Both draw, one is stored, and both get the stored one."""
    device = fresh(100.0)
    both = device.run("Promise.all(Array.from({length: 8}, () => report('digits')))")
    assert len(set(both)) == 1
    assert device.run("drawn") > 1, "the race did not happen"
    studies = device.run("Promise.all(Array.from({length: 20}, (_, i) => report('study ' + i)))")
    assert sum(len(found) == 14 for found in studies) == 11, "the cap holds in a race too"
    assert device.run("ledger.spent()") == 96.0
