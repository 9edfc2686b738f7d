"""``sqsgd.Device``: against a real service, and against servers that change their answers between visits."""

import base64
import contextlib
import hashlib
import json
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs pip install 'sqsgd[collect]'")

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from devices import invited, make, ones, served
from protocol_vectors import SIGNER

from sqsgd import Device, Task, make_scheme
from sqsgd.federation.collect import device as module
from sqsgd.federation.collect import oblivious, tokens
from sqsgd.federation.collect.device import ServiceRefused, StudyRefused, Terms
from sqsgd.federation.collect.oblivious import sign_keys
from sqsgd.federation.collect.tokens import base64url
from sqsgd.privacy.ledger import AlreadyAnswered, BudgetSpent, ReportRefused

OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
DIM, BEGINS, SECONDS = 16, 1_000_000, 1000.0
RELAY = "https://relay.example/s"


@lru_cache(maxsize=2)
def issuer(number=0):
    return rsa.generate_private_key(65537, 2048)


class Server:
    """A study without HTTP, whose answers a test may change; it keeps what devices send."""

    def __init__(self, scheme="privunit-index", epsilon=4.0, relay=None, **changed):
        options = {"rotation": "round"} if scheme == "privunit-index" else {}
        made = make_scheme(scheme, dim=DIM, epsilon=epsilon, bytes=64, **options)
        self.issuer = issuer()
        self.study = {
            "format": 1, "name": "test", "scheme": scheme, "dim": DIM, "asked_epsilon": epsilon,
            "bytes": 64, "options": options, "fingerprint": f"{made.fingerprint:08x}", "seed": 5,
            "bound": 1.0, "rounds": 8,
            "visits": "once", "reports": 1, "begins": BEGINS, "round_seconds": SECONDS, "relay": relay,
            "token_key": base64url(tokens.TokenKey.of(self.issuer).der), "request_bytes": 1024,
            "gateway_key": SIGNER.public_key().public_bytes_raw().hex(), **changed,
        }  # fmt: skip
        self.round, self.state, self.weights, self.named = 3, "open", np.zeros(DIM, "<f4"), None
        self.reports, self.asked, self.failing, self.now = [], [], set(), float(BEGINS)
        self.key, self.until, self.signer = oblivious.GatewayKey(1, bytes(range(32))), BEGINS + 10, SIGNER
        self.spent = set()

    @property
    def description(self):
        return json.dumps(self.study).encode()

    @property
    def id(self):
        return self.named or hashlib.sha256(self.description).hexdigest()

    def __call__(self, url, body, headers):
        self.asked.append(url)
        if url == RELAY:
            return self.keys() if body is None else self.relayed(body)
        return self.answer(url.removeprefix("https://study.example"), body)

    def keys(self):
        return sign_keys(self.key.configuration, self.until, self.signer)

    def relayed(self, body):
        inner, seal = oblivious.Gateway([self.key]).open(body)
        assert len(inner) == 1024
        asked, status = oblivious.read_request(inner), 200
        assert asked.fields in ({}, {"content-type": "application/json"})
        try:
            content = self.answer(asked.path, asked.body or None)
        except ServiceRefused as error:
            content, status = json.dumps({"error": error.code, "reason": ""}).encode(), error.status
        return seal(oblivious.pack_answer(oblivious.Answer(status, {}, content), 1024))

    def answer(self, path, body):
        if path in self.failing or ("/model" in self.failing and path.startswith("/model/")):
            raise ServiceRefused(503, "busy", "busy")
        if path == "/study":
            return self.description
        if path == "/token":
            parts = tokens.blinded_parts(tokens.TokenKey.of(issuer()), body, len(body) // 259)
            self.requests = body
            return b"".join(tokens.sign(self.issuer, part) for part in parts)
        if path == "/round":
            return json.dumps({"study": self.id, "round": self.round, "state": self.state}).encode()
        if path == "/report":
            self.reports.append(body)
            token = json.loads(body)["token"]
            if token in self.spent:
                raise ServiceRefused(409, "token-spent", "token-spent")
            self.spent.add(token)
            if "/lost" in self.failing:
                raise ServiceRefused(0, "the answer was lost")
            return b'{"accepted": true}'
        return self.weights.tobytes()

    def columns(self, number=0, scheme=None):
        """What a report says, if it is valid for the study's own scheme and round."""
        found, known = json.loads(self.reports[number]), self.study
        scheme = scheme or Terms(self.description).scheme
        task = Task(round=found["round"], client=0, seed=known["seed"], dim=DIM, bound=known["bound"])
        return scheme.open(base64.urlsafe_b64decode(found["report"] + "=="), task)


def device(folder, server, max_epsilon=8.0):
    return Device(folder / "device", max_epsilon=max_epsilon, transport=server, clock=lambda: server.now)


def visit(device, gradient=ones, **options):
    return device.report("https://study.example", gradient, **options)


def kept(device):
    return json.loads((device.folder / "reports.json").read_text())["https://study.example"]["reports"]


DONE = {"accepted": 1, "waiting": 0, "missed": 0, "seconds": None}


def test_a_real_study(tmp_path):
    """Nine devices of nine; a second visit changes nothing."""
    study = make(tmp_path / "study", users=9, rounds=1)
    with served(tmp_path / "study") as url:
        for number, invitation in enumerate(invited(tmp_path / "study", study, 9)):
            made = Device(tmp_path / f"device-{number}", max_epsilon=8.0)
            assert made.report(url, ones, invitation=invitation) == {"study": study.id, **DONE}
            assert float(made.ledger.spent) == 8.0
            assert Device(tmp_path / f"device-{number}").report(url, ones)["accepted"] == 1
        with pytest.raises(ServiceRefused, match=r"invitation-invalid|closed"):
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
    assert server.columns(
        scheme=make_scheme("privunit-index", dim=DIM, epsilon=0.01, bytes=64, rotation="round")
    )


CHANGES = {
    "scheme": "privunit", "dim": 8, "asked_epsilon": 5.0, "bytes": 65,
    "options": {"rotation": "round", "nearest": 2},
    "fingerprint": "00000000", "seed": 6, "bound": 2.0, "rounds": 9, "visits": "drawn", "reports": 2,
    "begins": 1, "round_seconds": 1.0, "relay": "https://other.example/", "name": "x", "request_bytes": 2048,
    "token_key": "AAAA", "gateway_key": "00" * 32, "format": 2,
}  # fmt: skip


@pytest.mark.parametrize("lies", [True, False])
@pytest.mark.parametrize("name", [*CHANGES])
def test_a_study_that_changes_is_refused(tmp_path, name, lies):
    """Or, if the server still names the first one, that is the one which is answered."""
    server = Server()
    made, first, before = device(tmp_path, server), server.id, dict(server.study)
    server.failing = {"/round"}
    with pytest.raises(ServiceRefused, match="503"):
        visit(made)
    server.study, server.failing = server.study | {name: CHANGES[name]}, set()
    server.named = first if lies else None
    if not lies:
        with pytest.raises(StudyRefused, match="another study"):
            visit(made)
        assert (float(made.ledger.spent), server.reports) == (0.0, [])
        return
    visit(made)
    assert float(made.ledger.spent) == 4.0
    server.study = before
    assert json.loads(server.reports[0])["study"] == first
    assert server.columns()  # a report for the terms of the first visit


@pytest.mark.parametrize("away", ["/token", "/round", "/model", "/report", "/lost", "nothing"])
@pytest.mark.parametrize("name", [*CHANGES, "round", "state", "weights", "named"])
def test_whatever_changes_between_visits_no_report_leaves_unpaid(tmp_path, name, away):
    """Three visits, of which the second meets a change: each message has its entry in the ledger."""
    server = Server()
    made, scheme = device(tmp_path, server), Terms(server.description).scheme
    others = {"round": 4, "state": "ended", "weights": np.ones(DIM, "<f4"), "named": server.id}
    server.failing = {away}
    for change in (False, True, False):
        before = dict(server.study), dict(vars(server))
        if change and name in others:
            setattr(server, name, others[name])
        elif change:
            server.study = server.study | {name: CHANGES[name]}
        with contextlib.suppress(StudyRefused, ServiceRefused):
            visit(made)
        server.failing = set()
        if change:
            server.study = before[0]
            vars(server).update({key: before[1][key] for key in others})
    sent, entries = set(server.reports), made.ledger.entries
    assert len(sent) == len(entries) <= 1
    assert {entry.epsilon for entry in entries} <= {4.0}
    assert all(server.columns(number, scheme) for number in range(len(server.reports)))


def test_the_same_request_is_not_drawn_again(tmp_path):
    """Retries have the same bytes, whatever the service answers about rounds and models meanwhile."""
    server = Server()
    made = device(tmp_path, server)
    server.failing = {"/lost"}
    for change in range(3):
        with pytest.raises(ServiceRefused, match="lost") if change == 0 else pytest.raises(AssertionError):
            visit(made)
            raise AssertionError
        server.round, server.weights, server.state = change, np.full(DIM, float(change), "<f4"), "ended"
    assert len(set(server.reports)) == 1
    assert float(made.ledger.spent) == 4.0
    assert visit(made)["accepted"] == 1  # token-spent: it was counted
    assert len(server.reports) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", np.zeros(DIM + 1, "<f4")), ("weights", np.zeros(0, "<f4")),
        ("weights", np.full(DIM, np.inf, "<f4")), ("weights", np.full(DIM, np.nan, "<f4")),
        ("round", 8), ("round", None), ("round", "3"), ("round", -1), ("named", "f" * 64),
    ],
)  # fmt: skip
def test_an_invalid_round_or_model_costs_nothing(tmp_path, name, value):
    server = Server()
    setattr(server, name, value)
    made, seen = device(tmp_path, server), []
    with pytest.raises(ValueError if name == "round" else StudyRefused):
        visit(made, lambda weights: seen.append(1) or ones(weights))
    assert (seen, float(made.ledger.spent), server.reports) == ([], 0.0, [])


