"""`tensorboard` and `notebook`: start a service, and show it in the browser until Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from windlass.cli import options
from windlass.cli.deploy import exposure_of
from windlass.cli.render import print_data
from windlass.errors import EngineError, WindlassError

if TYPE_CHECKING:
    from windlass.actions.boards import Options
    from windlass.engines.base import Engine
    from windlass.runs.context import Context
    from windlass.runs.store import Store
    from windlass.services.service import Service

Command = Callable[..., Any]
LOOK_SECONDS: Final = 5.0
OF_CONNECTION: Final = ("port", "detach", "no_open", "form", "on")
"""Options that a running service accepts."""
HINT: Final = "write for example 2h or 30min"


def _limits(command: Command) -> Command:
    """Adds the options that both commands have."""
    for add in (
        click.option("--yes-public", is_flag=True, help="Allow a --source-cidr that contains every address."),
        click.option(
            "--source-cidr", "cidrs", multiple=True, metavar="CIDR", help="Addresses that may connect; may be repeated."
        ),
        click.option("--expose", is_flag=True, help="In a cluster: make a public load balancer in front."),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=0,
            metavar="N",
            help="Port of this machine for the browser. Default: a free one.",
        ),
        click.option("--detach", "-d", is_flag=True, help="Only start it; open it later by its name."),
        click.option("--no-open", is_flag=True, help="Print a one-time link instead of opening the browser."),
        click.option(
            "--install", is_flag=True, help="In a cluster: install packages that the image lacks at the start."
        ),
        click.option(
            "--idle", metavar="TIME", help="End after this time without requests and busy kernels. Default: never."
        ),
        click.option("--keep", is_flag=True, help="Never end by itself."),
        click.option("--for", "limit", metavar="TIME", default="8h", show_default=True, help="End after this time."),
        click.option(
            "--on",
            metavar="TARGET",
            shell_complete=options.complete_targets,
            help="Target. Default: this machine, or the cluster of the run's claim.",
        ),
    ):
        command = add(command)
    return command


@click.command()
@click.argument("sources", nargs=-1, metavar="[RUN…|FOLDER|s3://…|claim:NAME]", shell_complete=options.complete_run)
@_limits
@options.output
def tensorboard(sources: tuple[str, ...], port: int, detach: bool, no_open: bool, form: str, **limits: Any) -> int:
    """Show curves of runs, folders, object stores or a claim in TensorBoard. Default: the newest run.

    TensorBoard runs on this machine, or for a claim in its cluster, until its time limit, however long this command
    runs; Ctrl-C ends only the connection. The name of a running TensorBoard opens it again. Event files of object
    stores, and metrics of runs without event files, are copied to this machine and kept in step.

    \b
    Example:
      windlass tensorboard                           the newest run
      windlass tensorboard digits-7f3k2 digits-9xw4m
      windlass tensorboard s3://bucket/runs --for 2h
      windlass tensorboard claim:results --on lab
      windlass close tensorboard-x2k9d
    """
    from windlass.actions import boards
    from windlass.services.service import ServiceKind

    def start(store: Store, context: Context) -> Service:
        again = boards.running(sources[0], ServiceKind.TENSORBOARD, store, context) if len(sources) == 1 else None
        return _reopened(again) or boards.start_tensorboard(sources, _options(limits), store, context, _say)

    return _open(start, port, form, detach=detach, no_open=no_open)


@click.command()
@click.argument("source", required=False, metavar="[RUN|FOLDER|claim:NAME]", shell_complete=options.complete_run)
@click.option("--image", metavar="IMAGE", help="In a cluster: image with the packages. Default: that of the run.")
@click.option("--cpus", type=float, metavar="N", help="CPUs in a cluster. Default: 1.")
@click.option("--memory", metavar="SIZE", help="Memory in a cluster. Default: 2GiB.")
@click.option("--gpus", type=options.WholeNumber(0), metavar="N", help="GPUs. Default: none.")
@click.option("--instance", metavar="TYPE", help="Instance type of the node in a cluster.")
@_limits
@options.output
def notebook(
    source: str | None, image: str | None, port: int, detach: bool, no_open: bool,
    cpus: float | None, memory: str | None, gpus: int | None, instance: str | None, form: str, **limits: Any,
) -> int:  # fmt: skip
    """Open JupyterLab on a run, a folder or a claim. Default: the newest run.

    A notebook on a run begins at a page that loads the newest checkpoint and shows predictions beside samples. The
    notebook is a run itself: files that you save beside that page are its results, and are kept. It ends at its time
    limit, however long this command runs; Ctrl-C ends only the connection. The name of a running notebook opens it
    again.

    \b
    Example:
      windlass notebook digits-7f3k2
      windlass notebook . --for 2h --idle 30min
      windlass notebook claim:results --on lab --image registry/jupyter:1 --gpus 1
      windlass close notebook-x2k9d
    """
    from windlass.actions import boards
    from windlass.services.service import ServiceKind

    amounts = {"cpus": cpus, "memory": memory, "gpus": gpus, "instance": instance}
    fields: dict[str, Any] = {"resources": {name: one for name, one in amounts.items() if one is not None}}
    fields |= {"image": image} if image is not None else {}

    def start(store: Store, context: Context) -> Service:
        again = boards.running(source, ServiceKind.NOTEBOOK, store, context) if source is not None else None
        return _reopened(again) or boards.start_notebook(source, _options(limits, fields), store, context, _say)

    return _open(start, port, form, detach=detach, no_open=no_open)


def _reopened(found: Service | None) -> Service | None:
    """Returns a running service as it was given. Raises UsageError for options that cannot change it any more."""
    context = click.get_current_context()
    given = [
        one.opts[0]
        for one in context.command.params
        if isinstance(one, click.Option)
        and one.name not in OF_CONNECTION
        and context.get_parameter_source(str(one.name)) is ParameterSource.COMMANDLINE
    ]
    if found is not None and given:
        raise click.UsageError(f"{found.name} is up already: leave out {', '.join(given)}")
    return found


def _options(given: dict[str, Any], fields: dict[str, Any] | None = None) -> Options:
    from windlass.actions.boards import Options

    seconds = None if given["keep"] else options.seconds(given["limit"], "--for", HINT, is_positive=True)
    idle = None if given["idle"] is None else options.seconds(given["idle"], "--idle", HINT, is_positive=True)
    shown = exposure_of(given["cidrs"], is_asked=given["expose"], may_be_public=given["yes_public"])
    return Options(given["on"], seconds, idle, given["install"], fields, shown)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _open(start: Callable[[Store, Context], Service], port: int, form: str, *, detach: bool, no_open: bool) -> int:
    """Starts a service and shows it in the browser until Ctrl-C, or until it has ended."""
    from windlass.actions import boards, services
    from windlass.runs.context import here
    from windlass.views.services import service_view
    from windlass.web.serve import open_browser

    if form != "table" and not detach:
        raise click.UsageError(f"-o {form} needs --detach: the connection is for a browser")
    context = here()
    with context.store() as store:
        found = start(store, context)
        engine, run_id = services.engine_of(found, store, context)
        close = f"windlass close {found.name}"
        until = "until it is closed" if found.ends_at is None else f"until {_clock(found.ends_at)}"
        if detach:
            print_data(service_view(found), form, [found.name])
            _say(f"it is up {until}; open it: windlass {found.kind} {found.name}; end it: {close}")
            return 0
        up = f"{found.name} is up {until}; open it: windlass {found.kind} {found.name}; end it: {close}"
        try:
            with boards.forwarded(found, store, context, (port,)) as forward:
                link = forward.new_link()
                if no_open:
                    click.echo(link)
                else:
                    open_browser(context.home, link)
                    _say(f"opened in the browser: {forward.address}")
                _say(f"{found.name} is up {until}; Ctrl-C ends this connection only; end it: {close}")
                while not _has_ended(engine, run_id):
                    time.sleep(LOOK_SECONDS)
            _say(f"{found.name} has ended")
        except KeyboardInterrupt:
            _say(up)
        except WindlassError:
            if not _has_ended(engine, run_id):
                _say(up)
            raise
        return 0


def _has_ended(engine: Engine, run_id: str) -> bool:
    """Whether a run is known to have ended. A cluster that does not answer now ends no connection."""
    with contextlib.suppress(EngineError):
        return engine.status(run_id).phase.is_terminal
    return False


def _clock(at: float) -> str:
    from windlass.cli.statustext import clock_time

    return clock_time(at)
