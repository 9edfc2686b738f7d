"""Features that are kept on disk: computed once, found by content, resumed."""

import pytest
import torch

from sqsgd.learning import slow_features
from sqsgd.learning.slow_features import cache_folder, kept, progress


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_FEATURES", str(tmp_path / "kept"))
    monkeypatch.setattr(slow_features, "_PART", 4)
    return tmp_path / "kept"


class Network:
    def __init__(self):
        self.seen = 0

    def __call__(self, images):
        self.seen += len(images)
        return images.flatten(1) * 2


def test_values_are_computed_once_for_each_content_and_network(folder):
    network, images = Network(), torch.rand(10, 1, 2, 2)
    first = kept("twice", b"network 1", network, images)
    torch.testing.assert_close(first.float(), images.flatten(1) * 2, atol=2e-3, rtol=0)
    assert torch.equal(kept("twice", b"network 1", network, images), first)
    assert network.seen == 10
    kept("twice", b"network 2", network, images)
    assert network.seen == 20
    images[9] += 1
    kept("twice", b"network 1", network, images)  # only the last part has changed
    assert network.seen == 22
    assert not list(folder.glob("*.partial"))


def test_an_interrupted_extraction_resumes():
    class Interrupted(Network):
        def __call__(self, images):
            if self.seen >= 8:
                raise KeyboardInterrupt
            return super().__call__(images)

    images = torch.rand(10, 3)
    with pytest.raises(KeyboardInterrupt):
        kept("twice", b"network", Interrupted(), images)
    network = Network()
    assert kept("twice", b"network", network, images).shape == (10, 3)
    assert network.seen == 2


def test_the_place_can_be_chosen(monkeypatch, tmp_path, folder):
    assert cache_folder() == folder
    monkeypatch.delenv("SQSGD_FEATURES")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sqsgd" / "features"


def test_progress_says_how_long_it_takes(capsys, monkeypatch):
    clock = iter(range(0, 1000, 40))
    monkeypatch.setattr(slow_features.time, "monotonic", lambda: next(clock))
    assert list(progress("digits", [5, 6, 7, 8])) == [5, 6, 7, 8]
    assert capsys.readouterr().err == (
        "features digits: 25%, 4.0 min left\nfeatures digits: 75%, 0.9 min left\n"
    )
