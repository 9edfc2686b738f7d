"""The device of the gradient: what is there is found, and what is not is told."""

import pytest
import torch

from sqsgd.learning.devices import find_device


def have(monkeypatch, *devices):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in devices)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in devices)


@pytest.mark.parametrize(
    ("there", "chosen"), [((), "cpu"), (("mps",), "mps"), (("cuda",), "cuda"), (("cuda", "mps"), "cuda")]
)
def test_auto_takes_the_first_that_is_there(monkeypatch, there, chosen):
    have(monkeypatch, *there)
    assert find_device("auto") == chosen
    assert find_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_an_error_that_says_what_is(monkeypatch, name):
    have(monkeypatch)
    with pytest.raises(ValueError, match=rf"device = '{name}': .*; here there is cpu \(torch 2"):
        find_device(name)
    have(monkeypatch, name)
    assert find_device(name) == name


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="must be one of auto, cuda, mps, cpu"):
        find_device("gpu")
