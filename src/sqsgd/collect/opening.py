"""Creating the folder of a study, and opening it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqsgd.checks import Vector
from sqsgd.collect.database import FILE, URL, Database, new_database, open_database
from sqsgd.collect.invitations import KEY, new_key
from sqsgd.collect.stepping import begin, check_study
from sqsgd.collect.study import PAGE, STUDY, Study, load_study, make_study
from sqsgd.files.durable import locked, prepared, put

DIGITS, DIGITS_DIM = "digits", 3920
"""The page on which a person draws a digit, and the weights of its model: ten classes of 392 features."""


def create_study(
    folder: Path, weights: Vector, names: str, values: Mapping[str, Any], url: str = "", page: str = ""
) -> Study:
    """A new study: settings, signing key, database with round 0; refuses a folder that is in use.

    If it fails, nothing of it stays:
    tests/collect/test_opening.py::test_a_failure_half_way_leaves_nothing_behind.
    ``page``: ``"digits"`` for a web page on which people take part; none if empty.
    """
    if page not in ("", DIGITS):
        raise ValueError(f"page = {page!r} must be {DIGITS!r}; pages of your own go into {folder / PAGE}")
    if page == DIGITS and weights.size != DIGITS_DIM:
        raise ValueError(f"page = {page!r} needs a model of {DIGITS_DIM} weights, not {weights.size}")
    make_study({**values, "dim": weights.size}, "")  # says what is wrong before anything is written
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder, os.O_RDONLY):
        if any((folder / name).exists() for name in (STUDY, FILE, KEY, URL)):
            raise ValueError(f"{folder} holds a study already: choose another folder")
        if page and (folder / PAGE).exists():
            raise ValueError(f"{folder / PAGE} exists already: it is served as it is without page = {page!r}")
        with contextlib.ExitStack() as undo:
            undo.callback((folder / KEY).unlink, missing_ok=True)
            study = make_study({**values, "dim": weights.size}, new_key(folder))
            if url:  # it may hold a password
                undo.callback((folder / URL).unlink, missing_ok=True)
                put(prepared(folder / URL, url.encode() + b"\n", 0o600), folder / URL)
            if page:
                undo.callback(shutil.rmtree, folder / PAGE, ignore_errors=True)
                shutil.copytree(Path(__file__).with_name("digit_page"), folder / PAGE)
            database = undo.enter_context(contextlib.closing(new_database(folder, url)))
            undo.callback(database.discard)
            begin(database, study, weights, names)
            study.write(folder)  # last: now it can be served
            undo.pop_all()
            database.close()
    return study


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[Study, Database]]:
    """A study and its database, after checking that they belong together."""
    study = load_study(folder)
    with contextlib.closing(open_database(folder)) as database:
        check_study(database, study)
        yield study, database
