"""The command as a person types it, the page, and the pictures."""

import json
import re
import struct
import sys
import zlib

import numpy as np
import pytest
import typer
from test_audit import subject
from typer.testing import CliRunner

from sqsgd import MalformedReport
from sqsgd.commands.auditing import audit as command
from sqsgd.privacy.audit import Finding, attempts, audit, inversion, steps
from sqsgd.privacy.audit.attempts import gathered
from sqsgd.privacy.audit.findings import Audit
from sqsgd.privacy.audit.inversion import inverted_gradients, likenesses
from sqsgd.privacy.audit.pages import page, png, write_audit

APP = typer.Typer()
APP.command()(command)
SMALL = ["--dim", "500", "--epsilon", "50", "--bytes", "16", "--trials", "1000", "--no-inversion"]


def run(*arguments):
    return CliRunner().invoke(APP, [*arguments])


def test_json_and_files(tmp_path):
    done = run("--scheme", "ldp-fl", *SMALL, "--out", str(tmp_path / "new" / "folder"), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["passed"]
    assert told["scheme"] == "ldp-fl"
    assert {finding["outcome"] for finding in told["findings"]} <= {"passed", "not applicable"}
    assert [path.split("/")[-1] for path in told["files"]] == ["audit.html", "audit.json"]
    kept = json.loads((tmp_path / "new" / "folder" / "audit.json").read_text())
    assert kept == {key: value for key, value in told.items() if key != "files"}


def test_a_table_for_people():
    done = run("--scheme", "fedsgd", *SMALL)
    assert done.exit_code == 0
    assert done.stdout.startswith("NOTHING TO AUDIT\n")
    assert done.stdout.rstrip().endswith("This is not a pass: its reports protect nobody.")
    assert "message is its columns" in done.stdout


def test_what_promises_nothing_does_not_look_as_if_it_had_passed():
    done = run("--scheme", "fedsgd", *SMALL, "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["result"], told["passed"]) == (0, "nothing to audit", False)
    assert told["verdict"].startswith("NOTHING TO AUDIT")
    found = audit(subject("fedsgd"), inversion=False)
    assert '<p class="verdict nothing"' in page(found)
    assert "NOTHING TO AUDIT" in page(found)


def test_a_broken_promise_ends_with_1(monkeypatch):
    def broken(_subject):
        yield Finding(
            check="law", name="[bold]law", outcome="violated", sentence="It is broken.", measured=2.0
        )

    monkeypatch.setattr(attempts, "noise_checks", broken)
    done = run("--scheme", "fedsgd", *SMALL)
    assert done.exit_code == 1
    assert "1 of 2 checks broke the promise" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scheme", "sqsdg"), "did you mean 'sqsgd'"),
        (("--trials", "3"), "trials = 3"),
        (("--epsilon", "-1"), "epsilon = -1"),
        (("--bytes", "0"), "bytes = 0"),
        (("--option", "levels"), "must look like name=value"),
        (("--option", "colour=red"), "colour = 'red' is no option"),
        (("--out", __file__), "is a file"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_tried(arguments, words):
    done = run(*SMALL, *arguments)
    assert isinstance(done.exception, ValueError)  # cli.main makes it one line and exit status 2
    assert words in str(done.exception)


def test_a_scheme_that_refuses_its_own_messages_is_caught():
    def refuse(_subject):
        yield from ()
        raise MalformedReport("checksum", "the report is damaged")

    (finding,) = attempts.Step(name="noise", run=refuse).findings(subject("sqsgd"))
    assert finding.outcome == "violated"
    assert "damaged" in finding.sentence


def test_inversion_is_left_out_with_a_reason(monkeypatch):
    step = steps(subject("sqsgd"))[-1]
    monkeypatch.setitem(sys.modules, "sqsgd.privacy.audit.inversion", None)
    (finding,) = step.run(subject("sqsgd"))
    assert finding.outcome == "not applicable"
    assert "sqsgd[train]" in finding.sentence


# ---------------------------------------------------------------- pictures


def unpacked(data):
    """The pixels of a grey PNG, and its text."""
    at, parts = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        parts[kind] = body
        at += 12 + size
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:], parts.get(b"tEXt", b"")


def test_png():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5)).astype(np.uint8)
    found, text = unpacked(png(pixels, "seven rows"))
    assert np.array_equal(found, pixels)
    assert text == b"Description\0seven rows"


def test_pictures_from_a_gradient_and_from_a_report(tmp_path, monkeypatch):
    """A few steps suffice to tell the raw gradient from a report."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(inversion, "BATCHES", (1,))
    case = subject("sqsgd", dim=119850, epsilon=400.0, bits=2048)
    threads = torch.get_num_threads()
    (finding,) = inverted_gradients(case, steps=40)
    assert torch.get_num_threads() == threads
    assert finding.outcome == "passed"
    assert finding.measured < 0.8 < finding.limit
    (pictures,) = finding.pictures
    assert 0.3 < pictures.report_cosine < 0.6
    assert pictures.originals[0].shape == pictures.from_report[0].shape == (28, 28)
    written = write_audit(gathered(case, [finding]), tmp_path)
    assert [path.name for path in written] == ["audit.html", "audit.json", "pictures.png"]
    grid, text = unpacked((tmp_path / "pictures.png").read_bytes())
    assert grid.shape == (3 * 140 + 2 * 8, 140)
    assert b"From above" in text
    text = (tmp_path / "audit.html").read_text()
    assert text.count("data:image/png;base64,") == 3


def test_likeness():
    torch = pytest.importorskip("torch")
    picture = torch.rand((1, 1, 28, 28), generator=torch.Generator().manual_seed(1))
    (same,) = likenesses(picture, picture)
    assert same.correlation == pytest.approx(1.0, abs=1e-5)
    assert same.structure == pytest.approx(1.0, abs=1e-4)
    assert same.decibels > 90
    (inverse,) = likenesses(1 - picture, picture)
    assert inverse.correlation == pytest.approx(-1.0, abs=1e-5)
    assert inverse.structure < 0


def test_the_page_needs_nothing_and_escapes_what_it_shows():
    finding = Finding(check="law", name="<b>", outcome="violated", sentence="a & b", measured=1.5, limit=1.0)
    found = Audit(
        scheme="<script>",
        dim=1,
        epsilon=4.0,
        notion="local",
        message_bytes=20,
        trials=1,
        seed=0,
        findings=(finding,),
    )
    text = page(found)
    assert "<script" not in text
    assert "<b>" not in text
    assert "a &amp; b" in text
    assert not re.search(r"https?://|@import|url\(", text)
