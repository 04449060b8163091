"""Data recipes: lists them, and fetches a public data set to a folder, and on to an object store if asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from windlass.actions import data
from windlass.errors import UsageError
from windlass.recipes.fetch import Fetch, Step
from windlass.recipes.recipe import Recipe
from windlass.recipes.registry import RECIPES
from windlass.runs.context import Context
from windlass.storage.address import Address
from windlass.storage.opening import open_place
from windlass.storage.progress import Progress
from windlass.views.reports import DataFetched, DataRecipe, DataRecipeList, FetchedFile, RefusedFile


def list_recipes() -> DataRecipeList:
    """All recipes."""
    return DataRecipeList(tuple(_view(one) for one in RECIPES.values()))


def fetch(
    recipe: Recipe,
    folder: str,
    context: Context,
    layouts: Sequence[str] = (),
    mirror: str | None = None,
    to: str | None = None,
    step: Step = lambda _what, _progress: nullcontext(),
) -> DataFetched:
    """Fetch a set to a folder, and copy the folder to `to`. Raises UsageError, StorageError, MissingPart."""
    began = time.monotonic()
    address = Address.parse(folder, context.cwd)
    if not address.is_folder:
        raise UsageError(f"{folder} is no folder of this machine", f"name a folder, and the store by --to {folder}")
    if to is not None:
        open_place(Address.parse(to, context.cwd), context.home)  # a wrong address is refused before the download
    done = Fetch(recipe, list(dict.fromkeys(layouts or recipe.default)), Path(address.path), mirror, step).run()
    uploaded = None
    if to is not None:
        progress = Progress()
        with step("copy", progress):
            uploaded = data.copy(str(address), to, context, progress)
    return DataFetched(
        recipe=recipe.name,
        folder=str(address),
        layouts=done.layouts,
        made=done.made,
        files=done.num_files,
        bytes=done.num_bytes,
        fetched_bytes=done.num_bytes_fetched,
        digest=done.digest,
        sources=tuple(
            FetchedFile(one.name, one.url, one.num_bytes, one.sha256, one.verified_by) for one in done.sources
        ),
        licence=recipe.licence,
        citation=recipe.citation,
        left_out=tuple(RefusedFile(one.name, one.why) for one in done.left_out),
        uploaded=uploaded,
        seconds=round(time.monotonic() - began, 3),
    )


def _view(one: Recipe) -> DataRecipe:
    return DataRecipe(
        one.name,
        one.title,
        one.num_bytes,
        {name: layout.summary for name, layout in one.layouts.items()},
        one.default,
        one.homepage,
        one.licence,
        one.citation,
        one.note,
        tuple(found.name for found in one.downloads),
    )
