"""The audit as files: one self-contained HTML page, the pictures as PNG, the numbers as JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd._internal.files import write_atomically
from sqsgd.audit.findings import Audit, Finding, Image, Pictures, shown
from sqsgd.report.page import render

Pixels = npt.NDArray[np.uint8]
_ZOOM, _GAP = 5, 8
_KINDS = {
    "ratio": "Likelihood ratios: does any message distinguish two inputs better than epsilon allows?",
    "distinguish": "Distinguishing: what lower bound on epsilon do real messages give?",
    "tally": "Tally: does any pair of many inputs give any output too differently, by counts alone?",
    "law": "Goodness of fit: do reports have the distribution that the proof assumes?",
    "noise": "Noise: does it come from the operating system, and is it never reused?",
    "message": "Messages: do they contain anything besides the private codes?",
    "reconstruct": "Reconstruction: how much of a gradient, or of pictures, does one message reveal?",
}


def write_audit(audit: Audit, folder: str | Path) -> list[Path]:
    """Write audit.html, audit.json and, if there are pictures, pictures.png, each atomically.

    Returns:
        The files.

    Raises:
        ValueError: if ``folder`` is a file.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ValueError(f"out = {target} is a file; it must be a folder")
    target.mkdir(parents=True, exist_ok=True)
    pictures = [each for finding in audit.findings for each in finding.pictures]
    files = {"audit.html": page(audit).encode(), "audit.json": json.dumps(audit.to_dict(), indent=2).encode()}
    if pictures:
        files["pictures.png"] = _png(_grid(pictures))
    for name, content in files.items():
        write_atomically(target / name, content)
    return [target / name for name in files]


def page(audit: Audit) -> str:
    """The HTML page: findings by kind of check, in the order in which the kinds first appear."""
    kinds: dict[str, list[Finding]] = {}
    for finding in audit.findings:
        kinds.setdefault(_KINDS.get(finding.check, finding.check), []).append(finding)
    return render(
        Path(__file__).with_name("audit.html"),
        title=f"Audit of {audit.scheme}",
        kind="audit",
        audit=audit,
        guarantee="none" if audit.notion == "none" else f"epsilon {audit.epsilon:,.12g} ({audit.notion})",
        kinds=kinds,
        shown=shown,
        batches=[(each, _rows(each)) for finding in audit.findings for each in finding.pictures],
    )


def _rows(batch: Pictures) -> dict[str, list[Any]]:
    """The rows of pictures, each with its likeness."""
    rows = {
        "Original": (batch.originals, [None] * len(batch.originals)),
        "From the raw gradient": (batch.from_gradient, batch.gradient_likeness),
        "From one report": (batch.from_report, batch.report_likeness),
    }
    return {
        label: [
            (base64.b64encode(_png(_pixels(image))).decode(), likeness)
            for image, likeness in zip(images, likenesses, strict=True)
        ]
        for label, (images, likenesses) in rows.items()
    }


def _png(pixels: Pixels) -> bytes:
    """A greyscale picture as PNG."""
    from PIL import Image as PillowImage

    buffer = io.BytesIO()
    PillowImage.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _pixels(image: Image, zoom: int = 1) -> Pixels:
    grey = np.rint(255 * np.clip(image, 0.0, 1.0)).astype(np.uint8)
    return np.kron(grey, np.ones((zoom, zoom), np.uint8))


def _grid(pictures: Sequence[Pictures]) -> Pixels:
    """From top to bottom: originals, from the raw gradient, from one report; batches are side by side."""
    rows = []
    for kind in ("originals", "from_gradient", "from_report"):
        cells: list[Pixels] = []
        for batch in pictures:
            for image in getattr(batch, kind):
                cells += [_pixels(image, _ZOOM), np.full((_ZOOM * image.shape[0], _GAP), 255, np.uint8)]
            cells.append(np.full((cells[-1].shape[0], 2 * _GAP), 255, np.uint8))
        rows += [np.concatenate(cells, axis=1)[:, : -3 * _GAP]]
    gap = np.full((_GAP, rows[0].shape[1]), 255, np.uint8)
    return np.concatenate([rows[0], gap, rows[1], gap, rows[2]])
