"""Hooks of mkdocs: pages for contributors are pages of the site, and no results of its search."""

from __future__ import annotations

from typing import Any

FOR_CONTRIBUTORS = ("guides/test-cluster.md", "reference/contract-matrix.md", "reference/tested-verdicts.md")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave pages for contributors out of the search index: they have the words by which users search guides."""
    if page.file.src_uri.startswith("decisions/") or page.file.src_uri in FOR_CONTRIBUTORS:
        page.meta["search"] = {"exclude": True}
    return markdown
