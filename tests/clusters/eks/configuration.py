"""Copies the Terraform configuration, so that `terraform` writes nothing into the package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import windlass.clusters

SOURCE: Final = Path(windlass.clusters.__file__).with_name("eks")
SERVICES: Final = (
    "budgets", "cloudcontrolapi", "cloudformation", "ec2", "ecr", "efs", "eks", "events", "fsx", "iam", "kms", "logs",
    "s3", "sqs", "ssm", "sts",
)  # fmt: skip
"""Provider names of the services that the configuration uses."""
RESOURCE: Final = re.compile(r'^resource "(\w+)" "(\w+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
VARIABLE: Final = re.compile(r'^variable "(\w+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)


def copied_to(folder: Path) -> Path:
    """Copies the configuration into a new folder below `folder`."""
    return Path(shutil.copytree(SOURCE, folder / "eks", ignore=shutil.ignore_patterns(".terraform*")))


def text() -> str:
    """Returns the text of all .tf files."""
    return "\n".join(path.read_text() for path in sorted(SOURCE.glob("*.tf")))


def names() -> dict[str, str]:
    """Returns the name pattern of each resource by address."""
    return dict(json.loads((SOURCE / "names.json").read_text()))


class Terraform:
    """Runs `terraform` in one folder."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self._environ = dict(environ)

    def run(self, *arguments: str, exits: int = 0) -> str:
        """Runs a command and returns its output; raises AssertionError with the output for another exit code."""
        done = subprocess.run(
            ["terraform", *arguments], cwd=self.folder, env=self._environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == exits, f"terraform {arguments[0]}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def variables(self, values: Mapping[str, Any]) -> None:
        """Writes terraform.tfvars.json."""
        (self.folder / "terraform.tfvars.json").write_text(json.dumps(values))
