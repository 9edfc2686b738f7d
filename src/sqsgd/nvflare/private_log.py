"""The owner's log: a file that NVFlare neither streams nor shows to administrators."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import final

MAX_BYTES = 4 * 1024 * 1024
"""Size of ``log.txt`` beyond which it becomes ``log.1.txt`` and a new one begins."""


def private_log(folder: Path) -> logging.Logger:
    """A logger that writes to ``log.txt`` in ``folder`` and nowhere else.

    Guarantees
    ----------
    * Nothing reaches the handlers of the process, which are NVFlare's:
      tests/nvflare/test_private_log.py::test_nothing_reaches_other_handlers.
    * A file that cannot be written raises and prints nothing:
      tests/nvflare/test_private_log.py::test_no_failure_is_told.
    """
    log = logging.Logger("sqsgd")  # not from getLogger: it has no parent
    log.addHandler(_PrivateFile(folder))
    return log


@final
class _PrivateFile(logging.Handler):
    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self._path = folder / "log.txt"
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        # Whether there is anything to log may depend on data; whether it can be written must not be told.
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
                self._path.replace(self._path.with_name("log.1.txt"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{self.format(record)}\n")
