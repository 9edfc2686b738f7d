"""What the documentation claims about the program is true."""

import base64
import re
import struct

import numpy as np
import pytest
import snippets

from sqsgd import Task, make_scheme, seeded_rng
from sqsgd.audit.conformance import read_vectors
from sqsgd.core.random import EVERYONE, PublicStream

ROOT = snippets.ROOT
VECTORS = read_vectors()


def blocks(path: str, language: str) -> list[str]:
    return [block.text for block in snippets.blocks(path) if block.language == language]


def test_the_identity_is_the_documented_one():
    scheme = make_scheme("sqsgd", dim=100, epsilon=50.0, bytes=8, code="signs")
    assert blocks("docs/wire-format.md", "text")[0].strip() == scheme.identity


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sqsgd", {"code": "signs"}),
        ("sqsgd", {"levels": 5, "reach": 2.0}),
        ("sqsgd-paper", {"levels": 128, "adaptive": True}),
        ("privunit-index", {}),
        ("sqsgd-stateless", {"code": "sparse"}),
        ("sqsgd-stateless", {"code": "sparse", "norm_epsilon": 2.0}),
    ],
)
def test_the_documented_reader_reads_our_messages(name, options):
    reader: dict = {}
    exec(blocks("docs/wire-format.md", "python")[0], reader)  # noqa: S102
    scheme = make_scheme(name, dim=300, epsilon=60.0, bytes=38, **options)
    fields = {"round": 9, "client": 4, "seed": 2**63 + 5, "dim": 300, "bound": 2.5, "clip": 0.0}
    task = Task(**{**fields, "clip": None})
    layout = [(column.count, column.alphabet) for column in scheme.mechanism.layout]
    if options.get("code") == "sparse":
        layout[0] = (scheme.mechanism.layout[0].count, scheme.mechanism.layout[0].size, "subset")
    for number in range(20):
        message = scheme.encode(np.linspace(-1, 1, 300), task, seeded_rng(number))
        expected = [column.tolist() for column in scheme.open(message, task)]
        assert reader["read"](message, scheme.identity, fields, layout) == expected
    with pytest.raises(AssertionError):
        reader["read"](message, scheme.identity, {**fields, "client": 5}, layout)
    if scheme.sends_block:
        chosen = scheme.transforms[-2].coordinates(task, 300).tolist()
        assert reader["coordinates"](fields["seed"], 9, 4, 300, scheme.transforms[-2].size) == chosen
    words = PublicStream(seed=1, round=2, client=EVERYONE, purpose="signs 0").words(50)
    assert reader["keystream"](1, 2, EVERYONE, "signs 0", 200) == words.tobytes()


def encoder(*changes):
    """The writer and the reader of the page, with changes (old, new) of their text."""
    text = "\n".join(blocks("docs/encoder.md", "python"))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    page: dict = {}
    exec(text, page)  # noqa: S102
    return page


def task_of(case):
    return {**case["task"], "client": int(case["task"]["client"]), "seed": int(case["task"]["seed"])}


def written(page, group, case):
    """The message of the page's writer, which must use all the given words."""
    raw, digits = base64.b64decode(case["x"]), case["words"]
    x = struct.unpack(f"<{len(raw) // 4}f", raw)
    words = iter([int(digits[i : i + 16], 16) for i in range(0, len(digits), 16)])
    message = page["write"](x, group["identity"], task_of(case), words.__next__)
    return message.hex() if next(words, None) is None else "words are left"


def judged(page, group, case):
    try:
        page["read"](bytes.fromhex(case["message"]), group["identity"], task_of(case))
    except ValueError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("group", VECTORS["groups"], ids=lambda group: group["name"])
def test_the_documented_encoder_conforms(group):
    page = encoder()
    for case in group["encode"]:
        assert written(page, group, case) == case["message"], case["id"]
    for case in group["decode"]:
        task = task_of(case)
        columns = page["read"](bytes.fromhex(case["message"]), group["identity"], task)
        assert columns == case["columns"]
        found = page["estimate"](columns, group["identity"], task, group["scale"])
        np.testing.assert_allclose(found, case["estimate"], atol=1e-5 * np.abs(case["estimate"]).max())
    for case in group["malformed"]:
        assert judged(page, group, case) == case["reason"], case["id"]


@pytest.mark.parametrize(
    "change",
    [
        ("reverse = uniform(word) >= (1 + share) / 2", "reverse = uniform(word) >= 1"),
        ("reverse = uniform(word) >= (1 + share) / 2", "reverse = uniform(word) > (1 + share) / 2"),
        ("(-abs(x[i]), i)", "(-abs(x[i]), -i)"),
        ("2 * i + (x[i] < 0)", "2 * i + (math.copysign(1, x[i]) < 0)"),
        ("sums[i % 64] += value * value", "sums[0] += value * value"),
        ("(word() >> 11) * 2.0**-53", "word() * 2.0**-64"),
        ("while (found := word()) >= 2**64 - 2**64 % bound", "while (found := word()) >= 2**64"),
        ("number, bits = number << 64 | word(), bits + 64", "number, bits = word(), 64"),
        ("1 << places, 0\n", "1 << places - 1, 0\n"),
        ("law([vertices - count, count], 1,", "law([vertices - count - 1, count], 1,"),
        ("right == threshold", "right == max(threshold - 1, 0)"),
        ("math.ceil(1.25 * needed) + 32", "math.ceil(1.25 * needed) + 33"),
        ("code >> 1 not in taken", "code not in taken"),
        ("places.pop(i) - i", "places.pop(i)"),
        ("round(max(0.0, wanted * 2 / dim - 1) * 128)", "int(max(0.0, wanted * 2 / dim - 1) * 128)"),
        ("if 16 * (dim - wanted) < dim", "if False"),
        ("if length < 1e-6 * bound", "if length < 1e-9 * bound"),
        ("rounded(size**-0.5)", "size**-0.5"),
        ("lower + (uniform(word) < position - lower)", "lower + (uniform(word) < 0.5)"),
    ],
)
def test_the_vectors_find_a_wrong_encoder(change):
    page = encoder(change)

    def differs(group, case):
        try:
            return written(page, group, case) != case["message"]
        except (StopIteration, IndexError):  # it drew more words than there are, or something impossible
            return True

    assert any(differs(group, case) for group in VECTORS["groups"] for case in group["encode"])


def test_every_test_that_a_page_or_a_guarantee_names_exists():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "src").rglob("*.py")]
    named = set()
    for page in pages:
        for path, names in re.findall(
            r"(tests/[\w/]+\.py)((?:(?:`?,(?:\s+and)?)?\s*`?::test_\w+)+)", page.read_text()
        ):
            named |= {(path, name) for name in re.findall(r"::(test_\w+)", names)}
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert missing == []


def test_every_guarantee_names_a_file_of_tests():
    silent, count = [], 0
    for page in sorted((ROOT / "src").rglob("*.py")):
        for section in re.findall(r"Guarantees\n +-+\n(.*?)(?:\n\n|\"\"\")", page.read_text(), re.DOTALL):
            for guarantee in re.split(r"^ +\* ", section, flags=re.MULTILINE)[1:]:
                files, count = re.findall(r"tests/[\w/]+\.py", guarantee), count + 1
                if not files or not all((ROOT / file).exists() for file in files):
                    silent.append(f"{page.name}: {guarantee}")
    assert count > 80
    assert silent == []
