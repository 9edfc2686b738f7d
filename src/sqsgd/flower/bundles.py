"""What a bundle of an app may hold, checked before anything is unpacked.

Flower reads a bundle's files whole and trusts the sizes that it states: 614 kB can become more than a
gigabyte. An ordinary app is some kilobytes of text.
"""

from __future__ import annotations

import io
import stat
import zipfile
from functools import partial
from pathlib import PurePosixPath

MOST_BYTES = 10 * 1024 * 1024
"""Bytes of a bundle, as in Flower."""
MOST_UNPACKED = 32 * 1024 * 1024
MOST_FILES = 2000
_ENTRY = b"PK\x01\x02"  # begins the description of each file
_BLOCK = 1 << 16


class BadBundle(ValueError):
    """A bundle that is too large or not what Flower builds."""


def check_bundle(content: bytes) -> None:
    """Raise BadBundle unless the bundle holds a limited number of ordinary files of limited size.

    Guarantees
    ----------
    * No more than a block of a file is held at a time, whatever sizes the bundle states; a bundle that
      unpacks to more than ``MOST_UNPACKED`` bytes is refused:
      tests/flower/test_bundles.py::test_a_bomb_is_refused_in_little_memory, ::test_stated_sizes_are_checked.
    * Every file lies below the folder to which it is unpacked, and is no link:
      tests/flower/test_bundles.py::test_names_that_lead_elsewhere_are_refused.
    """
    if len(content) > MOST_BYTES:
        raise BadBundle(f"{len(content)} bytes; at most {MOST_BYTES} are allowed")
    if content.count(_ENTRY) > MOST_FILES:  # before zipfile makes an object of each
        raise BadBundle(f"more than {MOST_FILES} files")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            _check_files(bundle)
    except BadBundle:
        raise
    except Exception as error:  # zipfile raises many kinds
        raise BadBundle(f"not a sound archive: {error}") from None


def _check_files(bundle: zipfile.ZipFile) -> None:
    files, names = bundle.infolist(), set[str]()
    for file in files:
        _check_form(file)
        if file.filename in names:
            raise BadBundle(f"two files named {file.filename!r}")
        names.add(file.filename)
    if sum(file.file_size for file in files) > MOST_UNPACKED:
        raise BadBundle(f"its files state more than {MOST_UNPACKED} bytes")
    for file in files:
        with bundle.open(file) as stream:  # ends at the stated size, and then compares the checksum
            read = sum(len(block) for block in iter(partial(stream.read, _BLOCK), b""))
        if read != file.file_size:
            raise BadBundle(f"{file.filename[:100]!r} states {file.file_size} bytes and has {read}")


def _check_form(file: zipfile.ZipInfo) -> None:
    name, mode = file.orig_filename, file.external_attr >> 16
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or set(name) & set("\\:\0"):
        raise BadBundle(f"the name {name[:100]!r} may lead out of the app's folder")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadBundle(f"{name[:100]!r} is neither a file nor a folder")
    if file.flag_bits & 1 or file.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadBundle(f"{name[:100]!r} is encrypted or compressed in an unusual way")
