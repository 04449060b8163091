"""`data`: copies, stages, lists and verifies data sets in folders and object stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from windlass.cli import options
from windlass.cli.data_progress import interruptible, shown
from windlass.cli.datatext import (
    cache_lines,
    copied_lines,
    list_lines,
    preview_lines,
    staged_lines,
    verified_lines,
)
from windlass.cli.formatting import count, size, visible
from windlass.cli.render import print_data

if TYPE_CHECKING:
    from windlass.storage.progress import Progress

SCHEMES: Final = ("s3://", "gs://", "az://", "https://")
_on: Final = click.option(
    "--on",
    metavar="TARGET",
    shell_complete=options.complete_targets,
    help="List or remove data sets staged in a claim of this cluster.",
)
_claim: Final = click.option(
    "--claim", metavar="NAME", help="With --on: name of the claim. Default: the target's, else windlass-data."
)


def _complete_address(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Completes URL schemes of stores, and local paths."""
    return options.or_file(SCHEMES if incomplete else (), incomplete)


COPYING: Final = ("cp", "download", "fetch", "get", "import", "pull", "push", "put", "sync", "upload")
"""Names of the command `copy` in other tools."""


class DataGroup(click.Group):
    """A command group that suggests `copy` if the user types the name of this command in another tool."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolves a command as click does. Raises UsageError."""
        if args and args[0] in COPYING:
            raise click.UsageError(f"'{args[0]}' is not a command (that is windlass data copy)", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=DataGroup)
def data() -> None:
    """Copy, stage, list and verify data sets: folders, s3://, gs:// and az://.

    \b
    Example:
      windlass data copy s3://bucket/digits/ data/digits
      windlass data verify data/digits
    """


@data.command(short_help="Copy new and changed files, verified and resumable.")
@click.argument("source", shell_complete=_complete_address)
@click.argument("destination", shell_complete=_complete_address)
@click.option("--include", multiple=True, metavar="PATTERN", help="Copy only matching files; may be repeated.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip matching files; may be repeated.")
@click.option("--sha256", default="", metavar="HEX", help="Expected SHA-256 of the file, if SOURCE is one file.")
@click.option("--checksum", is_flag=True, help="Compare checksums of files whose size and version are equal.")
@click.option("--dry-run", is_flag=True, help="List the files to copy, and write nothing.")
@click.option("--no-sign-request", is_flag=True, help="Read a public S3 bucket without credentials.")
@options.output
def copy(
    source: str,
    destination: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    sha256: str,
    checksum: bool,
    dry_run: bool,
    no_sign_request: bool,
    form: str,
) -> int:
    """Copy new and changed files in parallel, verify them, and resume an interrupted copy.

    SOURCE is a folder, a prefix in a store, one file, a quoted pattern ('s3://bucket/*.tar'), a file on an HTTP server,
    or a list in the format of sha256sum (SHA256SUMS, NAME.sha256) with URLs or relative names. In --include and
    --exclude, a pattern without a slash matches at any depth. A pattern that matches a folder selects all files in it.

    DESTINATION is a folder or a prefix; no file in it is deleted. The copy writes a manifest with the SHA-256 of each
    file, which `data verify` compares with the files. The exit code is 1 if a file was refused; all others are copied.
    Files that `data verify` found damaged are copied again.

    \b
    Example:
      windlass data copy s3://bucket/digits/ data/digits
      windlass data copy data/digits s3://bucket/digits/ --exclude '*.tmp'
      windlass data copy https://example.com/digits.tar data/digits
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here
    from windlass.storage.progress import Progress
    from windlass.storage.selection import Selection

    progress = Progress()
    given: Any = {
        "by_content": checksum,
        "selection": Selection(include, exclude, sha256),
        "is_signed": not no_sign_request,
    }
    if dry_run:
        with interruptible(lambda: "nothing was changed"), shown("compare", progress, form):
            found = actions.preview_copy(source, destination, here(), progress, **given)
        print_data(found, form, lambda paint: preview_lines(found, paint))
        return 1 if found.refused else 0
    with interruptible(lambda: _going_on(progress)), shown("copy", progress, form):
        done = actions.copy(source, destination, here(), progress, **given)
    print_data(done, form, lambda paint: copied_lines(done, paint))
    return 1 if done.copied.refused else 0


@data.command()
@click.argument("address", shell_complete=_complete_address)
@options.output
def verify(address: str, form: str) -> int:
    """Read every byte of a data set and compare it with its manifest. Exits with 1 if they differ; the next copy, or
    the next run that reads the set from the cache, then fetches the damaged files.

    ADDRESS may be a data set in the cache: its digest, as shown by `data ls`, or its folder.

    \b
    Example:
      windlass data verify data/digits
      windlass data verify set:5f2c8a
      windlass data verify s3://bucket/digits/ -o json
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here
    from windlass.storage.progress import Progress

    progress = Progress()
    with interruptible(lambda: "nothing was changed"), shown("verify", progress, form):
        done = actions.verify(address, here(), progress)
    print_data(done, form, lambda paint: verified_lines(done, paint))
    return 0 if done.ok else 1


