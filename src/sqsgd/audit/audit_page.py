"""The audit as files: one self-contained HTML page, the pictures as PNG, the numbers as JSON."""

from __future__ import annotations

import base64
import json
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sqsgd import __version__
from sqsgd.audit.findings import Audit, Finding, Image, Likeness, Pictures, shown
from sqsgd.files.durable import write_atomically
from sqsgd.report.styles import style_sheet
from sqsgd.report.text import escape

Pixels = npt.NDArray[np.uint8]
_ZOOM, _GAP = 5, 8
_ROWS = "From top to bottom: the original, from the raw gradient, from one report."
_KINDS = {
    "ratio": "Likelihood ratios: does any message distinguish two inputs better than epsilon allows?",
    "distinguish": "Distinguishing: what lower bound on epsilon do real messages give?",
    "tally": "Tally: does any pair of many inputs give any output too differently, by counts alone?",
    "law": "Goodness of fit: do reports have the distribution that the proof assumes?",
    "noise": "Noise: does it come from the operating system, and is it never reused?",
    "message": "Messages: do they contain anything besides the private codes?",
    "reconstruct": "Reconstruction: how much of a gradient, or of pictures, does one message reveal?",
}
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_OWN_STYLE = """
.outcome { white-space: nowrap; font-weight: 620; }
.violated { color: var(--warning); }
.skipped { color: var(--muted); font-weight: 400; }
.verdict { max-width: none; border-left: 6px solid; border-radius: 6px; padding: .7rem 1rem; font-weight: 620;
  font-size: 1.1rem; background: var(--surface); margin: 1rem 0; }
.verdict.kept { border-color: var(--accent); }
.verdict.broken, .verdict.nothing { border-color: var(--warning); color: var(--warning); }
tr.kind th { padding-top: 1.2rem; font-weight: 620; color: var(--muted); }
.scroll + p { margin-top: .75rem; }
.scroll.narrow { width: fit-content; margin-bottom: .5rem; }
@media (max-width: 48rem) {
  table.found, .found tbody { display: block; }
  .found thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .found tr { display: grid; grid-template-columns: minmax(0, 1fr) auto; padding: .6rem; }
  .found tr + tr { border-top: 1px solid var(--line); }
  .found tbody tr > * { border: 0; padding: .1rem 0; }
  .found td.words { grid-column: 1 / -1; order: 3; }
  .found td.number { grid-column: 1 / -1; order: 2; text-align: left; color: var(--muted); }
  .found td.number:empty { display: none; }
  .found td.number::before { content: attr(data-name) ": "; }
}
img { image-rendering: pixelated; display: block; width: 112px; height: 112px; }
table.pictures { width: auto; }
.pictures td, .pictures th { vertical-align: top; }
.pictures small { color: var(--muted); display: block; margin-top: .25rem; }
"""


def write_audit(audit: Audit, folder: str | Path) -> list[Path]:
    """Write audit.html, audit.json and, if there are pictures, pictures.png, each atomically."""
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ValueError(f"out = {target} is a file; it must be a folder")
    target.mkdir(parents=True, exist_ok=True)
    pictures = [each for finding in audit.findings for each in finding.pictures]
    files = {"audit.html": page(audit).encode(), "audit.json": json.dumps(audit.to_dict(), indent=2).encode()}
    if pictures:
        files["pictures.png"] = png(_grid(pictures), _ROWS)
    for name, content in files.items():
        write_atomically(target / name, content)
    return [target / name for name in files]


# ---------------------------------------------------------------- pictures


