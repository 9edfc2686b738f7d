"""Feature extractors: their values, and that each row depends on one image alone."""

import dataclasses

import numpy as np
import pytest
import torch

from sqsgd.learning.datasets import Dataset, load_dataset
from sqsgd.learning.features import AS_MODELS, extracted, extractor_and_model
from sqsgd.learning.font_digits import font_digits, font_head
from sqsgd.learning.gradients import loss_gradient
from sqsgd.learning.models import make_model

DIGITS = {"hog": 392, "soft-hog": 392, "font-digits": 64}
"""The features of grey images, and how many they are."""


@pytest.mark.parametrize("name", [*DIGITS, "soft-hog:0.7+font-digits:0.7"])
def test_a_row_has_unit_length_and_depends_on_its_image_alone(name):
    whole = load_dataset("mnist5k")
    few = extracted(whole, name).train_inputs[:5]
    assert few.shape == (5, DIGITS.get(name, 456))
    np.testing.assert_allclose(few.norm(dim=1).numpy(), 1, rtol=1e-5)
    changed = whole.train_inputs.clone()
    changed[1:] = torch.rand_like(changed[1:])
    other = extracted(dataclasses.replace(whole, train_inputs=changed), name).train_inputs[:5]
    np.testing.assert_allclose(other[0].numpy(), few[0].numpy(), atol=1e-6)
    assert not torch.allclose(other[1], few[1])


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "features_of_a_user.py").write_text(
        "import torch\n"
        "def flat(in_shape): return torch.nn.Flatten()\n"
        "def wrong(): return 3\n"
        "def short(): return lambda images: images[:1].flatten(1)\n"
        "def nan(): return lambda images: images.flatten(1) * float('nan')\n"
        "def broken(): return 1 / 0\n"
        "def misspelt(): return lambda images: imagse.flatten(1)\n"
        "def colour(): return torch.nn.Conv2d(3, 2, 5)\n"
        "def centred(): return lambda images: images.flatten(1) - images.flatten(1).mean(dim=0) + 1\n"
        "def filters(): return torch.nn.Conv2d(1, 2, 5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "features_of_a_user"


def test_a_user_may_bring_a_torch_module(own):
    rows = extracted(load_dataset("mnist5k"), f"{own}:flat").train_inputs
    assert rows.shape == (4000, 784)
    assert not rows.is_inference()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "sift",
            r"unknown \(choose hog, soft-hog, font-digits, efficientnet-lite0, package.module:factory or ",
        ),
        ("soft-hog:0.7+font-digit", "features 'font-digit' are unknown; did you mean 'font-digits'"),
        ("soft-hog:0+font-digits", "the weight of 'soft-hog' is 0; expected more than 0"),
        ("soft-hog:-1", "the weight of 'soft-hog' is -1; expected more than 0"),
        ("soft-hog:1e999", "the weight of 'soft-hog' is 1e999; expected more than 0"),
        ("soft-hog:half", "features 'soft-hog:half': write it as package.module:factory"),
        ("soft-hog+soft-hog:2", "'soft-hog' occurs twice"),
        ("soft-hog+", "features '' are unknown"),
        ("efficientnet-lite0", r"need colour images with three channels, not \(1, 28, 28\)"),
        ("{own}:wrong", "returned a int, not a function"),
        ("{own}:misspelt", r"failed for inputs of shape \(1000, 1, 28, 28\): NameError"),
        ("{own}:colour", "failed for inputs of shape .*: RuntimeError"),
        ("{own}:short", r"gave \(1, 784\) for 1000 inputs"),
        ("{own}:nan", "NaN or infinity"),
        ("{own}:centred", "depend on the rest of the batch"),
        ("{own}:broken", "the factory failed: ZeroDivisionError"),
        ("{own}:missing", "has no 'missing'"),
    ],
)
def test_errors_name_what_is_wrong_with_features(own, name, message):
    with pytest.raises(ValueError, match=message):
        extracted(load_dataset("mnist5k"), name.format(own=own))


