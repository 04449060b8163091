"""The command `windlass`: imports only the subcommand's module, converts errors to a message and an exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

import windlass
from windlass.errors import WindlassError

# Imports create many objects: with the default thresholds, garbage collection takes 10 % of the start-up time.
gc.set_threshold(100_000, 20, 20)
# Frozen objects are not searched for garbage at exit; the search takes a seventh of the time of `ps --on`.
atexit.register(gc.freeze)


READING: Final = frozenset({
    "artifacts", "checkpoints list", "cluster ls", "cluster plan", "cluster policy", "cluster status", "compare",
    "completion", "cost", "data ls", "doctor", "du", "events", "logs", "metrics", "plan", "plot", "prices list", "ps",
    "schema", "services", "status", "targets", "warm ls", "why",
})  # fmt: skip
"""Read-only commands, which exit quietly if the reader of their output closes the pipe, as `head` does."""
LONG_WORD: Final = 6
"""Minimum length of a misspelled command that may have two wrong letters."""
UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Error numbers (errno) of a failed write to an open file."""


class Entry(NamedTuple):
    """A command; its module is imported only when the command is called."""

    module: str
    help: str
    function: str = ""
    """Name of the command's function in the module, if it differs from the name of the command."""


COMMANDS: Final[dict[str, Entry]] = {
    "init": Entry("init", "Write a job file for a script"),
    "import": Entry("importing", "Write a job file for a job of Kubernetes, SageMaker or others", "import_job"),
    "check": Entry("init", "Check a job file, and a cluster, and report every problem"),
    "plan": Entry("run", "Show every step that a run would take; changes nothing"),
    "run": Entry("run", "Run a job and follow it"),
    "rerun": Entry("run", "Run the job of an earlier run again"),
    "ps": Entry("inspect", "List runs"),
    "status": Entry("inspect", "Show one run: phase, progress, ranks, where its time went"),
    "logs": Entry("inspect", "Show output of the ranks"),
    "why": Entry("why", "Explain why a run failed or is pending: cause, evidence, fix"),
    "metrics": Entry("metrics", "Show the metrics of a run, such as its losses, or export them"),
    "compare": Entry("compare", "Compare runs: metrics, and in what their settings, code and data differ"),
    "plot": Entry("plot", "Draw a metric of runs in the terminal or as SVG"),
    "cost": Entry("cost", "Show what a run has cost, and how much of it was wasted"),
    "events": Entry("inspect", "Show the events of a run"),
    "exec": Entry("exec_copy", "Run a command next to a rank of a running job"),
    "port-forward": Entry("port_forward", "Make a port of a rank reachable on this machine", "port_forward"),
    "cp": Entry("exec_copy", "Copy files out of a run or into it"),
    "artifacts": Entry("artifacts", "List the files that a run produced, where they are, and how to copy them"),
    "checkpoints": Entry("checkpoints", "List, verify, prune and export the checkpoints of a run"),
    "data": Entry("data", "Copy, stage, list and verify data in folders and object stores"),
    "stop": Entry("run", "End a run: SIGTERM, the job's grace period, SIGKILL"),
    "resume": Entry("resume", "Resume a run that failed, was stopped or was lost"),
    "note": Entry("note", "Write a note on a run, or show it"),
    "ui": Entry("ui", "Show runs, curves, logs and targets in the browser"),
    "open": Entry("ui", "Open the page of a run in the browser", "open_"),
    "serve": Entry("serve", "Serve a model, or the model that a run has trained, over HTTP on this machine"),
    "deploy": Entry("deploy", "Put a model behind an address, for a limited time"),
    "invoke": Entry("deploy", "Send a request to a deployed model"),
    "services": Entry("services", "List TensorBoard, notebooks and deployed models that are up"),
    "close": Entry("services", "End a service, and wait until nothing of it is left"),
    "undeploy": Entry("services", "End a deployment: another name of close", "close"),
    "tensorboard": Entry("boards", "Show curves of runs, folders, object stores or a claim in TensorBoard"),
    "notebook": Entry("boards", "Open JupyterLab on a run, a folder or a claim"),
    "rm": Entry("remove", "Remove ended runs with their logs and results"),
    "prune": Entry("remove", "Remove the runs that ended long ago"),
    "du": Entry("remove", "Show what runs and data take on this machine's disk"),
    "warm": Entry("warm", "List and stop the processes from which ranks are forked"),
    "cluster": Entry("cluster", "Make an EKS cluster, check it, and remove it with proof"),
    "targets": Entry("target", "List the targets that --on can name"),
    "target": Entry("target", "Set up a target for supervisors that run there"),
    "prices": Entry("prices", "List and update prices of AWS that plans use"),
    "doctor": Entry(
        "doctor", "Check this machine, or a cluster and its account, for what would fail or slow down a run"
    ),
    "schema": Entry("init", "Print the JSON Schema of the job file, for editors"),
    "completion": Entry("completion", "Print the completion script for bash, zsh or fish"),
}


