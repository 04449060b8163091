"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def debug(command: Command) -> Command:
    """`--debug`, which `main` reads."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show the trace of an error.")(command)


def output(command: Command, *more: str) -> Command:
    """`-o table|json|yaml`, and `more` where a command has other forms; and `--debug`."""
    form = click.Choice(["table", "json", "yaml", *more])
    option = click.option("-o", "--output", "form", type=form, default="table", help="How to print.", show_default=True)
    return option(debug(command))


def plan_output(command: Command) -> Command:
    """The same, with the objects of a cluster as others apply them, and the request of SageMaker as others send it."""
    return output(command, "manifest", "manifest-json", "request")


def manifest_output(command: Command) -> Command:
    """`-o table|json|yaml|manifest`, and `--debug`."""
    return output(command, "manifest")


def verbose(command: Command) -> Command:
    """`-v`."""
    return click.option("-v", "--verbose", count=True, help="Show more.")(command)


def job_arguments(command: Command) -> Command:
    """The job, the target and what may be overridden."""
    options = [
        click.argument("job", required=False, metavar="[JOB | SCRIPT]", type=click.Path()),
        click.option(
            "--on",
            default="local",
            metavar="TARGET[,…]",
            help="Target, or the first of several that can run it.",
            show_default=True,
        ),
        click.option("--name", help="Name of the job."),
        click.option("--nodes", metavar="N|MIN:MAX", help="Number of nodes."),
        click.option("--procs-per-node", metavar="N|auto", help="Processes on each node."),
        click.option(
            "--env", "-e", "env", multiple=True, metavar="NAME=VALUE", help="Set a variable; may be repeated."
        ),
        click.option("--timeout", metavar="2h", help="End the run after this time."),
        click.option("--python", metavar="PATH", help="The script's interpreter."),
        click.option("--cold", is_flag=True, help="Start each rank as a new interpreter."),
        click.option("--via", metavar="WAY", help="Kind of object on a cluster: job, jobset, trainjob, …"),
        click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Any field: --set grace=1min."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def on_cluster(command: Command) -> Command:
    """`--on TARGET`, of commands for one run."""
    text = "A run on this cluster, started by any machine."
    return click.option("--on", metavar="TARGET", help=text)(command)


def require_named(run: str | None, on: str | None) -> None:
    """Raise UsageError for a command that changes the newest run of a target: that may be of another user."""
    if on is not None and run is None:
        raise click.UsageError("with --on, name the run")


def run_argument(command: Command) -> Command:
    """`[RUN]`: an id, a unique prefix of one, or nothing for the newest run."""
    return click.argument("run", required=False, shell_complete=complete_run)(command)


def run_arguments(command: Command) -> Command:
    """`RUN…`: one or more of them."""
    option = click.argument("runs", nargs=-1, required=True, metavar="RUN…", shell_complete=complete_run)
    return option(command)


def complete_run(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of runs, by their beginning."""
    from windlass.errors import WindlassError
    from windlass.runs.context import here

    try:
        with here().store() as store:
            return [status.id for status in store.statuses(last=50) if status.id.startswith(incomplete)]
    except WindlassError:  # completion prints no messages
        return []


def complete_checkpoint(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Checkpoints, by the beginning of their names, of the run that this command or its group is given."""
    from windlass.actions.checkpoints import look
    from windlass.actions.runs import opened
    from windlass.errors import WindlassError

    try:
        run = ctx.params.get("run") or (ctx.parent.params.get("run") if ctx.parent is not None else None)
        with opened(run or None, ctx.params.get("on")) as (engine, run_id):
            found = look(engine, run_id, reach=False).found
        return [one.name for one in found if one.name.startswith(incomplete)]
    except WindlassError:
        return []


def seconds(text: str, option: str, hint: str) -> float:
    """Seconds of the duration given to `option`. Raises UsageError with `hint`."""
    from windlass.errors import UsageError
    from windlass.spec.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}", hint) from error


def overrides(
    *, name: str | None, nodes: str | None, procs_per_node: str | None, env: tuple[str, ...], timeout: str | None,
    python: str | None, cold: bool = False, via: str | None = None, settings: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    """Job fields from the options above. Raises UsageError."""
    fields: dict[str, Any] = {}
    for setting in settings:
        path, value = _pair(setting, "--set")
        _assign(fields, f"--set {path}", path.split("."), _value(value))
    if cold:
        _assign(fields, "--cold", ("start",), "cold")
    if via is not None:
        _assign(fields, "--via", ("kubernetes", "via"), via)
    given = {"name": name, "timeout": timeout, "python": python}
    fields |= {field: value for field, value in given.items() if value is not None}
    if nodes is not None:
        fields["nodes"] = _nodes(nodes)
    if procs_per_node is not None:
        fields["procs_per_node"] = _number(procs_per_node)
    for item in env:
        variable, value = _pair(item, "--env")
        _assign(fields, f"--env {variable}", ("env", variable), value)
    return fields


def _pair(text: str, option: str) -> tuple[str, str]:
    from windlass.errors import UsageError

    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"{option} {text}: not NAME=VALUE", f"write it as {option} NAME=VALUE")
    return name, value


def _nodes(text: str) -> Any:
    least, sign, most = text.partition(":")
    try:
        return {"min": int(least), "max": int(most)} if sign else int(least)
    except ValueError:
        return text  # the parser says what is wrong with it


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text  # `auto`; of anything else the parser says what is wrong with it


def _assign(fields: dict[str, Any], option: str, path: Sequence[str], value: Any) -> None:
    """`resources.gpus` as 1 → {"resources": {"gpus": 1}}, which leaves what else the job says of its resources."""
    from windlass.actions.jobs import Parts
    from windlass.errors import UsageError

    *parents, last = path
    for parent in parents:
        fields = fields.setdefault(parent, Parts())
        if not isinstance(fields, dict):
            raise UsageError(f"{option}: {parent} has a value already")
    fields[last] = value


def _value(text: str) -> Any:
    """The value that the text would be in a job file."""
    from windlass.spec.yamltext import plain_scalar

    if text[:1] in "[{":
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            return YAML(typ="safe", pure=True).load(text)
        except (YAMLError, ValueError, RecursionError):
            return text  # the parser says what is wrong with it
    return plain_scalar(text)
