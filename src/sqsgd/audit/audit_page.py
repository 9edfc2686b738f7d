"""The audit as files: one self-contained HTML page, the pictures as PNG, the numbers as JSON."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sqsgd._internal.files import write_atomically
from sqsgd.audit.findings import Audit, Finding, Image, shown
from sqsgd.report.page import render

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
    """Write audit.html, audit.json and a PNG for each finding with pictures, and return their paths."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = {"audit.html": page(audit).encode(), "audit.json": json.dumps(audit.to_dict(), indent=2).encode()}
    pictures = (finding.pictures for finding in audit.findings if finding.pictures)
    files |= {f"pictures-{number}.png": drawn(rows) for number, rows in enumerate(pictures, 1)}
    for name, content in files.items():
        write_atomically(target / name, content)
    return [target / name for name in files]


def page(audit: Audit) -> str:
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
        encoded=lambda rows: base64.b64encode(drawn(rows)).decode(),
    )


def drawn(rows: Mapping[str, Sequence[Image]]) -> bytes:
    """Rows of greyscale pictures as one PNG."""
    from PIL import Image as PillowImage

    def enlarged(image: Image) -> Image:
        return np.pad(np.kron(image, np.ones((_ZOOM, _ZOOM))), (0, _GAP), constant_values=1.0)

    grid, buffer = np.block([[*map(enlarged, images)] for images in rows.values()]), io.BytesIO()
    pixels = np.rint(255 * np.clip(grid[:-_GAP, :-_GAP], 0.0, 1.0)).astype(np.uint8)
    PillowImage.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
