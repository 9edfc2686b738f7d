"""The JavaScript client in a real browser against the real service: crashes, tabs, services that lie."""

import base64
import contextlib
import json
import shutil
import time
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("pyhpke", reason="needs pip install 'sqsgd[collect]'")

from chromium import Chromium, find_chromium
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from devices import make, served, wait_until
from javascript import client

from sqsgd.federation.collect.database import SqliteDatabase
from sqsgd.federation.collect.intake import task_of
from sqsgd.federation.collect.oblivious import GatewayKey, sign_keys
from sqsgd.federation.collect.rounds import full_status, opened
from sqsgd.federation.collect.service import Service
from sqsgd.federation.collect.study import GATEWAY_KEY, read_key

EPSILON = 0.5  # so small that a report that is encoded again differs
PREPARE = """
  globalThis.hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  globalThis.gradient = Float32Array.from({length: 16}, (_, i) => Math.sin(i) / 100);
  globalThis.computed = 0;
  globalThis.sent = [];
  globalThis.onsend = ({message}) => { sent.push(hex(message)); console.info(hex(message)); };
  globalThis.compute = () => { computed++; return gradient; };
  globalThis.begin = (options) => sqsgd.Visit.begin(ledger, location.origin, {onsend, ...options});
  globalThis.said = (error) => error.reason ?? (error.code || String(error));
  globalThis.report = (work = compute, options = {}) =>
    begin(options).then((visit) => visit.report(work)).catch(said);
  globalThis.parts = () => ledger.parts().then((all) => all.map(({reports}) => reports.map((report) =>
    ({...report, blind: report.blind && String(report.blind.r), token: report.token && hex(report.token)}))));
  globalThis.usual = fetch;
  globalThis.instead = (path, answer) => { globalThis.fetch = (url, options) =>
    String(url).includes(path) ? answer(url, options) : usual(url, options); };
"""
EMPTY = """indexedDB.databases().then((all) => Promise.all(all.map(({name}) =>
  new Promise((resolve) => { indexedDB.deleteDatabase(name).onsuccess = () => resolve(); }))))"""
LOST = "() => Promise.reject(new TypeError('lost'))"


class Device:
    """A browser with a profile on disk, whose page comes from the service."""

    def __init__(self, folder: Path, url: str, cap: float = 100.0) -> None:
        program = find_chromium()
        if program is None:
            pytest.skip("no Chromium: apt-get install chromium, or name one in $SQSGD_CHROMIUM")
        self.browser = Chromium(program, folder / "profile")
        self.browser.connect(online=True)
        self.load(url, cap)

    def load(self, url, cap=100.0, *, empty=False):
        """Load the page; ``empty``: with nothing left of what was stored before."""
        self.browser.open(url)
        if empty:
            self.run(EMPTY)
        self.run("import('/sqsgd.js').then((all) => { globalThis.sqsgd = all; })")
        self.run(f"(() => {{ {PREPARE} }})()")
        self.run(f"sqsgd.Ledger.open({cap}).then((ledger) => {{ globalThis.ledger = ledger; }})")

    def run(self, code):
        return self.browser.run(code)

    def crash(self) -> None:
        """Kill the browser without a chance to write anything."""
        self.browser._process.kill()
        self.browser._process.wait()


