"""Hooks of mkdocs: decision records are pages of the site, and no results of its search."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave decision records out of the search index: their titles hold the words that users search guides by."""
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"exclude": True}
    return markdown