VERBS: Final = {
    **dict.fromkeys(("list", "ls", "runs", "queue", "squeue", "get", "jobs"), "ps"),
    **dict.fromkeys(("top", "watch"), "ps --watch"),
    "progress": "status",
    "diff": "compare",
    **dict.fromkeys(("chart", "curves", "graph"), "plot"),
    **dict.fromkeys(("cancel", "kill", "scancel", "terminate", "down", "pause", "suspend"), "stop"),
    **dict.fromkeys(("delete", "remove", "del"), "rm"),
    **dict.fromkeys(("submit", "launch", "start", "train", "apply", "create", "sbatch", "up"), "run"),
    **dict.fromkeys(("describe", "show", "info", "inspect"), "status"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("attach", "follow"), "logs -f"),
    **dict.fromkeys(("diagnose", "explain", "debug"), "why"),
    **dict.fromkeys(("ssh", "shell"), "exec"),
    **dict.fromkeys(("tunnel", "forward"), "port-forward"),
    **dict.fromkeys(("retry", "restart", "continue", "requeue"), "resume"),
    **dict.fromkeys(("download", "copy", "scp"), "cp"),
    **dict.fromkeys(("validate", "lint"), "check"),
    **dict.fromkeys(("clean", "gc"), "prune"),
    **dict.fromkeys(("dryrun", "dry-run", "preview"), "plan"),
}
"""Maps names of commands in other tools to commands of Windlass."""


ALIASES: Final = {
    "help": ((), ("--help",)),
    "version": ((), ("--version",)),
    "wait": (("status",), ("--watch", "--exit-code")),
}
"""Maps commands of other tools to the words that replace them before and after the other arguments: `windlass help run`
becomes `windlass run --help`."""


def _near(word: str) -> str:
    """Returns `did you mean status?` for a word that differs from a command by one or two letters.

    Commands that remove nothing are preferred: `rum` suggests `run`. Only commands with the same first letter are
    suggested: `top` is not a misspelled `stop`.
    """
    most = 1 if len(word) < LONG_WORD else 2
    found = [name for name in COMMANDS if name[0] == word[0] and _distance(name, word[:40]) <= most]
    found.sort(key=lambda name: (name in ("rm", "prune"), _distance(name, word)))
    return f"did you mean {found[0]}?" if found else ""


def _distance(one: str, other: str) -> int:
    """Returns the optimal string alignment distance: the number of missing, added, wrong or swapped letters."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, against in enumerate(other, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != against)))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == against:
                row[-1] = min(row[-1], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


class BrokenPipe(Exception):
    """Replaces BrokenPipeError, for which click would exit with 1 silently, whichever pipe or connection is broken."""

    def __init__(self, error: BrokenPipeError) -> None:
        super().__init__(str(error))
        self.error = error


class LazyGroup(click.Group):
    """A group whose commands are imported only when they are called."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. Raises BrokenPipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise BrokenPipe(error) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the commands in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Imports the command's module."""
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(f"windlass.cli.{entry.module}"), entry.function or name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggests the nearest command for an unknown name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            is_file = args[0].endswith((".py", ".yaml", ".yml"))
            verb = f"run {args[0]}" if is_file else VERBS.get(args[0])
            hint = f"that is windlass {verb}" if verb else _near(args[0])
            hint = f" ({hint})" if hint else ""
            raise click.UsageError(f"'{args[0]}' is not a command{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Completes the names of commands without importing their modules."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=c.help) for name, c in COMMANDS.items() if name.startswith(incomplete)]
        return found if not incomplete.startswith("-") else click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(windlass.__version__, prog_name="windlass")
