"""The command `windlass`: finds the subcommand, loads only its file, turns errors into one message and exit code."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import sys
from typing import Any, Final, NamedTuple

import click

import windlass
from windlass.errors import WindlassError

# A command makes many objects while it imports and few afterwards: looking through them again and again takes a tenth
# of its start.
gc.set_threshold(100_000, 20, 20)


class Entry(NamedTuple):
    """A command that is loaded when it is called."""

    module: str
    help: str
    function: str = ""
    """What it is called there, where that is not its name."""


COMMANDS: Final[dict[str, Entry]] = {
    "init": Entry("make", "Write a job file for a script"),
    "import": Entry("importing", "Write a job file for a manifest of Kubernetes, TorchX or SkyPilot", "import_job"),
    "check": Entry("make", "Check a job file, and a cluster, and say all that is wrong"),
    "plan": Entry("run", "Show every step that a run would take; touches nothing"),
    "run": Entry("run", "Run a job and follow it"),
    "ps": Entry("look", "List runs"),
    "status": Entry("look", "Show one run: phase, progress, ranks, where its time went"),
    "logs": Entry("look", "Show what the ranks wrote"),
    "why": Entry("why", "Say why a run failed: the cause, the evidence, the fix"),
    "cost": Entry("cost", "Say what a run has cost, and what of it was wasted"),
    "events": Entry("look", "Show what happened to a run"),
    "exec": Entry("inside", "Run a command where a rank of a live run is"),
    "cp": Entry("inside", "Copy files out of a run or into it"),
    "checkpoints": Entry("checkpoints", "List, verify, prune and export the checkpoints of a run"),
    "stop": Entry("run", "End a run: SIGTERM, the job's grace period, SIGKILL"),
    "resume": Entry("resume", "Go on with a run that failed, was stopped or was lost"),
    "rm": Entry("run", "Remove ended runs with their logs and results"),
    "warm": Entry("warm", "See and end the processes from which ranks are forked"),
    "doctor": Entry("doctor", "Look at this machine and say what would stand in a run's way"),
    "schema": Entry("make", "Print the JSON Schema of the job file, for editors"),
    "completion": Entry("completion", "Print the completion script for bash, zsh or fish"),
}


class LazyGroup(click.Group):
    """A group whose commands live in files that are imported when they are called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the command's file."""
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(f"windlass.cli.{entry.module}"), entry.function or name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command where there is none of that name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise click.UsageError(f"'{args[0]}' is not a command{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the names of commands without importing them."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=c.help) for name, c in COMMANDS.items() if name.startswith(incomplete)]
        return found if not incomplete.startswith("-") else click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(windlass.__version__, prog_name="windlass")
def cli() -> None:
    """Take an unchanged training script to any number of workers and bring the trained model back.

    \b
    windlass run train.py --nodes 2 --procs-per-node 2     a script, as it is
    windlass run                                           the job.yaml of this folder
    windlass logs -f                                       what the newest run says

    Exit codes: 0 success, 1 a failure of ours, 2 usage or a bad job file, 100 the run failed, 101 not finished,
    102 no such run, 103 stopped.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    arguments = sys.argv[1:] if argv is None else argv
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        code = cli.main(arguments, prog_name="windlass", standalone_mode=False)
    except WindlassError as error:
        code = _report(error, ours)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        code = _show_help() if arguments in ([], ["--"]) else _report_usage(error, ours)
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        defect = WindlassError(f"{type(error).__name__}: {error}", "a defect of Windlass: --debug shows the trace")
        code = _report(defect, ours, cause=error)
    sys.exit(code if isinstance(code, int) else 0)


def _report(error: WindlassError, arguments: list[str], cause: Exception | None = None) -> int:
    if "--debug" in arguments:
        import traceback

        traceback.print_exception(cause or error)
    elif _wants_json(arguments):
        _report_json(error.exit_code, error.message, error.hint, getattr(error, "problems", ()))
    else:
        from windlass.cli.words import harmless  # a pod or an API server may have written a part of it

        click.echo(f"{_red('error:')} {harmless(error.message)}", err=True)
        if error.hint:
            click.echo(f"  {harmless(error.hint)}", err=True)
    return error.exit_code


def _show_help() -> int:
    """The help, for a command line without a command: on standard error and with code 2, as click itself does."""
    with click.Context(cli, info_name="windlass", **cli.context_settings) as context:
        click.echo(cli.get_help(context), err=True)
    return 2


def _report_usage(error: click.ClickException, arguments: list[str]) -> int:
    context = getattr(error, "ctx", None)
    hint = f"see: {context.command_path} --help" if context else "see: windlass --help"
    if _wants_json(arguments):
        _report_json(2, error.format_message(), hint, ())
    else:
        click.echo(f"{_red('error:')} {error.format_message()}\n  {hint}", err=True)
    return 2


def _report_json(code: int, message: str, hint: str, problems: Any) -> None:
    """The one shape of an error for machines, on standard error."""
    import dataclasses
    import json

    body = {"code": code, "message": message, "hint": hint, "problems": [dataclasses.asdict(p) for p in problems]}
    click.echo(json.dumps({"error": body}), err=True)


def _wants_json(arguments: list[str]) -> bool:
    return any(
        word in ("-ojson", "--output=json") or (word in ("-o", "--output") and following == "json")
        for word, following in itertools.zip_longest(arguments, arguments[1:])
    )


def _red(text: str) -> str:
    from windlass.cli.style import coloured

    return click.style(text, fg="red", bold=True) if coloured(sys.stderr) else text
