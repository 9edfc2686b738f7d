"""The JavaScript client: its own tests pass, and it computes what Python computes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from javascript import FOLDER, client

import sqsgd
from sqsgd.audit.conformance import compare, read_vectors
from sqsgd.learning.features import soft_hog, unit

ROOT = Path(__file__).parents[2]


def node(*arguments, given=""):
    """What a script prints."""
    folder = client()
    done = subprocess.run(
        [shutil.which("node"), *arguments],
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_its_own_tests_pass():
    tests = sorted(str(path.relative_to(FOLDER)) for path in (FOLDER / "test").glob("*.test.js"))
    assert len(tests) >= 4
    assert re.search(r"^# fail 0$", node("--test", "--test-reporter=tap", *tests), re.MULTILINE)


def test_it_conforms():
    lines = [json.dumps(group) for group in read_vectors()["groups"]]
    answers: dict = {}
    for line in node("test/answers.js", given="\n".join(lines)).splitlines():
        for section, found in json.loads(line).items():
            answers.setdefault(section, {}).update(found)
    found = compare(answers, read_vectors())
    assert found.conforms, found.differences[:3]
    assert found.unanswered == ["estimates"]


def test_random_vectors_have_the_same_messages():
    client()
    script = ROOT / "benchmarks/js_encoder.py"
    done = subprocess.run(
        [sys.executable, str(script), "--vectors", "100", "--seed", "7"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "100 vectors, all messages equal" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize(("height", "width"), [(28, 28), (12, 20)])
def test_features_and_gradient_are_those_of_python(height, width):
    numbers = np.random.default_rng(5)
    images = numbers.standard_normal((6, height, width)).astype(np.float32)
    images[0] = 0
    images[1, 3:9, 4:8] = 2.0
    labels = np.arange(6)
    features = unit(soft_hog(torch.from_numpy(images)[:, None]).flatten(1))
    weights = numbers.standard_normal((10, features.shape[1])).astype(np.float32)
    model = torch.from_numpy(weights).requires_grad_()
    loss = torch.nn.functional.cross_entropy(features @ model.T, torch.from_numpy(labels))
    (gradient,) = torch.autograd.grad(loss, model)
    given = {
        "images": images.reshape(6, -1).tolist(), "labels": labels.tolist(),
        "height": height, "width": width, "weights": weights.reshape(-1).tolist(),
    }  # fmt: skip
    found = json.loads(node("test/learned.js", given=json.dumps(given)))
    assert np.abs(np.array(found["features"]) - features.numpy()).max() < 2e-5
    assert abs(found["loss"] - loss.item()) < 1e-5 * loss.item()
    assert np.abs(np.array(found["gradient"]) - gradient.flatten().numpy()).max() < 1e-5


def test_nothing_names_a_registry_and_versions_are_pinned():
    lock = json.loads((FOLDER / "package-lock.json").read_text())
    package = json.loads((FOLDER / "package.json").read_text())
    assert "resolved" not in (FOLDER / "package-lock.json").read_text()
    assert all(re.fullmatch(r"[\d.]+", version) for version in package["devDependencies"].values())
    assert "dependencies" not in package
    assert package["version"] == lock["version"] == sqsgd.__version__