def test_images_must_divide_into_cells():
    whole = load_dataset("mnist5k")
    cut = dataclasses.replace(
        whole, train_inputs=whole.train_inputs[:, :, 1:], test_inputs=whole.test_inputs[:, :, 1:]
    )
    with pytest.raises(ValueError, match=r"multiples of 4, not \(1, 27, 28\)"):
        extracted(cut, "hog")


def test_a_model_with_features_takes_no_others():
    assert extractor_and_model("", "soft-hog-linear") == ("soft-hog", "linear")
    with pytest.raises(ValueError, match="already has features; use model = 'linear'"):
        extractor_and_model("hog", "hog-linear")


@pytest.mark.parametrize("name", AS_MODELS)
def test_a_model_with_features_inside_has_the_gradient_of_one_on_them(name):
    whole = load_dataset("mnist5k")
    rows = extracted(whole, name)
    linear = make_model("linear", in_shape=(DIGITS[name],))
    _, outside = loss_gradient(linear, rows.train_inputs[:9], rows.train_labels[:9])
    _, inside = loss_gradient(make_model(f"{name}-linear"), whole.train_inputs[:9], whole.train_labels[:9])
    np.testing.assert_allclose(inside, outside, atol=1e-6)


def test_random_filters_are_always_the_same(own):
    first, second = (extracted(load_dataset("mnist5k"), f"{own}:filters").train_inputs[:3] for _ in range(2))
    assert torch.equal(first, second)


def test_the_parts_of_a_mixture_have_lengths_in_the_ratio_of_their_weights(own):
    rows = extracted(load_dataset("mnist5k"), f"soft-hog:3+{own}:flat:4").train_inputs
    assert rows.shape == (4000, 392 + 784)
    np.testing.assert_allclose(rows[:, :392].norm(dim=1).numpy(), 0.6, rtol=1e-5)
    np.testing.assert_allclose(rows[:, 392:].norm(dim=1).numpy(), 0.8, rtol=1e-5)


def test_digit_features_need_grey_images_of_28_by_28():
    colours = torch.rand(6, 3, 32, 32)
    parts = {"train_inputs": colours, "test_inputs": colours, "train_labels": torch.arange(6)}
    data = Dataset(name="colours", **parts, test_labels=torch.arange(6), classes=10, held_out="six")
    with pytest.raises(ValueError, match=r"'font-digits' need grey images of 28 x 28, not \(3, 32, 32\)"):
        extracted(data, "soft-hog+font-digits")


@pytest.mark.parametrize("name", ["font-digits", "soft-hog:0.5+font-digits:0.87"])
def test_the_public_head_gives_the_same_scores_in_a_mixture(name):
    whole = load_dataset("mnist5k")
    rows = extracted(whole, name)
    model = make_model("pretrained-linear", 10, rows.in_shape, head=rows.head)
    wanted = font_digits(whole.test_inputs[:50]) @ font_head().T
    torch.testing.assert_close(model(rows.test_inputs[:50]), wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["soft-hog", "font-digits"])
def test_a_pretrained_model_needs_a_public_head_for_its_classes(name):
    whole = load_dataset("mnist5k")
    classes = 10 if name == "soft-hog" else 11
    rows = extracted(dataclasses.replace(whole, classes=classes), name)
    with pytest.raises(ValueError, match="needs features with a public head for these classes"):
        make_model("pretrained-linear", classes, rows.in_shape, head=rows.head)


def test_slow_features_are_computed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_FEATURES", str(tmp_path))
    calls = []

    def network(images):
        calls.append(len(images))
        return images.flatten(1)

    slow = {"soft-hog": (lambda: b"identity", network, lambda values: values.float())}
    monkeypatch.setattr("sqsgd.learning.features.SLOW", slow)
    whole = load_dataset("mnist5k")
    first, second = (extracted(whole, "soft-hog").train_inputs for _ in range(2))
    assert torch.equal(first, second)
    assert sum(calls) == 5000
