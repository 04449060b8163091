"""`python -m windlass.serving MODEL`: serves a model over HTTP."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.serving.process import start
from windlass.serving.settings import OPTIONS, Model, Settings, gpu_names


def parse(words: list[str] | None = None) -> Settings:
    """Returns the settings of a command line; exits with 2 if it is wrong. Raises OSError if a file cannot be read."""
    parser = argparse.ArgumentParser("python -m windlass.serving", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="folder or file of the model")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="0 for a free one. Default: 8080.")
    for option in OPTIONS:
        parser.add_argument(
            f"--{option.name}",
            type=_positive(type(option.default)),
            default=option.default,
            metavar=option.metavar,
            help=option.help,
        )
    parser.add_argument("--allow-pickle", action="store_true", help="Load a pickled model, which may run any code.")
    given = parser.parse_args(words)
    if bool(given.certificate) != bool(given.key):
        parser.error("--certificate and --key need each other")
    token = Path(given.token_file).read_text("ascii").strip() if given.token_file else ""
    if given.token_file and not token:
        parser.error(f"{given.token_file} is empty")
    return Settings(
        model=Model(given.model, given.code, given.function, given.allow_pickle, given.batch > 1),
        host=given.host,
        port=given.port,
        workers=given.workers or max(1, len(gpu_names())),
        batch=given.batch,
        batch_wait_seconds=given.batch_wait / 1000,
        queue=given.queue,
        max_body_bytes=given.max_body,
        time_limit_seconds=given.time_limit,
        body_limit_seconds=given.body_limit,
        idle_limit_seconds=given.idle_limit,
        token=token,
        certificate=given.certificate,
        key=given.key,
        ready_file=given.ready_file,
    )


def _positive(kind: type) -> Callable[[str], Any]:
    def number(word: str) -> Any:
        value = kind(word)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{word} is not positive")
        return value

    return str if kind is str else number


def main() -> None:
    """Serves until a signal; exits with 1 if the model cannot be loaded or the port is taken."""
    try:
        settings = parse()
        workers = [start(settings, number) for number in range(settings.workers)]
        from windlass.serving.server import run  # uvicorn is imported while the workers load the model

        code = run(settings, workers)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
