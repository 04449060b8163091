"""Options and arguments that several commands share."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from windlass.errors import Problem

Command = TypeVar("Command", bound=Callable[..., Any])


class WholeNumber(click.IntRange):
    """A whole number with a minimum."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts the value. Raises BadParameter with a clearer message than click's for a range without a maximum."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"expected a whole number from {self.min}, found '{value}'", param, ctx)


def debug(command: Command) -> Command:
    """Adds `--debug`, which `main` reads."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")(command)


def output(command: Command, forms: Sequence[str] = ("table", "json", "yaml")) -> Command:
    """Adds `--debug` and `-o table|json|yaml`, or `-o` with other `forms`."""
    option = click.option(
        "-o", "--output", "form", type=click.Choice(forms), default="table", help="Output format.", show_default=True
    )
    return option(debug(command))


def output_as(*forms: str) -> Callable[[Command], Command]:
    """Adds `-o` with these forms, and `--debug`."""
    return lambda command: output(command, forms)


def verbose(command: Command) -> Command:
    """Adds `-v`."""
    return click.option("-v", "--verbose", count=True, help="Show more.")(command)


def job_arguments(command: Command) -> Command:
    """Adds the job argument, and the options that set the target and override job fields."""
    on = click.option(
        "--on",
        default="local",
        metavar="TARGET[,…]",
        shell_complete=complete_targets,
        help="Target, or the first of several that can run the job.",
        show_default=True,
    )
    job = click.argument("job", required=False, metavar="[JOB | SCRIPT]", type=click.Path())
    return job(on(_changes(command)))


def job_options(command: Command) -> Command:
    """Adds the options that set the target and override job fields, for a command that reuses an earlier run's job."""
    text = "Target, or the first of several that can run the job. Default: that of the run."
    return click.option("--on", metavar="TARGET[,…]", shell_complete=complete_targets, help=text)(_changes(command))


def detached(command: Command) -> Command:
    """Adds `--detach` and `--quiet` to a command that starts a run."""
    quiet = "Do not show what the ranks write; with --detach, print only the id."
    command = click.option("--quiet", "-q", is_flag=True, help=quiet)(command)
    return click.option("--detach", "-d", is_flag=True, help="Return at once; the run continues in the background.")(
        command
    )


def after(command: Command) -> Command:
    """Adds `--after` to a command that starts a run."""
    text = "Wait until this run of this machine has succeeded; may be repeated."
    return click.option("--after", multiple=True, metavar="RUN", shell_complete=complete_run, help=text)(command)


def resume_options(command: Command) -> Command:
    """Adds the options that override job fields of a resumed run, except those on which names of objects depend."""
    return _changes(command, but=("--name", "--label", "--via"))


def _changes(command: Command, but: Collection[str] = ()) -> Command:
    """Adds the options that override job fields."""
    options = {
        "--name": click.option("--name", help="Name of the job."),
        "--nodes": click.option("--nodes", metavar="N|MIN:MAX", help="Number of nodes."),
        "--procs-per-node": click.option("--procs-per-node", metavar="N|auto", help="Processes on each node."),
        "--gpus": click.option(
            "--gpus", type=WholeNumber(0), metavar="N", help="GPUs of each node, and one process per GPU."
        ),
        "--env": click.option(
            "--env", "-e", "env", multiple=True, metavar="NAME=VALUE", help="Set a variable; may be repeated."
        ),
        "--env-file": click.option(
            "--env-file",
            "env_files",
            multiple=True,
            metavar="FILE",
            type=click.Path(),
            help="Set the variables of a file of NAME=VALUE lines.",
        ),
        "--label": click.option(
            "--label", "-l", "labels", multiple=True, metavar="KEY=VALUE", help="Label; may be repeated."
        ),
        "--timeout": click.option("--timeout", metavar="2h", help="Stop the run after this time."),
        "--queue": click.option("--queue", metavar="NAME", help="Queue of the cluster that admits the job."),
        "--restarts": click.option("--restarts", type=WholeNumber(0), metavar="N", help="Restarts after failures."),
        "--python": click.option("--python", metavar="PATH", help="The script's interpreter."),
        "--cold": click.option("--cold", is_flag=True, help="Start each rank as a new interpreter."),
        "--via": click.option("--via", metavar="KIND", help="Workload kind on a cluster: job, jobset, trainjob, …"),
        "--set": click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="FIELD=VALUE",
            shell_complete=complete_setting,
            help="Set any field of the job: --set grace=1min.",
        ),
    }
    for name in reversed(options):
        if name not in but:
            command = options[name](command)
    return command


def on_cluster(command: Command) -> Command:
    """Adds `--on TARGET` to a command for one run."""
    text = "A run on this cluster, started by any machine."
    return click.option("--on", metavar="TARGET", shell_complete=complete_targets, help=text)(command)


def require_named(run: str | None, on: str | None, labels: Sequence[str] = ()) -> None:
    """Raises UsageError for `--on` without a run or label: the newest run of a target may be another user's."""
    if on is not None and run is None and not labels:
        raise click.UsageError("with --on, name the run")


