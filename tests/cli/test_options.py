"""Texts of options as values."""

import pytest

from sqsgd.cli import _options as options
from sqsgd.cli._options import given, listed, numbers, own_options, scheme_options


def test_values_of_options_have_the_types_of_toml():
    pairs = ["levels=8", "adaptive=true", "reach=1.5", "kind=fast", "name=", 'text="8"', "formula=a=b"]
    assert scheme_options(pairs) == {
        "levels": 8, "adaptive": True, "reach": 1.5, "kind": "fast", "name": "", "text": "8",
        "formula": "a=b",
    }  # fmt: skip


@pytest.mark.parametrize("pair", ["levels", "=8", ""])
def test_a_pair_has_a_name_and_an_equals_sign(pair):
    with pytest.raises(ValueError, match="must look like name=value"):
        scheme_options(["reach=1.5", pair])


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="option levels is given twice"):
        scheme_options(["levels=8", "reach=2", "levels = four"])


def test_what_a_command_has_an_option_for_is_not_taken_as_a_schemes():
    own = {"bits": "--bytes"}
    assert own_options(["levels=8"], own) == {"levels": 8}
    with pytest.raises(ValueError, match="bits = 2048 is no option of a scheme; use --bytes"):
        own_options(["levels=8", "bits=2048"], own)


def test_lists():
    assert listed(" sqsgd, fedsgd ,,") == ["sqsgd", "fedsgd"]
    assert numbers("rates", "0.1, 1e-3") == [0.1, 0.001]
    with pytest.raises(ValueError, match=r"rates = '0\.1;0\.3' must be numbers with commas between"):
        numbers("rates", "0.1;0.3")


def test_zero_and_false_are_given_but_none_is_not():
    assert given(lr=0.0, secure=False, seed=None, model="") == {"lr": 0.0, "secure": False, "model": ""}


def test_the_shell_is_offered_what_the_commands_take():
    from sqsgd.learning.dataset_files import dataset_status
    from sqsgd.learning.fetch import fetch

    assert options.complete_dataset() == [row.name for row in dataset_status("/nowhere")]
    with pytest.raises(ValueError, match=f"choose {', '.join(options.complete_fetchable())}"):
        fetch("nothing", "/nowhere")