@pytest.mark.parametrize("wrong", ["raises", "infinite", "short"])
def test_an_app_that_fails_reports_zeros(tmp_path, wrong):
    """Whether it fails depends on the data, so the server must not learn it."""

    def fails(weights):
        if wrong == "raises":
            raise RuntimeError("no data")
        return np.full(weights.size, np.inf) if wrong == "infinite" else np.zeros(3)

    server = Server()
    made = device(tmp_path, server)
    assert visit(made, fails)["accepted"] == 1
    assert float(made.ledger.spent) == 4.0


def drawn_in(server, made, number=0):
    """Make it the time of a device's own report."""
    each = kept(made)[number]
    server.now, server.round = each["due"], each["round"]
    return each


def test_a_drawn_round_is_awaited_in_silence(tmp_path):
    """Until its time a device asks nothing, and a server that names other rounds gets no report."""
    server = Server(visits="drawn")
    server.now = BEGINS - 500.0
    made = device(tmp_path, server)
    first = visit(made)
    (each,) = kept(made)
    assert (first["waiting"], first["seconds"]) == (1, each["due"] - server.now)
    server.asked.clear()
    visit(made)
    assert server.asked == []
    drawn_in(server, made)
    for other in (each["round"] - 1, each["round"] - 2):
        server.round = other
        assert visit(made)["waiting"] == 1
    assert server.reports == []
    server.round = each["round"]
    assert visit(made) == {"study": server.id, **DONE}
    assert json.loads(server.reports[0])["round"] == each["round"]


