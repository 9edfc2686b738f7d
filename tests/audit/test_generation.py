"""The packaged vectors are the generated ones, small, and reach the cases that they are for."""

import importlib
import json

import numpy as np
import pytest
from snippets import ROOT

from sqsgd.audit.conformance import PATH, read_vectors


@pytest.fixture
def generation(monkeypatch):
    """The tool that writes the vectors."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("conformance_vectors")


def test_the_packaged_vectors_are_the_generated_ones(generation):
    assert generation.text() == PATH.read_text()


def test_the_file_is_small():
    assert PATH.stat().st_size < 700_000


def test_all_inputs_draws_and_reasons_occur():
    groups = read_vectors()["groups"]
    names = {case["id"].split("/")[1] for group in groups for case in group["encode"]}
    assert names >= {"dense", "sparse", "zero", "short", "at-the-bound", "beyond-the-bound", "denormal"}
    reasons = {case["reason"] for group in groups for case in group["malformed"]}
    assert reasons == {"length", "version", "checksum", "padding", "code", "accepted"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("word-below", 3), ("word-tied-below", 4), ("word-tied-above", 4), ("rank-rejected", 5)],
)
def test_unlikely_draws_take_the_words_that_they_should(name, words):
    """A tie takes one word more, a rejected rank two."""
    for group in read_vectors()["groups"][:3]:
        case = next(case for case in group["encode"] if case["id"].endswith(f"/{name}"))
        assert len(case["words"]) == 16 * words


def test_a_message_depends_on_the_words(generation):
    """Vectors from which a broken encoder could not be told would be useless."""
    scheme = generation._schemes()["index-100"]
    _, x, bound = next(generation._inputs(100))
    task = generation.Task(round=0, client=1, seed=2, dim=100, bound=bound)
    messages = {
        generation.report("", scheme, x, task, generation._words(number))["message"] for number in range(20)
    }
    assert len(messages) > 10


def test_the_file_holds_one_vector_per_line():
    lines = PATH.read_text().splitlines()
    assert max(map(len, lines)) < 30_000
    assert json.loads("\n".join(lines)) == read_vectors()
    assert np.isfinite([group["scale"] for group in read_vectors()["groups"]]).all()
