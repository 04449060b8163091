"""Starts an AWS emulator (ministack with Windlass's extensions) on loopback, with settings for Terraform.

Only the standard library is imported at the top, because the launcher imports this package in a separate environment.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.helpers.ports import quiet_port
from tests.helpers.until import until

ROOT: Final = Path(__file__).parents[3]
PYTHON: Final = ROOT / ".cache" / "aws-env" / "bin" / "python"
LAUNCHER: Final = Path(__file__).with_name("launcher.py")
ACCOUNT: Final = "123456789012"
REGION: Final = "us-east-1"
START_SECONDS: Final = 240.0
"""Time limit in seconds: the launcher is ready after about one second, on a busy machine later."""


class Emulator:
    """An emulated AWS account: its address, and clients for it."""

    region = REGION
    account = ACCOUNT

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        """The output of the emulator: one line for each request it could not answer."""
        self._process = process

    @property
    def pid(self) -> int:
        """Process id of the emulator."""
        return self._process.pid

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that point AWS SDKs and tools to the emulator, as its root user."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str, **options: Any) -> Any:
        """Returns a boto3 client of `service` for the emulator, as root user unless `options` contain credentials."""
        import boto3
        from botocore.config import Config

        named = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": self.region, **options}
        path_style = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 3})
        return boto3.client(service, endpoint_url=self.url, **{"config": path_style, **named})

    def kill(self) -> None:
        """Kills the emulator with SIGKILL; its state is lost."""
        self._process.kill()
        self._process.wait()

    def is_ready(self) -> bool:
        """Whether the emulator answers requests. Raises AssertionError with its output if it has exited."""
        assert self._process.poll() is None, f"the emulator has ended: {self.log.read_text()[-2000:]}"
        try:
            with urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@functools.cache
def make_environments() -> None:
    """Creates the environments of the emulator and of checkov, or waits for another process that is creating them."""
    subprocess.run(["bash", str(ROOT / "tools" / "aws-env.sh")], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def emulated_aws(folder: Path, auth: bool = False, environ: Mapping[str, str] | None = None) -> Iterator[Emulator]:
    """Runs an emulator with an empty account during the block, with its files below `folder`.

    With `auth`, signatures and identity policies are enforced for all users except root. `environ` adds environment
    variables: `FAKEAWS_EKS_ENDPOINT` and `FAKEAWS_EKS_CA` name a real API server for the emulated clusters.
    """
    make_environments()
    folder.mkdir(parents=True, exist_ok=True)
    port = quiet_port()
    log = folder / "emulator.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(PYTHON), str(LAUNCHER)],
            cwd=folder,
            env=_environ_of_launcher(folder, port, auth) | dict(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    emulator = Emulator(process, port, log)
    try:
        until(emulator.is_ready, lambda: f"the emulator does not answer: {log.read_text()[-2000:]}", START_SECONDS)
        yield emulator
    finally:
        emulator.kill()  # a graceful shutdown would wait for open client connections


def _environ_of_launcher(folder: Path, port: int, auth: bool) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "AUTH": "true" if auth else "false",
        "LOG_LEVEL": "WARNING",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def terraform_mirror() -> Path | None:
    """Returns the folder of Terraform providers for tests; None if this machine has none."""
    named = os.environ.get("WINDLASS_TEST_TERRAFORM_MIRROR", "/opt/tf-plugins")
    return Path(named) if Path(named).is_dir() else None


def terraform_environ(folder: Path) -> dict[str, str]:
    """Returns the environment of a `terraform` process that installs providers only from the mirror.

    Uses the existing file in `TF_CLI_CONFIG_FILE`, or writes one below `folder`.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "AWS_"))}
    environ |= {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_INPUT": "0"}
    named = os.environ.get("TF_CLI_CONFIG_FILE", "")
    if named and Path(named).is_file():
        return environ | {"TF_CLI_CONFIG_FILE": named}
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "terraformrc"
    config.write_text(
        "disable_checkpoint = true\n"
        "provider_installation {\n"
        f'  filesystem_mirror {{\n    path    = "{terraform_mirror()}"\n'
        '    include = ["registry.terraform.io/hashicorp/*"]\n  }\n}\n'
    )
    return environ | {"TF_CLI_CONFIG_FILE": str(config)}