def cli() -> None:
    """Take an unchanged training script to any number of workers and bring the trained model back.

    \b
    windlass run train.py --nodes 2 --procs-per-node 2   a script, unchanged
    windlass run                                         job.yaml of this folder
    windlass logs -f                                     output of the newest run

    Exit codes: 0 success; 1 an error of Windlass or of a tool that it uses; 2 usage, a bad job file or no login;
    100 the run failed; 101 not finished; 102 no such run; 103 stopped.
    """


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    _open_streams()
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in ALIASES:
        before, after = ALIASES[arguments[0]]
        arguments = [*before, *arguments[1:], *after]
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        code = cli.main(arguments, prog_name="windlass", standalone_mode=False)
    except WindlassError as error:
        code = _report(error, ours)
    except click.exceptions.Abort:
        code = 130
    except click.exceptions.NoArgsIsHelpError as error:  # a command group was called without a subcommand
        click.echo(error.ctx.get_help() if error.ctx is not None else error.message, err=True)
        code = 2
    except click.ClickException as error:
        code = _show_help() if arguments == ["--"] else _report_usage(error, ours)
    except BrokenPipe as broken:
        # Otherwise the interpreter would fail at exit, when it writes the rest of the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0 if READING & {*ours[:1], " ".join(ours[:2])} else _report(_CUT_SHORT, ours, cause=broken.error)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C during an import, see entry.py
            sys.exit(130)
        code = _report(_of_file(error) or _internal(error), ours, cause=error)
    sys.exit(code if isinstance(code, int) else 0)


def _open_streams() -> None:
    """Opens standard streams that the caller has closed; otherwise, other files would get their descriptors."""
    names = ("stdin", "stdout", "stderr")
    for number, name in enumerate(names):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _of_file(error: Exception) -> WindlassError | None:
    """Converts an OSError to a WindlassError; returns None for any other exception."""
    import shutil  # imported for errors alone: each import delays every command

    if isinstance(error, shutil.Error):  # of a whole folder: the first file that could not be copied, and why
        path, _target, reason = error.args[0][0]
        return WindlassError(f"{path} cannot be copied: {reason}", "check the free space and who may read it")
    if not isinstance(error, OSError) or error.strerror is None:
        return None
    if error.filename is None:  # a failed write to an open file, usually standard output
        hint = "check the free space for the output and in WINDLASS_HOME; --debug shows the trace"
        return WindlassError(f"cannot write: {error.strerror}", hint) if error.errno in UNWRITABLE else None
    hint = "check who owns it, and WINDLASS_HOME if it is below that; --debug shows the trace"
    return WindlassError(f"{error.filename}: {error.strerror}", hint)


def _internal(error: Exception) -> WindlassError:
    return WindlassError(f"{type(error).__name__}: {error}", "an internal error of Windlass: --debug shows the trace")


_CUT_SHORT: Final = WindlassError(
    "the output, or a connection, was closed by its other end",
    "the command may not have done all; --debug shows the trace",
)


def _report(error: WindlassError, arguments: list[str], cause: Exception | None = None) -> int:
    if "--debug" in arguments:
        import traceback

        traceback.print_exception(cause or error)
    else:
        from windlass.cli.formatting import harmless  # the message may quote a pod or an API server

        problems = getattr(error, "problems", ())
        _print_error(error.exit_code, error.message, error.hint or "", arguments, problems, clean=harmless)
    return error.exit_code


def _show_help() -> int:
    """Prints the help if no command is given, on standard error and with exit code 2, as click does."""
    with click.Context(cli, info_name="windlass", **cli.context_settings) as context:
        click.echo(cli.get_help(context), err=True)
    return 2


def _report_usage(error: click.ClickException, arguments: list[str]) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):  # click's own suggestions are too distant, such as --help for --lr
        most = max(2, len(error.option_name) // 3)
        near = [one for one in error.possibilities or () if _distance(one, error.option_name) <= most]
        error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    named = [word for word in arguments[:1] if word in COMMANDS]
    hint = f"see: {context.command_path if context else ' '.join(['windlass', *named])} --help"
    _print_error(2, error.format_message(), hint, arguments)
    return 2


def _print_error(
    code: int, message: str, hint: str, arguments: list[str], problems: Any = (), clean: Callable[[str], str] = str
) -> None:
    """Prints an error on standard error, as JSON for programs or as text."""
    if _wants_json(arguments):
        import dataclasses
        import json

        body = {"code": code, "message": message, "hint": hint, "problems": [dataclasses.asdict(p) for p in problems]}
        click.echo(json.dumps({"error": body}), err=True)
    else:
        click.echo(_fitted(clean(f"{_red('error:')} {message}" + (f"\n  {hint}" if hint else ""))), err=True)


def _fitted(text: str) -> str:
    """Wraps text for standard error between words if that is a terminal."""
    from windlass.cli.style import interactive

    if not interactive(sys.stderr):
        return text
    from windlass.cli.formatting import fitted

    return fitted(text)


def _wants_json(arguments: list[str]) -> bool:
    return any(
        word in ("-ojson", "--output=json") or (word in ("-o", "--output") and following == "json")
        for word, following in itertools.zip_longest(arguments, arguments[1:])
    )


def _red(text: str) -> str:
    from windlass.cli.style import coloured

    return click.style(text, fg="red", bold=True) if coloured(sys.stderr) else text
