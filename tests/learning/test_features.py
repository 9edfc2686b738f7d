"""Feature extractors: their values, and that each row depends on one image alone."""

import dataclasses

import numpy as np
import pytest
import torch

from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.features import FEATURES, extracted, extractor_and_model
from sqsgd.learning.gradients import loss_gradient
from sqsgd.learning.models import make_model


@pytest.mark.parametrize("name", FEATURES)
def test_a_row_has_unit_length_and_depends_on_its_image_alone(name):
    whole = load_dataset("mnist5k")
    few = extracted(whole, name).train_inputs[:5]
    assert few.shape == (5, 392)
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
        ("sift", r"unknown \(choose hog, soft-hog or package.module:factory\)"),
        ("{own}:wrong", "returned a int, not a function"),
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


@pytest.mark.parametrize("name", FEATURES)
def test_a_model_with_features_inside_has_the_gradient_of_one_on_them(name):
    whole = load_dataset("mnist5k")
    rows = extracted(whole, name)
    linear = make_model("linear", in_shape=(392,))
    _, outside = loss_gradient(linear, rows.train_inputs[:9], rows.train_labels[:9])
    _, inside = loss_gradient(make_model(f"{name}-linear"), whole.train_inputs[:9], whole.train_labels[:9])
    np.testing.assert_allclose(inside, outside, atol=1e-6)


def test_random_filters_are_always_the_same(own):
    first, second = (extracted(load_dataset("mnist5k"), f"{own}:filters").train_inputs[:3] for _ in range(2))
    assert torch.equal(first, second)
