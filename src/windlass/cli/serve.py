"""`serve`: serves a model over HTTP in the foreground."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Final

import click

from windlass.cli import options
from windlass.serving import settings

PORT: Final = 8080
OPTIONS: Final = tuple(option for option in settings.OPTIONS if option.name != "ready-file")
"""Options that are passed to the server."""
_TYPES: Final = {
    int: click.IntRange(1),
    float: click.FloatRange(0, min_open=True),
    str: click.STRING,
}


def _server_options(command: Any) -> Any:
    for name, metavar, default, text in reversed(OPTIONS):
        command = click.option(f"--{name}", type=_TYPES[type(default)], metavar=metavar, help=text)(command)
    return command


def _models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    return options.or_file(options.complete_run(context, parameter, incomplete), incomplete)


@click.command()
@click.argument("model", metavar="MODEL|RUN", shell_complete=_models)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port. Default: 8080, or a free one; 0: free.")
@_server_options
@click.option("--allow-pickle", is_flag=True, help="Load a pickled model, which may run any code.")
@options.debug
def serve(model: str, port: int | None, allow_pickle: bool, **given: Any) -> int:
    """Serve a model over HTTP until Ctrl-C: POST /invocations asks it.

    MODEL is a folder or file with predict.py (load(folder), predict(data)), with inference.py as in AWS's containers,
    or with weights (.safetensors, .pt) and a function that makes the module. RUN serves the results of a run, by the
    interpreter of its script. GET /ping answers 200 when the model is loaded; /metrics is for Prometheus.

    \b
    Example:
      windlass serve model/
      windlass serve digits-7f3k2 --function train.py:make_network
    """
    from windlass.actions import serving
    from windlass.actions.runs import opened
    from windlass.errors import UsageError

    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    words += [f"--port={_port() if port is None else port}", *(["--allow-pickle"] if allow_pickle else [])]
    if Path(model).exists():
        command = serving.of_folder(Path(model), words)
    elif "/" in model:
        raise UsageError(f"{model} is not a file or folder")
    else:
        with opened(model) as (engine, run_id):
            command = serving.of_run(engine, run_id, words)
    click.echo("Ctrl-C ends the server.", err=True)
    try:
        os.execve(command.argv[0], command.argv, dict(command.environment))
    except OSError as error:
        raise UsageError(f"{command.argv[0]} cannot be run ({error.strerror})") from error


def _port() -> int:
    """Returns the default port, or 0 if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return 0
    return PORT