def run_argument(command: Command) -> Command:
    """Adds `[RUN]`: a run id, a unique prefix of an id, or a job name (its newest run). Default: the newest run."""
    return click.argument("run", required=False, shell_complete=complete_run)(command)


def runs_argument(command: Command) -> Command:
    """Adds `[RUN…]`: any number of runs, each as in `run_argument`. Default: the newest run, or all runs with the given
    labels.
    """
    return click.argument("runs", nargs=-1, metavar="[RUN…]", shell_complete=complete_run)(command)


def labelled(text: str) -> Callable[[Command], Command]:
    """Adds `--label KEY[=VALUE]`, which selects runs; `text` is its help."""
    return click.option("--label", "-l", "labels", multiple=True, metavar="KEY[=VALUE]", help=text)


def complete_run(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes ids of runs to which the command applies, and names of jobs with several runs."""
    from collections import Counter

    from windlass.errors import WindlassError
    from windlass.runs.context import here
    from windlass.runs.naming import job_name
    from windlass.runs.phase import TERMINAL

    command = ctx.command.name
    try:
        with here().store() as store:
            begun = [status for status in store.statuses(last=50) if status.id.startswith(incomplete)]
        if command in ("stop", "resume", "port-forward"):
            begun = [status for status in begun if (status.phase in TERMINAL) is (command == "resume")]
        ids = [status.id for status in begun]
        # names of jobs are not offered, because `rm` accepts only run ids
        names = Counter(map(job_name, ids) if command != "rm" else ())
        return [*(name for name in names if names[name] > 1 and name.startswith(incomplete)), *ids]
    except WindlassError:  # an error message would disturb the shell's completion
        return []


def or_file(names: Iterable[str], incomplete: str) -> list[Any]:
    """Completes an argument that is a name or a file: names that begin with `incomplete`, and files."""
    from click.shell_completion import CompletionItem

    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")]


def complete_targets(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes names of targets; in a list such as `a,b`, the last name."""
    from windlass.actions.targets import target_names
    from windlass.runs.context import here

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in target_names(here()) if name.startswith(last)]


def complete_setting(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Completes the field in `FIELD=VALUE`, and the value if the field allows only a few."""
    from click.shell_completion import CompletionItem

    from windlass.spec.schema import job_settings

    name, sign, value = incomplete.partition("=")
    fields = job_settings()
    if not sign:
        return [
            CompletionItem(f"{field}=", help=words) for field, (words, _) in fields.items() if field.startswith(name)
        ]
    values = fields.get(name, ("", ()))[1]
    return [f"{name}={one}" for one in values if one.startswith(value)]


def complete_checkpoint(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes names of the checkpoints of the run that is named earlier on the command line."""
    from windlass.actions.checkpoints import find_checkpoints
    from windlass.actions.runs import find
    from windlass.errors import WindlassError
    from windlass.runs.context import here

    try:
        # After an option without its value, click parses no argument and leaves the words in `args`.
        run = ctx.params.get("run") or next(iter(ctx.args), None)
        run = run or (ctx.parent.params.get("run") if ctx.parent is not None else None)
        with here().store() as store:
            found = find_checkpoints(*find(run or None, store, ctx.params.get("on")), reach=False).found
        return [one.name for one in found if one.name.startswith(incomplete)]
    except WindlassError:
        return []


def complete_metric(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes metrics of the runs that are named earlier on the command line, or of the newest run."""
    from windlass.errors import WindlassError
    from windlass.runs.context import here
    from windlass.runs.metrics import FILE, read_metrics

    words = [ctx.params.get("run"), *(ctx.params.get("words") or ()), *ctx.args]
    try:
        with here().store() as store:
            # reads only this machine, because a target may answer slowly
            folder = store.run_dir(store.find(next(filter(None, words), None)))
            names = {one.name for one in read_metrics(folder / FILE)}
        return sorted(name for name in names if name.startswith(incomplete))
    except (WindlassError, OSError):
        return []


def complete_run_or_metric(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Completes the words of `[RUN…] METRIC`: runs, and metrics of the first run."""
    return [*complete_metric(ctx, parameter, incomplete), *complete_run(ctx, parameter, incomplete)]


def seconds(text: str, option: str, hint: str, *, is_positive: bool = False) -> float:
    """Parses the duration given to `option` into seconds, more than 0 with `is_positive`. Raises UsageError with
    `hint`.
    """
    from windlass.errors import UsageError
    from windlass.spec.units import parse_duration

    try:
        found = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}", hint) from error
    if is_positive and not found:
        raise UsageError(f"{option} {text}: must be longer than 0", hint)
    return found


def pattern(text: str) -> re.Pattern[str]:
    """Compiles the regular expression given to `--grep`. Raises UsageError."""
    from windlass.errors import UsageError

    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text}: {error}", "escape special characters: --grep '\\[rank'") from error


