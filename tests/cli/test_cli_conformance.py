"""`sqsgd conformance`."""

import json
import os

from typed import typed

from sqsgd.audit.conformance import expected_answers


def test_export_then_check(tmp_path):
    exported, answered = tmp_path / "vectors.json", tmp_path / "answers.json"
    assert typed(f"sqsgd conformance --export {exported}").code == 0
    answers = expected_answers(json.loads(exported.read_text()))
    answered.write_text(json.dumps(answers))
    right = typed(f"sqsgd conformance {answered}")
    assert right.code == 0
    assert "0 differ: conforms" in right.out
    answers["messages"]["index-100/short"] = "02"
    del answers["estimates"]
    answered.write_text(json.dumps(answers))
    wrong = typed(f"sqsgd conformance {answered}")
    assert wrong.code == 1
    assert 'messages index-100/short: expected "01' in wrong.out
    assert "not answered: estimates" in wrong.out
    summary = json.loads(typed(f"sqsgd conformance {answered} --json").out)
    assert summary["conforms"] is False
    assert [each["id"] for each in summary["differences"]] == ["index-100/short"]


def test_one_of_both_is_needed(tmp_path):
    for options in ("", f"answers.json --export {tmp_path / 'vectors.json'}"):
        found = typed(f"sqsgd conformance {options}")
        assert found.code == 2
        assert "--export" in found.error


def test_a_full_disk_is_named_with_the_file_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    found = typed(f"sqsgd conformance --export {tmp_path / 'vectors.json'}")
    assert found.code == 1
    assert f"{tmp_path / 'vectors.json'}: No space left on device" in found.error
    assert not list(tmp_path.iterdir())