class Server:
    """A study of single visits, its service, and the reports that it was asked to take."""

    def __init__(self, folder, stack, patch, **values):
        settings = {"admission": "open", "users": 1000, "rounds": 1, "fewest": 1, "epsilon": EPSILON}
        self.folder, self.study = folder, make(folder, **{**settings, **values})
        (folder / "page").mkdir()
        (folder / "page/index.html").write_text("<!doctype html><link rel=icon href=data:>")
        shutil.copy(client() / "dist/sqsgd.min.js", folder / "page/sqsgd.js")
        self.asked, answer = [], Service.answer

        async def watched(service, request, **way):
            self.asked.append(request)
            return await answer(service, request, **way)

        patch.setattr(Service, "answer", watched)
        self.url = stack.enter_context(served(folder))

    @property
    def bodies(self):
        """For each token the different requests that held it."""
        found = defaultdict(set)
        for request in self.asked:
            if request.path == "/report":
                found[json.loads(request.body)["token"]].add(request.body)
        return found

    @property
    def accepted(self):
        with opened(self.folder) as (study, database):
            return full_status(database, study)["all_reports"]

    def codes(self):
        """The symbols of all reports."""
        for body in set().union(*self.bodies.values()):
            found = json.loads(body)
            message = base64.urlsafe_b64decode(found["report"] + "==")
            yield self.study.made_scheme.open(message, task_of(self.study, found["round"]))[0][0]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a study and a browser, later again with the same profile; the last one is closed at the end."""
    browsers, found = [], {}
    with contextlib.ExitStack() as stack:

        def begin(**values):
            if not found:
                found["server"] = Server(tmp_path / "study", stack, monkeypatch, **values)
            browsers.append(Device(tmp_path, found["server"].url))
            return browsers[-1], found["server"]

        yield begin
        for each in browsers[-1:]:
            each.browser.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One browser for all tests that do not kill it."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("shared")
        device = Device(folder, Server(folder / "study", stack, patch).url)
        yield device
        device.browser.close()


@pytest.fixture
def fresh(shared, tmp_path, monkeypatch):
    """A new study, and a device that has stored nothing."""
    with contextlib.ExitStack() as stack:

        def begin(cap=100.0, **values):
            server = Server(tmp_path / "study", stack, monkeypatch, **values)
            shared.load(server.url, cap, empty=True)
            return shared, server

        yield begin


def test_one_report(fresh):
    """It counts once, costs once, and nothing on the device tells afterwards which one it was."""
    device, server = fresh(cap=EPSILON)
    found = device.run("report((weights) => { globalThis.seen = [...weights]; return compute(); })")
    assert found == {"accepted": 1, "waiting": 0, "missed": 0, "seconds": None}
    assert device.run("seen") == [0.0] * server.study.dim
    assert device.run("[sent.length, computed]") == [1, 1]
    assert device.run("ledger.spent()") == EPSILON
    assert server.accepted == 1
    assert device.run("report()") == found
    assert device.run("computed") == 1
    assert len(server.bodies) == 1
    assert device.run("parts()") == [[{"state": "accepted", "round": None, "due": 0, "epsilon": EPSILON}]]
    assert device.browser.errors == []


def test_every_step_waits_for_the_disk(fresh):
    """Terms and draws, then tokens, payment, then the app computes, the request is stored, then sent."""
    device, _ = fresh()
    found = device.run(
        """(async () => {
          const order = [], transaction = IDBDatabase.prototype.transaction;
          IDBDatabase.prototype.transaction = function (...given) {
            const made = transaction.apply(this, given);
            if (given[1] === "readwrite") {
              order.push(made.durability);
              made.addEventListener("complete", () => order.push("stored"));
            }
            return made;
          };
          const asked = (url, options) => {
            order.push(new URL(url).pathname.split("/")[1]);
            return usual(url, options);
          };
          instead("/", asked);
          await report(() => { order.push("compute"); return gradient; });
          IDBDatabase.prototype.transaction = transaction;
          return [...order, "end"];
        })()"""
    )
    stored = ["strict", "stored"]
    assert found == [
        "study", *stored, "token", *stored, "round", "model", *stored, "compute", *stored,
        "report", *stored, "end",
    ]  # fmt: skip


def test_killed_at_any_moment_no_report_is_seen_unpaid_or_twice(start):
    """None: it is killed as soon as it has sent a report."""
    device, server = start(reports=5)
    for seconds in (0.0, 0.03, 0.1, None):
        before = len(server.bodies)
        device.run("void report()")
        end = time.monotonic() + (60 if seconds is None else seconds)
        while time.monotonic() < end and (seconds is not None or len(server.bodies) == before):
            device.browser.drain()
        device.crash()
        device, _ = start()
        paid = round(device.run("ledger.spent()") / EPSILON)
        assert len(server.bodies) <= paid <= len(server.bodies) + 1
    assert device.run("report()")["accepted"] == 5
    assert device.run("ledger.spent()") == 5 * EPSILON
    assert server.accepted == len(server.bodies) == 5
    assert {len(bodies) for bodies in server.bodies.values()} == {1}, "a report was encoded again"


@pytest.mark.parametrize("path", ["/token", "/round", "/model", "/report"])
@pytest.mark.parametrize("arrives", [True, False])
def test_a_lost_answer_costs_nothing(fresh, path, arrives):
    """The same bytes are sent again, also by a new page: to the issuer and to the service."""
    device, server = fresh()
    lost = f"(url, options) => usual(url, options).then({LOST})" if arrives else LOST
    device.run(f"instead('{path}', {lost})")
    assert "cannot be reached" in device.run("report()")
    device.load(server.url)
    assert device.run("report()")["accepted"] == 1
    tokens = {request.body for request in server.asked if request.path == "/token"}
    assert [len(tokens), len(server.bodies), server.accepted] == [1, 1, 1]
    assert {len(bodies) for bodies in server.bodies.values()} == {1}
    assert device.run("computed") == (path != "/report")
    assert device.run("ledger.spent()") == EPSILON


BAD = (
    "() => gradient.slice().fill(NaN, 7, 8)",
    "() => gradient.slice().fill(-Infinity, 7, 8)",
    "() => gradient.slice().fill(1e14)",
    "() => gradient.subarray(1)",
    "() => { throw new Error('of the data'); }",
    "() => Promise.reject(new Error('of the data'))",
)


def test_no_refusal_depends_on_the_vector(fresh):
    """A vector that cannot be computed or encoded is a report of zero, which is paid for like any other."""
    device, server = fresh(reports=len(BAD))
    found = device.run(f"report((n => () => [{', '.join(BAD)}][n++]())(0))")
    assert found["accepted"] == server.accepted == len(BAD)
    assert device.run("ledger.spent()") == EPSILON * len(BAD)
    assert len(device.browser.errors) == len(BAD)
    assert "zero is reported" in device.browser.errors[-1]  # the device's owner can see it


def test_what_is_reported_in_place_of_a_bad_vector_is_zero(fresh):
    """At a large epsilon the report of zero is the first vertex, with either sign half of the time."""
    options = {"rotation": "round", "nearest": 1}
    device, server = fresh(1e6, reports=40, scheme="privunit-index", epsilon=50.0, dim=64, options=options)
    assert device.run(f"report({BAD[0]})")["accepted"] == 40
    assert set(server.codes()) == {0, 1}


def test_the_cap_holds_before_the_app_computes_and_over_tabs(fresh):
    device, server = fresh(cap=11 * EPSILON, reports=20)
    tab = f"sqsgd.Ledger.open({11 * EPSILON}).then((own) => sqsgd.Visit.begin(own, location.origin))"
    each = f"{tab}.then((visit) => visit.report(compute)).catch(said)"
    device.run("begin().then((visit) => visit.join())")
    assert set(device.run(f"Promise.all([1, 2, 3].map(() => {each}))")) == {"cap"}
    before = device.run("computed")
    assert device.run("report()") == "cap"
    assert device.run("computed") == before
    assert [server.accepted, len(server.bodies), device.run("ledger.spent()")] == [11, 11, 11 * EPSILON]
    assert {len(bodies) for bodies in server.bodies.values()} == {1}


def test_two_tabs_send_one_report(fresh):
    """One that computes until the other's report is accepted sends nothing."""
    device, server = fresh()
    found = device.run(
        """(async () => {
          const slow = Promise.withResolvers();
          const late = report(() => slow.promise.then(compute));
          const first = await report();
          slow.resolve();
          const second = await late, [{reports}] = await ledger.parts();
          const kept = Object.keys(reports[0]).sort().join();
          return [first.accepted, second.accepted, computed, sent.length, kept];
        })()"""
    )
    assert found == [1, 1, 2, 1, "due,epsilon,round,state"]
    assert [len(bodies) for bodies in server.bodies.values()] == [1]
    device.load(server.url, empty=True)
    found = device.run(
        """(async () => {
          const all = Promise.withResolvers(), wait = () => (++computed === 8 && all.resolve(), all.promise);
          const each = () => report(() => wait().then(() => gradient));
          const found = await Promise.all(Array.from({length: 8}, each));
          return [computed, found.map(({accepted}) => accepted), new Set(sent).size];
        })()"""
    )
    assert found == [8, [1] * 8, 1]


