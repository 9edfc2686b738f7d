"""Makes the search work on pages opened from disk, where the theme reads its index from a script."""

from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority


@event_priority(-100)  # after the search has written its index
def on_post_build(config: Any) -> None:
    """Called by MkDocs when all pages are written."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index};\n", encoding="utf-8")
