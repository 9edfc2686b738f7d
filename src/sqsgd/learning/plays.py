"""Plays as text: who says what, and each speaker's lines as sequences of characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

LETTERS = "\n !&'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters that are told apart; others (digits, brackets) become a space. Public: not read off the text."""

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
    numbers = np.full(128, LETTERS.index(" "))
    numbers[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    return numbers[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]