def changed(known):
    """An answer with other values than the service's."""
    return (
        "(url, options) => usual(url, options).then((answer) => answer.json())"
        f".then((known) => new Response(JSON.stringify({known})))"
    )


LIES = [
    *(("/model", f"() => Promise.resolve(new Response(new Float32Array(16).fill({bad}, 7, 8)))", "study")
      for bad in ("NaN", "-Infinity", "2e13")),
    ("/model", "() => Promise.resolve(new Response('short'))", "study"),
    ("/round", changed("{...known, study: '00'}"), "changed"),
    ("/round", changed("{...known, round: 1}"), "not one of this study"),
    ("/round", changed("{...known, round: '0'}"), "not one of this study"),
    ("/round", changed("null"), "changed"),
    ("/token", "() => Promise.resolve(new Response(new Uint8Array(256).fill(7)))", "changed"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "answer", "said"), LIES)
def test_a_service_that_lies_learns_nothing(fresh, path, answer, said):
    """Models that could ask about data, rounds of other studies, tokens of other keys: nothing is paid."""
    device, server = fresh()
    device.run(f"instead('{path}', {answer})")
    assert said in device.run("report()")
    assert [device.run("computed"), device.run("ledger.spent()"), len(server.bodies)] == [0, 0, 0]


def test_the_named_and_the_first_study_are_insisted_on(fresh):
    device, server = fresh()
    for options in ("{study: '00'}", "{invitation: 'A'.repeat(60)}"):
        assert device.run(f"report(compute, {options})") == "changed"
        assert device.run("parts()") == []
    device.run("begin().then(() => 0)")
    device.run(f"instead('/study', {changed('{...known, seed: 1}')})")  # never asked for again
    assert device.run("report()")["accepted"] == server.accepted == 1


