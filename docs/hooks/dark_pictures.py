"""Pictures follow the reader's choice of colours: each SVG gets a copy for dark pages.

The theme hides images whose address ends in #only-light or #only-dark where they do not belong.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from sqsgd.report.styles import DARK, LIGHT

PICTURE = re.compile(r"(!\[[^\]]*\]\()([^)\s]+?)\.svg(\))((?:\{[^}]*\})?)")
COLOURS = {
    "#000000": DARK.ink,
    "#ffffff": DARK.surface,
    **{
        getattr(LIGHT, name): getattr(DARK, name)
        for name in ("ink", "muted", "line", "accent", "warning", "background")
    },
    **dict(zip(LIGHT.series, DARK.series, strict=True)),
}


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs when it has listed the files: add a dark copy of each picture."""
    pictures = [file for file in files if file.src_uri.endswith(".svg")]
    for file in pictures:
        content = darkened(Path(file.abs_src_path or "").read_text(encoding="utf-8"))
        files.append(File.generated(config, file.src_uri.replace(".svg", "-dark.svg"), content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with the source of each page: show one of the two copies."""
    return PICTURE.sub(r"\1\2.svg#only-light\3\4 \1\2-dark.svg#only-dark\3\4", markdown)


def darkened(picture: str) -> str:
    """The picture in dark colours; text without a colour is black."""
    known = re.compile("|".join(map(re.escape, COLOURS)), re.IGNORECASE)
    changed = known.sub(lambda found: COLOURS[found[0].lower()], picture)
    return changed.replace("</defs>", f"<style>text {{ fill: {DARK.ink} }}</style></defs>", 1)
