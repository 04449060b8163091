"""Checks the programs that `cluster up` and EKS logins need, and the AWS credentials."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Final

from windlass.clusters.aws import Aws
from windlass.clusters.preflight.finding import Finding
from windlass.clusters.terraform import find_program
from windlass.errors import WindlassError

SECONDS: Final = 30
HELM: Final = "install it: https://helm.sh/docs/intro/install/"
CLI: Final = "install version 2: https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"
PASSED: Final = ("PATH", "HOME", "TMPDIR", "LANG")
"""Environment variables passed to a program that prints its version."""


def program_findings(
    environ: Mapping[str, str], *, has_components: bool = True, builds: bool = True
) -> Iterator[Finding]:
    """Checks terraform and helm if a cluster will be created (`builds`), the aws command for logins, and boto3."""
    if builds:
        try:
            found = find_program(environ)
            yield Finding("terraform", "ok", f"{found.text} at {found.path}")
        except WindlassError as error:
            yield Finding("terraform", "fail", error.message, error.hint)
    if builds and has_components:
        yield _program("helm", ["version", "--short"], environ, HELM, "components are installed with helm")
    yield _program("aws", ["--version"], environ, CLI, "the kubeconfig of an EKS cluster uses it to log in")
    try:
        yield Finding("boto3", "ok", metadata.version("boto3"))
    except metadata.PackageNotFoundError:
        yield Finding("boto3", "fail", "not installed, but required for AWS calls", "pip install boto3")


def _program(name: str, words: list[str], environ: Mapping[str, str], fix: str, why: str) -> Finding:
    path = shutil.which(name, path=environ.get("PATH", ""))
    if path is None:
        return Finding(name, "fail", f"not installed: {why}", fix)
    try:
        env = {key: environ[key] for key in PASSED if key in environ}
        done = subprocess.run([path, *words], env=env, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, "fail", f"{path} does not run: {error}", fix)
    found = re.search(r"v?(\d+)\.\d+[\w.+-]*", done.stdout + done.stderr)
    if found is None:
        return Finding(name, "warn", f"{path} does not print its version", fix)
    if name == "aws" and int(found[1]) < 2:
        return Finding(name, "warn", f"version {found[0]} at {path} is no longer developed", CLI)
    return Finding(name, "ok", f"{found[0]} at {path}")


def identity_finding(aws: Aws) -> Finding:
    """Reports the identity of the credentials; `fail` without credentials."""
    try:
        found = aws.identity
    except WindlassError as error:
        return Finding("identity", "fail", error.message, error.hint)
    text = f"{found.arn}, account {found.account_id}, region {aws.region}"
    if found.arn.endswith(":root"):
        return Finding(
            "identity",
            "warn",
            f"{text}: the root user, whom no policy restricts",
            "log in as a role or as a user of IAM Identity Center",
        )
    return Finding("identity", "ok", text)
