"""``sqsgd.Device``: against a real service, and against servers that change their answers between visits."""

import contextlib
import json

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs pip install 'sqsgd[collect]'")

from devices import invited, make, served

from sqsgd import Device, Task, make_scheme
from sqsgd.federation.collect.device import TERMS, ServiceRefused, StudyRefused
from sqsgd.privacy.ledger import AlreadyAnswered, BudgetSpent, ReportRefused

DIM = 16


def ones(weights):
    return np.full(weights.size, 0.1, np.float32)


class Server:
    """A study without HTTP, whose answers a test may change; it keeps what devices send."""

    def __init__(self, scheme="privunit-index", epsilon=4.0, **options):
        made = make_scheme(scheme, dim=DIM, epsilon=epsilon, bytes=64, **options)
        self.study = {
            "study": "study-1", "scheme": scheme, "dim": DIM, "asked_epsilon": epsilon, "bytes": 64,
            "options": options, "fingerprint": f"{made.fingerprint:08x}",
        }  # fmt: skip
        self.task = {"round": 3, "client": 7, "seed": 5, "dim": DIM, "bound": 1.0, "clip": None}
        self.model, self.weights = "/model", np.zeros(DIM, "<f4")
        self.reports, self.failing = [], set()

    def __call__(self, url, body, headers):
        path = url.removeprefix("https://study.example")
        if path in self.failing:
            raise ServiceRefused(503, "busy")
        if path == "/study":
            return json.dumps(self.study).encode()
        if path == "/join":
            return json.dumps({"task": self.task, "model": self.model}).encode()
        if path == "/report":
            self.reports.append((headers["Authorization"], body))
            return b'{"accepted": true}'
        return self.weights.tobytes()


def device(folder, server, max_epsilon=8.0):
    return Device(folder / "device", max_epsilon=max_epsilon, transport=server)


def visit(device, gradient=ones, **options):
    return device.report("https://study.example", gradient, **options)


def test_a_real_study(tmp_path):
    """Nine devices of nine; a second visit sends the same bytes, which count once."""
    study = make(tmp_path / "study", users=9, rounds=1)
    with served(tmp_path / "study") as url:
        for number, invitation in enumerate(invited(tmp_path / "study", study, 9)):
            made = Device(tmp_path / f"device-{number}", max_epsilon=8.0)
            assert made.report(url, ones, invitation=invitation)["again"] is False
            assert float(made.ledger.spent) == 8.0
            if number < 8:  # the ninth ends the study
                again = Device(tmp_path / f"device-{number}").report(url, ones, invitation=invitation)
                assert again["again"] is True
        with pytest.raises(ServiceRefused, match="invitation"):
            Device(tmp_path / "other", max_epsilon=8.0).report(url, ones, invitation="wrong")


def test_a_clear_message_is_never_made(tmp_path):
    """The attack on a device that stores first and pays later: fedsgd first, then a cheap epsilon."""
    server = Server("fedsgd")
    made = device(tmp_path, server)
    seen = []
    with pytest.raises(StudyRefused, match="fedsgd"):
        visit(made, lambda weights: seen.append(1) or ones(weights))
    server.study = Server(epsilon=0.01).study
    visit(made)
    assert seen == []
    assert [entry.epsilon for entry in made.ledger.entries] == [0.01]
    paid = make_scheme("privunit-index", dim=DIM, epsilon=0.01, bytes=64)
    assert paid.open(server.reports[0][1], Task(**server.task))


@pytest.mark.parametrize("when", ["before the report", "before the answer"])
@pytest.mark.parametrize("field", [*TERMS])
def test_a_study_that_changes_is_refused(tmp_path, field, when):
    """Also with a fingerprint that fits: the terms are those of the first visit."""
    server = Server()
    made = device(tmp_path, server)
    server.failing = {"/join" if when == "before the report" else "/report"}
    with pytest.raises(ServiceRefused, match="503"):
        visit(made)
    spent = made.ledger.spent
    other = {
        "scheme": "privunit", "dim": 8, "asked_epsilon": 5.0, "bytes": 65, "options": {"nearest": 2},
        "fingerprint": "00000000",
    }  # fmt: skip
    changed = server.study | {field: other[field]}
    if field != "fingerprint":
        names = {name: changed[name] for name in ("dim", "bytes")}
        scheme = make_scheme(
            changed["scheme"], epsilon=changed["asked_epsilon"], **names, **changed["options"]
        )
        changed["fingerprint"] = f"{scheme.fingerprint:08x}"
    server.study, server.failing = changed, set()
    with pytest.raises(StudyRefused):
        visit(made)
    assert (made.ledger.spent, server.reports) == (spent, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", None), ("task", {}), ("task", {"round": 0}), ("model", "https://elsewhere.example/"),
        ("model", None), ("weights", np.zeros(DIM + 1, "<f4")), ("weights", np.zeros(0, "<f4")),
        ("weights", np.full(DIM, np.inf, "<f4")), ("weights", np.full(DIM, np.nan, "<f4")),
    ],
)  # fmt: skip
def test_an_invalid_slot_costs_nothing(tmp_path, name, value):
    server = Server()
    setattr(server, name, value)
    made, seen = device(tmp_path, server), []
    with pytest.raises(StudyRefused):
        visit(made, lambda weights: seen.append(1) or ones(weights))
    assert (seen, float(made.ledger.spent), server.reports) == ([], 0.0, [])


