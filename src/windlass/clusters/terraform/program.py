"""Finds the `terraform` program (or OpenTofu's `tofu`) and checks its version."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windlass.errors import MissingExtra

OLDEST: Final = {"terraform": (1, 10, 0), "tofu": (1, 10, 0)}
"""Minimum version of each product: its S3 backend supports lock files (`use_lockfile`)."""
INSTALL: Final = {
    "terraform": "install it: https://developer.hashicorp.com/terraform/install",
    "tofu": "install it: https://opentofu.org/docs/intro/install",
}
VERSION_SECONDS: Final = 60
KEPT: Final = frozenset(
    {"TF_CLI_CONFIG_FILE", "TF_PLUGIN_CACHE_DIR", "TF_REGISTRY_CLIENT_TIMEOUT", "TF_REGISTRY_DISCOVERY_RETRY"}
)
"""Terraform settings that are passed on from the user's environment.

Other settings change what a command does (TF_CLI_ARGS, TF_WORKSPACE, TF_DATA_DIR, TF_VAR_…) or print request headers
into the log (TF_LOG).
"""


@dataclass(frozen=True, slots=True)
class Program:
    """An installed terraform or tofu program."""

    path: Path
    product: str
    """`terraform` or `tofu`."""
    version: tuple[int, int, int]

    @property
    def text(self) -> str:
        """Product and version: `terraform 1.11.4`."""
        return f"{self.product} {'.'.join(map(str, self.version))}"


def find_program(environ: Mapping[str, str]) -> Program:
    """Finds `terraform`, else `tofu`, in `$PATH` of `environ`. Raises MissingExtra if neither is found or it is
    too old.
    """
    for one in OLDEST:
        if found := shutil.which(one, path=environ.get("PATH", "")):
            return _checked(Path(found), environ)
    raise MissingExtra("terraform is not installed (looked in $PATH)", INSTALL["terraform"])


def _checked(path: Path, environ: Mapping[str, str]) -> Program:
    product, version = _version(path, environ)
    oldest = OLDEST[product]
    if version < oldest:
        found, wanted = (".".join(map(str, one)) for one in (version, oldest))
        raise MissingExtra(f"{path} is {product} {found}; Windlass needs {wanted} or newer", INSTALL[product])
    return Program(path, product, version)


def _version(path: Path, environ: Mapping[str, str]) -> tuple[str, tuple[int, int, int]]:
    try:
        done = subprocess.run(
            [path, "version", "-json"],
            env=environment(environ),
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingExtra(f"{path} does not run: {error}", INSTALL["terraform"]) from error
    try:
        text = str(json.loads(done.stdout)["terraform_version"])
    except (ValueError, KeyError, TypeError) as error:
        last = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:]
        detail = f": {last[0]}" if last else ""
        raise MissingExtra(f"{path} does not print its version{detail}", INSTALL["terraform"]) from error
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    if not numbers:
        raise MissingExtra(f"{path} prints the version {text!r}", INSTALL["terraform"])
    product = "tofu" if path.name.startswith("tofu") else "terraform"
    return product, (int(numbers[1]), int(numbers[2]), int(numbers[3]))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for Terraform, without settings that would change what a command does."""
    kept = {name: value for name, value in environ.items() if not name.startswith("TF_") or name in KEPT}
    return {**kept, "TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1"}
