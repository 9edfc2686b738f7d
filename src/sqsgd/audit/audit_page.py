"""The audit as files: one self-contained HTML page, and the numbers as JSON."""

import json
from pathlib import Path

from sqsgd._internal.files import write_atomically
from sqsgd.audit.findings import Audit, Finding, shown
from sqsgd.report.page import render

_KINDS = {
    "ratio": "Likelihood ratios: does any message distinguish two inputs better than epsilon allows?",
    "distinguish": "Distinguishing: what lower bound on epsilon do real messages give?",
    "tally": "Tally: does any pair of many inputs give any output too differently, by counts alone?",
    "law": "Goodness of fit: do reports have the distribution that the proof assumes?",
    "noise": "Noise: does it come from the operating system, and is it never reused?",
    "message": "Messages: do they contain anything besides the private codes?",
    "reconstruct": "Reconstruction: how much of a gradient does one message reveal?",
}


def write_audit(audit: Audit, folder: str | Path) -> list[Path]:
    """Write audit.html and audit.json, and return their paths."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = {"audit.html": page(audit).encode(), "audit.json": json.dumps(audit.to_dict(), indent=2).encode()}
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
    )