@pytest.mark.parametrize("name", ["round", "client", "seed", "bound"])
def test_a_second_slot_gets_no_second_report(tmp_path, name):
    """A server that denies the first one, and offers another slot, gets the same bytes."""
    server = Server()
    made = device(tmp_path, server)
    visit(made)
    server.task = server.task | {name: server.task[name] + 1}
    server.weights = np.ones(DIM, "<f4")
    visit(made)
    assert server.reports[0] == server.reports[1]
    assert float(made.ledger.spent) == 4.0


CHANGES = {
    "study": {
        "study": "study-2", "scheme": "fedsgd", "dim": 8, "asked_epsilon": 0.01, "bytes": 32,
        "options": {"nearest": 3}, "fingerprint": "00000000",
    },
    "task": {"round": 4, "client": 8, "seed": 6, "dim": 8, "bound": 2.0, "clip": 1.0},
    "__dict__": {"model": "/another", "weights": np.ones(DIM, "<f4")},
}  # fmt: skip


@pytest.mark.parametrize("away", ["/join", "/model", "/report", "nothing"])
@pytest.mark.parametrize(
    ("place", "field"), [(place, field) for place in CHANGES for field in CHANGES[place]]
)
def test_whatever_changes_between_visits_no_report_leaves_unpaid(tmp_path, place, field, away):
    """Three visits, of which the second meets a change: each message has its entry in the ledger."""
    server = Server()
    made, answers = device(tmp_path, server), getattr(server, place)
    server.failing, before = {away}, answers[field]
    for value in (before, CHANGES[place][field], before):
        answers[field] = value
        with contextlib.suppress(StudyRefused, ServiceRefused):
            visit(made)
        server.failing = set()
    sent, entries = {body for _, body in server.reports}, made.ledger.entries
    assert 1 <= len(sent) == len(entries) <= 1 + (field == "study")
    assert {entry.epsilon for entry in entries} == {4.0}
    assert {len(body) for body in sent} == {make_scheme("privunit-index", dim=DIM, epsilon=4.0).bits // 8}


@pytest.mark.parametrize("wrong", ["raises", "infinite", "short"])
def test_an_app_that_fails_reports_zeros(tmp_path, wrong):
    """Whether it fails depends on the data, so the server must not learn it."""

    def fails(weights):
        if wrong == "raises":
            raise RuntimeError("no data")
        return np.full(weights.size, np.inf) if wrong == "infinite" else np.zeros(3)

    server = Server()
    made = device(tmp_path, server)
    visit(made, fails)
    assert len(server.reports) == 1
    assert float(made.ledger.spent) == 4.0


def test_another_name_is_paid_from_the_same_budget(tmp_path):
    server = Server()
    made = device(tmp_path, server)
    visit(made)
    server.study["study"] = "study-2"
    visit(made)
    server.study["study"] = "study-3"
    with pytest.raises(BudgetSpent):
        visit(made)
    assert len(server.reports) == 2


def test_without_its_reports_a_device_does_not_report_again(tmp_path):
    """After a crash between payment and storage, or if the file is lost."""
    server = Server()
    made = device(tmp_path, server)
    visit(made)
    (tmp_path / "device/reports.json").unlink()
    with pytest.raises(AlreadyAnswered):
        visit(made)
    assert len(server.reports) == 1


def test_the_message_is_on_the_disk_before_it_is_sent(tmp_path):
    server = Server()
    made, kept = device(tmp_path, server), tmp_path / "device/reports.json"

    def looks(url, body, headers):
        if url.endswith("/report"):
            assert json.loads(kept.read_text())["study-1"]["message"] == body.hex()
            assert float(made.ledger.spent) == 4.0
        return server(url, body, headers)

    made._transport = looks
    visit(made)
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"study": "\n"}, "name"), ({"dim": 10**12}, "dim"), ({"options": [1]}, "options"),
        ({"scheme": ["x"]}, "invalid"), ({"asked_epsilon": "4"}, "epsilon"), ({"dim": None}, "dim"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(tmp_path, change, match):
    server = Server()
    server.study |= change
    with pytest.raises(StudyRefused, match=match):
        visit(device(tmp_path, server))


def test_mistakes_of_the_owner(tmp_path):
    server = Server()
    with pytest.raises(ValueError, match="max_epsilon is missing"):
        Device(tmp_path / "new")
    made = device(tmp_path, server)
    with pytest.raises(ValueError, match=r"the budget of .* is 8.0"):
        device(tmp_path, server, max_epsilon=9.0)
    with pytest.raises(ValueError, match="https"):
        made.report("http://study.example", ones)
    with pytest.raises(ReportRefused, match="above 2"):
        visit(made, max_epsilon=2.0)
    with pytest.raises(ServiceRefused, match="does not answer"):
        Device(tmp_path / "device").report("http://127.0.0.1:1", ones)
