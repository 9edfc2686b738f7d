"""A central certificate as a file, verified by a program that shares no code with this package."""

import copy
import hashlib
import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from sqsgd import Pass, central_guarantee, composed_guarantee, make_scheme
from sqsgd.privacy.certificate import document

TOOL = Path(__file__).parents[2] / "tools" / "check_certificate.py"


@cache
def tool():
    spec = importlib.util.spec_from_file_location("check_certificate", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def index(epsilon, dim=100, **options):
    return make_scheme("privunit-index", dim=dim, epsilon=epsilon, **options)


def written(scheme, users, **options):
    """A document as it is read from a file."""
    found = central_guarantee(scheme, users, 1e-3, **options)
    content = json.loads(json.dumps(document(found, scheme)))
    assert found.epsilon < content["epsilon"] <= 1.002 * found.epsilon + 1e-9
    return content


def said(content):
    lines = []
    tool().verify(content, lines.append)
    return "\n".join(lines)


def signed(content):
    """With the digest of what it says."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "digest": hashlib.sha256(text.encode()).hexdigest()}


@cache
def several():
    """Two reports of each of 20 users: a check takes a second."""
    return written(index(0.5), 20, reports=2)


def test_one_report_is_confirmed_by_python_alone(tmp_path):
    """In a process that sees no installed package."""
    path = tmp_path / "central.json"
    path.write_text(json.dumps(document(central_guarantee(index(4.0), 60000, 1e-6), index(4.0))))
    done = subprocess.run(
        [sys.executable, "-I", "-S", TOOL, path], capture_output=True, text=True, check=True
    )
    assert "verified: delta(0.1" in done.stdout
    assert "not verified: that the reports have this law" in done.stdout
    assert "uniform, independent of their data, and secret" in done.stdout


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (index(2.0), {"users": 300}),
        (make_scheme("sqsgd-stateless", dim=500, epsilon=4.0, bytes=8, code="signs"), {"users": 3000}),
        (make_scheme("sqsgd-stateless", dim=100, epsilon=12.0, bytes=8), {"users": 300}),
        (make_scheme("vqsgd", dim=100, epsilon=1.0, repeats=1), {"users": 300}),
        (index(0.25), {"users": 1000, "reports": 3, "linked": "tickets"}),
    ],
    ids=["nearest", "signs and a norm", "sparse", "generic", "linked"],
)
def test_one_report_of_each_law_is_confirmed(scheme, options):
    assert "verified: delta(" in said(written(scheme, **options))


def test_several_reports_are_confirmed():
    assert "for 2 reports of a user" in said(several())
    passes = [
        Pass(scheme=index(0.5), users=6),
        Pass(scheme=index(0.25), users=4),
        Pass(scheme=index(0.1), users=1),
    ]
    content = document(composed_guarantee(passes, 1e-2), passes)
    assert [entry["bound"] for entry in content["passes"]] == ["blanket", "blanket", "local"]
    assert "for 3 reports" in said(content)


def places(value, path=()):
    """The paths of all fields."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, part in items for found in places(part, (*path, key))]
    return [path]


def changed(content, path, change):
    content = copy.deepcopy(content)
    inside = content
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = change(inside[path[-1]])
    return content


def test_each_changed_field_is_refused():
    content = several()
    for path in places(content):
        other = changed(content, path, lambda value: value + ("1" if isinstance(value, str) else 1))
        with pytest.raises(ValueError, match="digest"):
            said(other)


CHANGES = {
    ("epsilon",): lambda value: value * 0.9,
    ("delta",): lambda value: value * 0.5,
    ("local_epsilon",): lambda value: value * 0.9,
    ("reports",): lambda value: value + 1,
    ("linked",): lambda _: "tickets",
    ("format",): lambda value: value + "1",
    ("step_bits",): lambda value: value + 1,
    ("dot_bits",): lambda value: value + 1,
    ("passes", 0, "reports"): lambda value: value + 1,
    ("passes", 0, "users"): lambda value: value - 3,
    ("passes", 0, "local_epsilon"): lambda value: value * 0.9,
    ("passes", 0, "bound"): lambda _: "generic",
    ("passes", 0, "dots", 0, 1): lambda value: int(0.9 * value),
    ("passes", 0, "dots", 1, 0): lambda value: value - 2,
    ("passes", 0, "dots", 2, 0): lambda _: 0,
    ("passes", 0, "scheme"): lambda value: value.replace("nearest", "about nearest"),
}


@pytest.mark.parametrize("path", CHANGES, ids=str)
def test_a_claim_that_does_not_hold_is_refused(path):
    """Also with a digest that fits."""
    with pytest.raises((ValueError, IndexError)):
        said(signed(changed(several(), path, CHANGES[path])))


def test_only_central_guarantees_in_exact_arithmetic_have_a_document():
    with pytest.raises(ValueError, match="no central guarantee of these passes"):
        document(central_guarantee(index(4.0), 2, 1e-9), index(4.0))
    with pytest.raises(ValueError, match="no central guarantee of these passes"):
        document(central_guarantee(index(1.0), 1000, 1e-6), index(2.0))
    real = make_scheme("privunit", dim=100, epsilon=2.0, bytes=32)
    with pytest.raises(ValueError, match="real arithmetic only"):
        document(central_guarantee(real, 1000, 1e-3), real)