def test_a_device_whose_clock_jumps_reports_once_in_its_round(tmp_path):
    """Hours early it finds its round not open, and pays nothing; afterwards it does not report again."""
    server = Server(visits="drawn")
    made = device(tmp_path, server)
    visit(made)
    each = drawn_in(server, made)
    server.round, server.now = each["round"] - 1, each["due"] + 20000.0
    assert visit(made)["waiting"] == 1
    assert (server.reports, float(made.ledger.spent)) == ([], 0.0)
    for jump in (-20000.0, 0.0, -20000.0, 20000.0):
        server.round, server.now = each["round"], each["due"] + jump
        visit(made)
    assert (len(server.reports), float(made.ledger.spent)) == (1, 4.0)


@pytest.mark.parametrize("how", ["later", "ended"])
def test_a_missed_round_is_not_made_up_for(tmp_path, how):
    server = Server(visits="drawn")
    made = device(tmp_path, server)
    visit(made)
    drawn_in(server, made)
    server.now += 2 * SECONDS
    server.round, server.state = (server.round + 1, "open") if how == "later" else (8, "ended")
    assert visit(made)["missed"] == 1
    server.asked.clear()
    assert visit(made)["seconds"] is None
    assert (server.asked, server.reports, float(made.ledger.spent)) == ([], [], 0.0)


