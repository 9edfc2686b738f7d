"""TOML files, right and wrong."""

import pytest

from sqsgd._internal.files import read_toml


def test_keys_and_values(tmp_path):
    (tmp_path / "file.toml").write_text('epsilon = 4.0\n[options]\nname = "ε"\n', encoding="utf-8")
    assert read_toml(tmp_path / "file.toml") == {"epsilon": 4.0, "options": {"name": "ε"}}


@pytest.mark.parametrize("content", [b"epsilon = ", b"epsilon 4", b'name = "\xff"'])
def test_what_is_no_toml_is_said_of_the_file(tmp_path, content):
    (tmp_path / "file.toml").write_bytes(content)
    with pytest.raises(ValueError, match=r"file\.toml is not valid TOML"):
        read_toml(tmp_path / "file.toml")
