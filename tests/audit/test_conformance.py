"""Conformance: the packaged vectors are the generated ones; wrong answers to them are found and named."""

import copy
import importlib

import pytest
from snippets import ROOT

from sqsgd.audit.conformance import PATH, compare, expected_answers, read_answers, read_vectors

VECTORS = read_vectors()
RIGHT = expected_answers(VECTORS)


def test_right_answers_conform():
    found = compare(RIGHT, VECTORS)
    assert found.conforms
    close = {name: [value * (1 + 1e-7) for value in values] for name, values in RIGHT["estimates"].items()}
    assert compare({"estimates": close}, VECTORS).conforms
    assert found.agree == sum(map(len, RIGHT.values())) > 300


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        ("fingerprints", lambda text: text[::-1]),
        ("messages", lambda text: text[:-1] + ("0" if text[-1] != "0" else "1")),
        ("columns", lambda columns: [[columns[0][0] ^ 1, *columns[0][1:]], *columns[1:]]),
        ("estimates", lambda values: [value * 1.001 for value in values]),
        ("estimates", lambda values: values[:-1]),
        ("estimates", lambda values: [float("nan"), *values[1:]]),
        ("reasons", lambda reason: "version" if reason != "version" else "length"),
    ],
)
def test_a_wrong_answer_is_found(section, wrong):
    for name in list(RIGHT[section])[::7]:
        answers = copy.deepcopy(RIGHT)
        answers[section][name] = wrong(answers[section][name])
        found = compare(answers, VECTORS)
        assert [(each.section, each.id) for each in found.differences] == [(section, name)]
        assert not found.conforms
        assert "expected" in str(found.differences[0])


def test_a_missing_or_an_unknown_answer_is_found():
    answers = copy.deepcopy(RIGHT)
    del answers["messages"]["index-100/zero"]
    answers["reasons"]["nonsense"] = "length"
    found = compare(answers, VECTORS)
    assert {each.id for each in found.differences} == {"index-100/zero", "nonsense"}
    assert str(found.differences[0]) == "messages index-100/zero: no answer"


def test_sections_may_be_left_out_but_not_all():
    found = compare({"messages": RIGHT["messages"]}, VECTORS)
    assert found.conforms
    assert found.unanswered == ["fingerprints", "columns", "estimates", "reasons"]
    assert not compare({}, VECTORS).conforms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "an object"),
        ('{"format": "sqsgd conformance 9"}', "another version"),
        ('{"message": {}}', "unknown section 'message'"),
        ('{"messages": []}', "an answer for each id"),
    ],
)
def test_files_that_are_no_answers_are_refused(text, said, tmp_path):
    path = tmp_path / "answers.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_answers(path)


def test_the_packaged_vectors_are_the_generated_ones(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    assert importlib.import_module("conformance_vectors").text() == PATH.read_text()
    assert PATH.stat().st_size < 700_000