def test_rounds_are_drawn_once_and_uniformly(tmp_path):
    """Chi-square, 7 degrees of freedom: 60 is exceeded less than once in a billion times."""
    server = Server(visits="drawn")
    made = device(tmp_path, server)
    visit(made)
    before = kept(made)
    for _ in range(3):
        visit(made)
    assert kept(made) == before
    terms = Terms(server.description)

    def distance(draws):
        counts, places = Counter(each["round"] for each in draws), []
        for each in draws:
            start = BEGINS + SECONDS * each["round"]
            assert start <= each["due"] < start + 0.9 * SECONDS
            places.append(int((each["due"] - start) / SECONDS / 0.9 * 8))
        share = len(draws) / 8
        return [sum((found[i] - share) ** 2 / share for i in range(8)) for found in (counts, Counter(places))]

    draws = [module._drawn(terms)["reports"][0] for _ in range(800)]
    assert max(distance(draws)) < 60
    assert len({each["nonce"] for each in draws} | {each["blind"] for each in draws}) == 1600
    late = [each | {"round": 0, "due": BEGINS + SECONDS * 0.1} for each in draws]
    assert min(distance(late)) > 60


def test_all_that_a_service_sees_comes_through_the_relay(tmp_path):
    """After joining no request reaches the service directly; all inner requests have one length."""
    server = Server(relay=RELAY)
    made = device(tmp_path, server)
    assert visit(made)["accepted"] == 1
    joining = [f"https://study.example/{path}" for path in ("study", "token")]
    assert server.asked == [*joining, RELAY, RELAY, RELAY, RELAY]  # keys, round, model, report
    server.failing = {"/round"}
    with pytest.raises(ServiceRefused, match="503: busy"):
        visit(device(tmp_path / "second", server))


def test_a_relay_that_answers_by_itself_is_refused(tmp_path):
    server = Server(relay=RELAY)
    made = device(tmp_path, server)
    server.relayed = lambda body: b"x" * 64
    with pytest.raises(ServiceRefused, match="not made by the gateway"):
        visit(made)
    assert (server.reports, float(made.ledger.spent)) == ([], 0.0)


def unsigned(server):
    """What a study without signatures gave, and a relay that knows no signing key can give."""
    return server.key.configuration


def replaced(server):
    """Another key under the study's signature."""
    made, size = Server.keys(server), len(server.key.configuration)
    return oblivious.GatewayKey(1, bytes(32)).configuration + made[size:]


def added(server):
    return oblivious.GatewayKey(2, bytes(32)).configuration + Server.keys(server)


@pytest.mark.parametrize(
    ("keys", "until", "words"),
    [
        (unsigned, 10, "did not sign"), (replaced, 10, "did not sign"), (added, 10, "did not sign"),
        (lambda server: b"", 10, "did not sign"),
        (lambda server: sign_keys(server.key.configuration, server.until, OTHER), 10, "from another network"),
        (Server.keys, 0, r"expired at 1970-01-12 13:46.*: set this device's clock"),
    ],
)  # fmt: skip
def test_a_relay_that_replaces_the_keys_reads_nothing(tmp_path, keys, until, words):
    """It gives the device a key that it made, or one that was stolen later. Nothing is sent to it or paid."""
    server = Server(relay=RELAY)
    server.keys, server.until = lambda: keys(server), BEGINS + until
    made = device(tmp_path, server)
    with pytest.raises(StudyRefused, match=f"the keys that {RELAY} gives are not used: .*{words}"):
        visit(made)
    assert server.asked[-1] == RELAY
    assert (server.asked.count(RELAY), server.reports, float(made.ledger.spent)) == (1, [], 0.0)
    del server.keys
    server.key, server.until = oblivious.GatewayKey(2, bytes(32)), BEGINS + 1  # the study's next key
    assert visit(made)["accepted"] == 1