@data.command("ls", short_help="List the files of a data set, or the data sets in the cache.")
@click.argument("address", required=False, shell_complete=_complete_address)
@_on
@_claim
@options.output
def list_(address: str | None, on: str | None, claim: str | None, form: str) -> int:
    """List the files of a data set with their sizes. Without ADDRESS, list the data sets in the cache of this machine,
    or with --on those staged in the claim of a target.

    \b
    Example:
      windlass data ls s3://bucket/digits/
      windlass data ls
      windlass data ls --on lab
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here

    _require_target(on, claim)
    if address is not None and on is not None:
        raise click.UsageError("--on lists sets, and not the files of one: leave out ADDRESS")
    if address is None:
        cached = actions.list_cache(here()) if on is None else actions.list_staged(on, claim, here())
        print_data(cached, form, lambda paint: cache_lines(cached, paint))
        return 0
    found = actions.list_files(address, here())
    print_data(found, form, lambda paint: list_lines(found, paint))
    return 0


@data.command(short_help="Fetch a data set into the cache, or into a claim.")
@click.argument("source", shell_complete=_complete_address)
@click.option(
    "--on",
    metavar="TARGET",
    shell_complete=options.complete_targets,
    help="Stage the data set in a claim of this cluster.",
)
@_claim
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME",
    help="With --on: a Secret of the namespace with keys of the store; may be repeated.",
)
@click.option("--service-account", metavar="NAME", help="With --on: a service account whose role may read the store.")
@options.output
def stage(
    source: str, on: str | None, claim: str | None, secrets: tuple[str, ...], service_account: str | None, form: str
) -> int:
    """Fetch a data set into the cache of this machine, or with --on into the claim of a target, before runs read it.

    Runs whose job has `data:` with this source stage it themselves, and do not fetch staged files again. With --on, a
    pod fetches the data; Ctrl-C deletes the pod, and the same command resumes with the files fetched so far.

    \b
    Example:
      windlass data stage s3://bucket/digits/
      windlass data stage s3://bucket/digits/ --on lab --secret s3-keys
    """
    if on is not None:
        return _stage_in_claim(source, on, claim, secrets, service_account, form)
    if claim is not None or secrets or service_account is not None:
        raise click.UsageError("--claim, --secret and --service-account are of a target: add --on TARGET")
    from windlass.actions import data as actions
    from windlass.runs.context import here
    from windlass.storage.progress import Progress

    progress = Progress()
    with interruptible(lambda: _going_on(progress)), shown("stage", progress, form):
        done = actions.stage(source, here(), progress)
    print_data(done, form, lambda paint: staged_lines(done))
    return 0


@data.command(short_help="Remove a data set from the cache, or from a claim.")
@click.argument("which", metavar="SOURCE|DIGEST")
@_on
@_claim
@options.output
def rm(which: str, on: str | None, claim: str | None, form: str) -> int:
    """Remove a data set from the cache of this machine, or with --on from the claim of a target; its source is not
    changed. Refused if an unfinished run reads it or, in a claim, a run that has not been removed.

    \b
    Example:
      windlass data rm s3://bucket/digits/
      windlass data rm set:5f2c8a --on lab
    """
    from windlass.actions import data as actions
    from windlass.runs.context import here

    _require_target(on, claim)
    gone = actions.remove(which, here()) if on is None else actions.remove_staged(which, on, claim, here())
    what = gone.digest or f"what was fetched of {which}"
    print_data(gone, form, lambda paint: [f"removed {what}: {count(gone.files, 'file')}, {size(gone.bytes)}"])
    return 0


def _stage_in_claim(
    source: str, on: str, claim: str | None, secrets: tuple[str, ...], service_account: str | None, form: str
) -> int:
    from windlass.actions import data as actions
    from windlass.cli.interrupts import tidy
    from windlass.runs.context import here
    from windlass.storage.progress import Progress

    progress = Progress()

    def on_line(words: str) -> None:
        click.echo(f"waiting: {visible(words)}", err=True)

    try:
        with tidy(), shown("stage", progress, form):
            done = actions.stage_in_claim(
                source,
                on,
                claim,
                here(),
                progress=progress,
                on_line=on_line,
                secrets=secrets,
                service_account=service_account,
            )
    except (KeyboardInterrupt, SystemExit) as ended:  # the Job that fetched the data is deleted by now
        so_far = "nothing was fetched yet" if progress.is_listing else f"{size(progress.bytes_done)} are in the claim"
        click.echo(f"interrupted: {so_far}; run the same command again to continue", err=True)
        return int(ended.code or 0) if isinstance(ended, SystemExit) else 130
    print_data(done, form, lambda paint: staged_lines(done))
    return 0


def _require_target(on: str | None, claim: str | None) -> None:
    """Raises UsageError if a claim is given without a target."""
    if claim is not None and on is None:
        raise click.UsageError("--claim names one of a target: add --on TARGET")


def _going_on(progress: Progress) -> str:
    """Explains how to resume an interrupted copy."""
    done = f"{progress.files_done:,} of {count(progress.num_files, 'file')}, {size(progress.bytes_done)}"
    so_far = "nothing was copied yet" if progress.is_listing else f"{done} are copied"
    return f"{so_far}; run the same command again to continue"
