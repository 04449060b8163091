"""`data fetch`: downloads a public data set and lays it out as training scripts read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from windlass.cli import options
from windlass.cli.data_progress import interruptible, shown
from windlass.cli.datatext import copied_lines, refused_lines
from windlass.cli.formatting import Paint, count, duration, size, table, titled
from windlass.cli.render import emit, print_data

if TYPE_CHECKING:
    from windlass.recipes.recipe import Recipe
    from windlass.views.reports import DataFetched, DataRecipeList


def _complete_recipe(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from windlass.recipes.registry import RECIPES

    return [CompletionItem(name, help=one.title) for name, one in RECIPES.items() if name.startswith(incomplete)]


def _complete_layout(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from windlass.recipes.registry import RECIPES

    words = (ctx.params.get("name"), *ctx.args)  # click leaves what is before an option without its value in `args`
    layouts = {name: one for word in words if word in RECIPES for name, one in RECIPES[word].layouts.items()}
    return [CompletionItem(name, help=one.summary) for name, one in layouts.items() if name.startswith(incomplete)]


@click.command(short_help="Fetch a public data set to a folder, verified.")
@click.argument("name", required=False, shell_complete=_complete_recipe)
@click.argument("folder", required=False, type=click.Path())
@click.option("--to", metavar="ADDRESS", help="Then copy the folder there: s3://bucket/prefix.")
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    metavar="LAYOUT",
    shell_complete=_complete_layout,
    help="What to make of the files; may be repeated.",
)
@click.option("--from", "mirror", metavar="URL|FOLDER", help="Where the files are, instead of at their publisher.")
@options.output
def fetch(
    name: str | None, folder: str | None, to: str | None, layouts: tuple[str, ...], mirror: str | None, form: str
) -> int:
    """Fetch a public data set to FOLDER (data/NAME), verified; without NAME list the sets that are known.

    Goes on where an earlier fetch was ended, inside a file too. Scripts see a layout once all of it is there.
    Licence and citation are printed, and written beside the data.

    \b
    Example:
      windlass data fetch
      windlass data fetch cifar10 data --layout tfrecord --to s3://bucket/cifar10/
    """
    from windlass.actions import data_fetch as actions
    from windlass.recipes.registry import recipe_of
    from windlass.runs.context import here

    if name is None:
        if folder or to or layouts or mirror:
            raise click.UsageError("the name of a set is missing", click.get_current_context())
        known = actions.list_recipes()
        print_data(known, form, lambda paint: recipe_lines(known, paint))
        return 0
    recipe = recipe_of(name)
    if form == "table":
        emit(notice_lines(recipe))
    with interruptible(lambda: "what was fetched is kept; the same command goes on from there"):
        done = actions.fetch(
            recipe,
            folder or f"data/{name}",
            here(),
            layouts,
            mirror,
            to,
            lambda what, progress: shown(what, progress, form),
        )
    print_data(done, form, lambda paint: fetched_lines(done, paint))
    return 1 if done.uploaded is not None and done.uploaded.refused else 0


def notice_lines(recipe: Recipe) -> list[str]:
    """What a user should know before the download."""
    rows = [["licence", recipe.licence], ["citation", recipe.citation], ["homepage", recipe.homepage]]
    return [recipe.title, *table([*rows, *([["note", recipe.note]] if recipe.note else [])])]


def recipe_lines(known: DataRecipeList, paint: Paint) -> list[str]:
    """What `data fetch` lists."""
    rows = [
        [
            one.name,
            "–" if one.download_bytes is None else size(one.download_bytes),
            " ".join(f"{name}*" if name in one.default else name for name in one.layouts),
            one.licence,
        ]
        for one in known.recipes
    ]
    return [*titled(("NAME", "DOWNLOAD", "LAYOUTS", "LICENCE"), rows, paint), "* made if no --layout is given"]


def fetched_lines(done: DataFetched, paint: Paint) -> list[str]:
    """What `data fetch` says at its end."""
    lines = [f"{size(done.fetched_bytes)} fetched in {duration(done.seconds)}" if done.made else "nothing to fetch"]
    if done.made:
        lines += table([_source_row(one.name, one.bytes, one.sha256, one.verified_by, paint) for one in done.sources])
    lines += refused_lines(done.left_out, "left out", paint)
    lines.append(f"{done.folder}: {', '.join(done.layouts)}: {count(done.files, 'file')}, {size(done.bytes)}")
    if done.uploaded is not None:
        lines += copied_lines(done.uploaded, paint)
    return lines


def _source_row(name: str, num_bytes: int, sha256: str, by: str, paint: Paint) -> list[str]:
    known = f"as published by {by}" if by else paint("compare it: no checksum is known", "yellow")
    return [f"  {name}", size(num_bytes), f"sha256 {sha256}", known]