def overrides(
    *, nodes: str | None, procs_per_node: str | None, env: tuple[str, ...], timeout: str | None, python: str | None,
    settings: tuple[str, ...], name: str | None = None, cold: bool = False, via: str | None = None,
    labels: tuple[str, ...] = (), gpus: int | None = None, restarts: int | None = None, env_files: tuple[str, ...] = (),
    queue: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Returns the job fields set by the options of `job_options`. Raises UsageError."""
    fields: dict[str, Any] = {}
    for setting in settings:
        path, value = _pair(setting, "--set")
        _assign(fields, f"--set {path}", path.split("."), _value(value))
    if cold:
        _assign(fields, "--cold", ("start",), "cold")
    if via is not None:
        _assign(fields, "--via", ("kubernetes", "via"), via)
    given = {"name": name, "timeout": timeout, "python": python, "restarts": restarts, "queue": queue}
    fields |= {field: value for field, value in given.items() if value is not None}
    if nodes is not None:
        fields["nodes"] = _nodes(nodes)
    if procs_per_node is not None:
        fields["procs_per_node"] = _number(procs_per_node)
    if gpus is not None:
        _assign(fields, "--gpus", ("resources", "gpus"), gpus)
        if gpus:
            fields.setdefault("procs_per_node", gpus)
    for file in env_files:
        for variable, value in _variables_in(file):
            _assign(fields, f"--env-file {file}", ("env", variable), value)
    for item in env:
        variable, value = _pair(item, "--env")
        _assign(fields, f"--env {variable}", ("env", variable), value)
    for label in labels:
        key, value = _pair(label, "--label")
        _assign(fields, f"--label {key}", ("labels", key), value)
    return fields


@contextlib.contextmanager
def named_by_flag(given: Mapping[str, Any]) -> Iterator[None]:
    """Context manager: in a JobFileError, replaces the file by the option that has set the invalid field."""
    from windlass.errors import JobFileError

    try:
        yield
    except JobFileError as error:
        named = _flags(given)
        raise JobFileError([_by_flag(problem, named) for problem in error.problems]) from error


def _flags(given: Mapping[str, Any]) -> dict[str, str]:
    """Maps each job field that an option has set to that option, as the user wrote it."""
    fields = ("name", "nodes", "procs_per_node", "timeout", "python", "restarts", "queue")
    named = {field: f"--{field.replace('_', '-')}" for field in fields if given.get(field) is not None}
    named |= {f"env.{item.partition('=')[0]}": f"--env {item.partition('=')[0]}" for item in given.get("env", ())}
    named |= {f"labels.{item.partition('=')[0]}": f"--label {item}" for item in given.get("labels", ())}
    named |= {item.partition("=")[0]: f"--set {item.partition('=')[0]}" for item in given.get("settings", ())}
    named |= {"resources.gpus": "--gpus"} if given.get("gpus") is not None else {}
    named |= {"kubernetes.via": "--via"} if given.get("via") is not None else {}
    return named


def _by_flag(problem: Problem, named: Mapping[str, str]) -> Problem:
    from dataclasses import replace

    if ":" in problem.where:  # the problem is in the job file, not in an option
        return problem
    for field, flag in named.items():
        if problem.field == field or problem.field.startswith((f"{field}.", f"{field}[")):
            return replace(problem, where=flag, field=problem.field[len(field) :].lstrip("."))
    return problem


def _pair(text: str, option: str) -> tuple[str, str]:
    from windlass.errors import UsageError

    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"{option} {text}: not NAME=VALUE", f"write it as {option} NAME=VALUE")
    return name, value


def _variables_in(file: str) -> Iterator[tuple[str, str]]:
    """Yields the variables of a file in the format of `docker run --env-file`, with quotes as in shells. Raises
    UsageError.
    """
    from pathlib import Path

    from windlass.errors import UsageError

    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(
            f"--env-file {file}: {reason}", "a text file with a line NAME=VALUE for each variable"
        ) from error
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, sign, value = line.removeprefix("export ").partition("=")
        if not sign or not name.strip():
            raise UsageError(f"--env-file {file}:{number}: not NAME=VALUE", "write each variable as NAME=VALUE")
        value = value.strip()
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        yield name.strip(), value[1:-1] if is_quoted else value


def _nodes(text: str) -> Any:
    least, sign, most = text.partition(":")
    try:
        return {"min": int(least), "max": int(most)} if sign else int(least)
    except ValueError:
        return text  # the parser reports the error


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text  # the text is `auto`, or the parser reports the error


def _assign(fields: dict[str, Any], option: str, path: Sequence[str], value: Any) -> None:
    """Sets a nested field: `resources.gpus` to 1 → {"resources": {"gpus": 1}}, keeping the job's other resources."""
    from windlass.actions.jobs import Parts
    from windlass.errors import UsageError

    *parents, last = path
    for parent in parents:
        fields = fields.setdefault(parent, Parts())
        if not isinstance(fields, dict):
            raise UsageError(f"{option}: {parent} has a value already")
    fields[last] = value


def _value(text: str) -> Any:
    """Parses a text as a value in a job file."""
    from windlass.spec.yamltext import plain_scalar

    if text[:1] in "[{":
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            return YAML(typ="safe", pure=True).load(text)
        except (YAMLError, ValueError, RecursionError):
            return text  # the parser reports the error
    return plain_scalar(text)
