"""Command line for `up`, `down` and `recover` with a small configuration; tests kill this process.

python program.py HOME NAME BACKEND_JSON ENVIRON_JSON up|down|down-kept|recover
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from windlass.clusters.aws import Aws
from windlass.clusters.recovery import RecoveryReport, needs_recovery, recover
from windlass.clusters.storage.kept_bucket import keep_bucket
from windlass.clusters.terraform import OnEvent, StopRequests, Terraform, find_program
from windlass.clusters.terraform.events import ignore
from windlass.clusters.terraform.folder import Backend, ClusterFolder, LocalBackend, S3Backend

SMALL: Final = Path(__file__).parents[1] / "terraform" / "small"
KEPT: Final = SMALL.with_name("kept")
"""Configuration of a bucket with its key, which `down-kept` keeps."""


def terraform_of(
    folder: ClusterFolder,
    environ: Mapping[str, str],
    *,
    on_event: OnEvent = ignore,
    stop: StopRequests | None = None,
) -> Terraform:
    """Returns the driver for a folder."""
    return Terraform(find_program(environ), folder, environ, on_event=on_event, stop=stop)


def prepare(terraform: Terraform, backend: Backend, configuration: Path = SMALL, **variables: Any) -> None:
    """Writes the folder and initializes it."""
    terraform.folder.write(configuration, {"name": terraform.folder.name, "region": "us-east-1", **variables}, backend)
    terraform.init()


def recovered(terraform: Terraform, environ: Mapping[str, str], *, break_lock: bool = False) -> RecoveryReport:
    """Runs a recovery with the credentials and endpoint in `environ`."""
    with Aws(environ=environ) as aws:
        return recover(terraform, aws, break_lock=break_lock)


def main(home: str, name: str, backend_json: str, environ_json: str, action: str) -> None:
    """Runs one command like the commands of `windlass cluster`."""
    environ = json.loads(environ_json)
    found = json.loads(backend_json)
    backend = S3Backend(**found) if found else LocalBackend()
    folder = ClusterFolder.of(Path(home), name)
    with folder.locked(f"cluster {action}"), StopRequests() as stop:
        terraform = terraform_of(folder, environ, on_event=lambda event: print(event, flush=True), stop=stop)
        prepare(terraform, backend, KEPT if action == "down-kept" else SMALL)
        if action == "recover" or needs_recovery(folder):
            print(recovered(terraform, environ), flush=True)
        if action == "down-kept":
            with Aws(environ=environ) as aws:
                keep_bucket(terraform, aws, lambda event: print(event, flush=True))
        if action != "recover":
            terraform.apply(terraform.plan(destroy=action.startswith("down")))


if __name__ == "__main__":
    main(*sys.argv[1:])