def png(pixels: Pixels, description: str = "") -> bytes:
    """A greyscale picture as PNG (RFC 2083).

    >>> png(np.zeros((2, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)  # each row unfiltered
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))]
    if description:
        parts.append((b"tEXt", b"Description\0" + description.encode("latin-1")))
    parts += [(b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _pixels(image: Image, zoom: int = 1) -> Pixels:
    grey = np.rint(255 * np.clip(image, 0.0, 1.0)).astype(np.uint8)
    return np.kron(grey, np.ones((zoom, zoom), np.uint8))


def _grid(pictures: Sequence[Pictures]) -> Pixels:
    """A row for the originals and one per source of the recovered pictures, with the batches side by side."""
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


# ---------------------------------------------------------------- the page


def page(audit: Audit) -> str:
    """The HTML page."""
    promise = "none" if audit.notion == "none" else f"epsilon {audit.epsilon:,.12g} ({audit.notion})"
    batches = [each for finding in audit.findings for each in finding.pictures]
    title = f"Audit of {audit.scheme}"
    footer = time.strftime(f"Written by sqsgd {__version__} on %Y-%m-%d at %H:%M UTC.", time.gmtime())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style_sheet()}{_OWN_STYLE}</style>
</head>
<body>
<header>
<p class="brand">sqsgd <span>audit</span></p>
<h1>{escape(title)}</h1>
<p class="verdict {audit.result.split()[0]}"><span class="hidden">Result: </span>{escape(audit.verdict)}</p>
<p class="lead">Guarantee: {escape(promise)} for one report of {audit.dim:,} coordinates in
{audit.message_bytes:,} bytes. {audit.trials:,} trials, seed {audit.seed}.</p>
</header>
<main>
<section aria-labelledby="found"><h2 id="found">Checks</h2>
<p>An audit that passes proves nothing: it tried to break the guarantee and did not succeed.
For goodness-of-fit tests, "measured" is -log10 of the p-value.</p>
<div class="scroll" tabindex="0"><table class="found"><thead><tr>
<th scope="col">Check</th><th scope="col">Outcome</th>
<th scope="col" class="number">Measured</th><th scope="col" class="number">Limit</th>
<th scope="col">Explanation</th></tr></thead>
<tbody>{_rows(audit.findings)}</tbody></table></div></section>
{_pictures(batches) if batches else ""}
</main>
<footer><p>{escape(footer)}</p></footer>
</body>
</html>
"""


def _rows(findings: Sequence[Finding]) -> str:
    """The findings grouped by kind of check, in the order in which the kinds first appear."""
    kinds = dict.fromkeys(finding.check for finding in findings)
    return "".join(
        f'<tr class="kind"><th colspan="5" scope="rowgroup">{escape(_KINDS.get(kind, kind))}</th></tr>'
        + "".join(_row(finding) for finding in findings if finding.check == kind)
        for kind in kinds
    )


def _row(finding: Finding) -> str:
    kind = {"passed": "", "violated": " violated", "not applicable": " skipped"}[finding.outcome]
    return (
        f'<tr><th scope="row">{escape(finding.name)}</th>'
        f'<td class="outcome{kind}">{escape(finding.outcome)}</td>'
        f'<td class="number" data-name="measured">{shown(finding.measured)}</td>'
        f'<td class="number" data-name="limit">{shown(finding.limit)}</td>'
        f'<td class="words">{escape(finding.sentence)}</td></tr>'
    )


def _pictures(batches: Sequence[Pictures]) -> str:
    parts = [
        '<section aria-labelledby="pictures"><h2 id="pictures">Pictures from a gradient</h2>'
        "<p>The attacker knows the model (LeNet-5 before training), its weights, the labels and which "
        "coordinates were sent, and searches for pictures whose gradient has the direction of the report. "
        "Their smoothness was tuned on the originals, which favours the attacker. Below each picture: its "
        "correlation with the original, its structural similarity and its signal-to-noise ratio.</p>"
    ]
    for batch in batches:
        blind = sum(each.correlation for each in batch.blind_likeness) / len(batch.blind_likeness)
        heads = "".join(f'<th scope="col">{i + 1}</th>' for i in range(len(batch.originals)))
        parts.append(
            f'<h3>{escape(batch.title)}</h3><div class="scroll narrow" tabindex="0">'
            '<table class="pictures"><thead><tr>'
            f'<th scope="col">Picture</th>{heads}</tr></thead><tbody>'
            + _cells("Original", batch.originals, None)
            + _cells("From the raw gradient", batch.from_gradient, batch.gradient_likeness)
            + _cells("From one report", batch.from_report, batch.report_likeness)
            + "</tbody></table></div>"
            f"<p>The gradient that the server decodes has a cosine of {batch.report_cosine:.3f} with the "
            "true one on the coordinates that were sent. The same attack on a report about other pictures "
            f"gets a correlation of {blind:.2f}: this is the baseline without the target's data.</p>"
        )
    return "".join(parts) + "</section>"


def _cells(label: str, pictures: Sequence[Image], likeness: Sequence[Likeness] | None) -> str:
    cells = []
    for i, image in enumerate(pictures):
        data = base64.b64encode(png(_pixels(image))).decode()
        note = ""
        if likeness is not None:
            each = likeness[i]
            note = f"<small>{each.correlation:.2f} · {each.structure:.2f} · {each.decibels:.1f} dB</small>"
        alternative = f"{label}, picture {i + 1}"
        cells.append(f'<td><img src="data:image/png;base64,{data}" alt="{escape(alternative)}">{note}</td>')
    return f'<tr><th scope="row">{escape(label)}</th>{"".join(cells)}</tr>'