def test_several_reports(tmp_path):
    """Each has its own token, draw and payment."""
    server = Server(visits="drawn", reports=3, asked_epsilon=2.0)
    server.study |= {name: Server(epsilon=2.0).study[name] for name in ("fingerprint",)}
    made = device(tmp_path, server)
    assert visit(made, max_epsilon=6.0)["waiting"] == 3
    for each in sorted(kept(made), key=lambda each: each["due"]):
        server.now, server.round = each["due"], each["round"]
        visit(made)
    assert [each["state"] for each in kept(made)] == ["accepted"] * 3
    assert float(made.ledger.spent) == 6.0
    assert len({json.loads(body)["token"] for body in server.reports}) == 3
    with pytest.raises(StudyRefused, match=r"costs epsilon 6.0, above 5.0"):
        visit(device(tmp_path / "careful", server), max_epsilon=5.0)


def test_an_issuer_that_signs_with_another_key_learns_nothing(tmp_path):
    server = Server()
    server.issuer = issuer(1)
    made = device(tmp_path, server)
    requests = []
    for _ in range(2):
        with pytest.raises((StudyRefused, tokens.TokenRefused)):
            visit(made)
        requests.append(server.requests)
    assert requests[0] == requests[1]
    assert (server.reports, float(made.ledger.spent)) == ([], 0.0)
    server.issuer = issuer()
    assert visit(made)["accepted"] == 1


def test_an_invitation_names_its_study(tmp_path):
    server = Server()
    wrong = base64url(bytes(32) + b"rest")
    with pytest.raises(StudyRefused, match="not the one that was named"):
        visit(device(tmp_path, server), invitation=wrong)
    with pytest.raises(StudyRefused, match="not the one that was named"):
        visit(device(tmp_path, server), study="0" * 64)
    assert visit(device(tmp_path, server), study=server.id)["accepted"] == 1


def test_another_study_is_paid_from_the_same_budget(tmp_path):
    server = Server()
    made = device(tmp_path, server)
    visit(made)
    server.study["name"] = "study-2"
    assert visit(made)["accepted"] == 1  # nothing is left to do for the first
    assert len(server.reports) == 1
    visit(made, study=server.id)
    server.study["name"] = "study-3"
    with pytest.raises(BudgetSpent):
        visit(made, study=server.id)
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
    made = device(tmp_path, server)

    def looks(url, body, headers):
        if url.endswith("/report"):
            (each,) = kept(made)
            assert each["body"].encode() == body
            assert each["epsilon"] == 4.0
            assert not {"nonce", "blind", "salt"} & set(each)
            assert float(made.ledger.spent) == 4.0
        if url.endswith("/token"):
            assert kept(made)[0]["blind"]
        return server(url, body, headers)

    made._transport = looks
    visit(made)
    assert kept(made) == [{"state": "accepted", "epsilon": 4.0}]  # which report was its own is not kept
    assert (tmp_path / "device/reports.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"dim": 10**12}, "dim"), ({"options": [1]}, "mapping"), ({"scheme": ["x"]}, "invalid"),
        ({"asked_epsilon": "4"}, "epsilon"), ({"dim": None}, "dim"), ({"format": 2}, "format"),
        ({"options": {}, "fingerprint": "0"}, "same for all devices"), ({"rounds": 0}, "rounds"),
        ({"relay": "http://relay.example"}, "https"), ({"token_key": "AAAA"}, "token key"),
        ({"visits": "often"}, "visits"), ({"seed": -1}, "seed"), ({"bound": float("nan")}, "bound"),
        ({"fingerprint": "00000000"}, "another scheme"), ({"gateway_key": "00"}, "32 bytes"),
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