def test_a_relay_that_replaces_the_keys_reads_nothing(fresh):
    """Nothing is sealed with a key that the study did not sign, or not for today."""
    device, server = fresh(relay="http://127.0.0.1:1/relay")
    signer, made = read_key(server.folder / GATEWAY_KEY, server.study.gateway_key), GatewayKey(1, bytes(32))
    gateway = "usual('/.well-known/ohttp-gateway', options)"
    until = int(time.time()) + 60
    other = Ed25519PrivateKey.generate()
    for keys in (
        made.configuration,
        sign_keys(made.configuration, until, other),
        sign_keys(made.configuration, until - 120, signer),
    ):
        given = f"Promise.resolve(new Response(Uint8Array.from({list(keys)})))"
        device.run(f"instead('/relay', (_, options) => options.method === 'GET' ? {given} : {gateway})")
        assert device.run("report()") == "changed"
    found = [device.run("computed"), device.run("ledger.spent()"), len(server.bodies)]
    assert (found, {request.path for request in server.asked} - {"/sqsgd.js", "/"}) == (
        [0, 0, 0], {"/study", "/token"},
    )  # fmt: skip
    device.run(f"instead('/relay', (_, options) => {gateway})")
    assert device.run("report()")["accepted"] == server.accepted == 1


def test_rounds_are_drawn_once_and_kept(start):
    """Also by a browser that is killed; before its time it sends nothing, and asks nothing."""
    begins = int(time.time()) + 10**6
    drawing = {"visits": "drawn", "rounds": 9, "round_seconds": 3600.0, "begins": begins}
    device, server = start(reports=4, **drawing)
    device.run("begin().then((visit) => visit.join())")
    places = "parts().then(([all]) => all.map(({round, due}) => [round, due]))"
    drawn = device.run(places)
    for number, due in drawn:
        assert 0 <= due - server.study.opens(number) < 0.9 * 3600
    assert len({due for _, due in drawn}) == 4
    device.crash()
    device, _ = start()
    found = device.run("report()")
    assert found["waiting"] == 4
    assert 10**6 - 600 < found["seconds"] <= min(due for _, due in drawn) - time.time() + 60
    assert device.run(places) == drawn
    assert "/round" not in {request.path for request in server.asked}


def test_each_report_is_sent_in_its_round(fresh, monkeypatch):
    """Time passes when the test says so, for the service and for the browser; the last one is missed."""
    shift, now = 0.0, SqliteDatabase.now
    monkeypatch.setattr(SqliteDatabase, "now", lambda self: now(self) + shift)
    drawing = {"visits": "drawn", "rounds": 3, "round_seconds": 3600.0, "begins": int(time.time()) + 3600}
    device, server = fresh(reports=5, **drawing)
    device.run("begin().then((visit) => visit.join())")
    device.run(
        "globalThis.clock = Date.now; globalThis.shift = 0; void (Date.now = () => clock() + 1000 * shift)"
    )
    drawn = device.run(
        "parts().then(([all]) => all.map(({round, due}) => [due, round]).sort((a, b) => a[0] - b[0]))"
    )
    for sent, (due, _) in enumerate(drawn[:-1], start=1):
        shift = due - time.time() + 0.5
        device.run(f"void (shift = {shift})")
        wait_until(lambda sent=sent: device.run("report()")["accepted"] >= sent)
    rounds = [json.loads(body)["round"] for bodies in server.bodies.values() for body in bodies]
    assert rounds == [number for _, number in drawn][: len(rounds)]
    shift += 4 * 3600
    device.run(f"void (shift = {shift})")
    wait_until(lambda: device.run("report()")["waiting"] == 0)
    found = device.run("report()")
    assert (found["accepted"], found["missed"]) == (server.accepted, 5 - server.accepted)
    assert device.run("ledger.spent()") == EPSILON * len(server.bodies)
