"""Names of the form package.module:factory."""

import sys
from pathlib import Path

import pytest

from sqsgd.learning.factories import find_factory


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


def test_a_file_in_the_working_folder_is_found(working_folder: Path) -> None:
    (working_folder / "factory_beside_me.py").write_text("def make():\n    return 42\n")
    assert find_factory("factory_beside_me:make", "model")() == 42


def test_the_working_folder_hides_nothing_that_is_installed(working_folder: Path) -> None:
    (working_folder / "wave.py").write_text("def open(): return 'shadow'\n")
    sys.modules.pop("wave", None)
    assert Path(find_factory("wave:open", "model").__code__.co_filename).parent != working_folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package.models:make", "model 'no_such_package.models:make'.*no module 'no_such_package'"),
        ("json.no_such_part:make", "no module 'json.no_such_part'"),
        ("json:no_such_function", "module 'json' has no 'no_such_function'.*dumps"),
        ("json:__name__", "'__name__' is a str, not a function"),
        (":make", "package.module:factory"),
        ("json:", "package.module:factory"),
    ],
)
@pytest.mark.usefixtures("working_folder")
def test_errors_name_what_is_wrong_with_the_name(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_factory(name, "model")


def test_a_missing_import_inside_the_module_is_not_blamed_on_the_name(working_folder: Path) -> None:
    (working_folder / "factory_with_bad_import.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        find_factory("factory_with_bad_import:make", "model")
