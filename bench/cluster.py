"""A cluster made and removed by Windlass, and by Terraform by hand, in the same emulated account.

    .venv/bin/python bench/cluster.py [RUNS] [--smoke]

Both apply the configuration that Windlass ships: an EKS cluster with EFS and Karpenter. By hand means `terraform init`,
`plan -out`, `apply`, `output` and `destroy`; Windlass besides looks for what a crash has left, writes the target, and
audits every service at the end. An emulator answers at once, so that what is measured is our part and Terraform's; AWS
takes a quarter of an hour. With --smoke nothing is applied, and nothing done by hand.

The last table counts what a person types by published guides, for what they make: less than this configuration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import BIN, report, start, table
from tests.fakeaws.emulator import Emulator, emulated_aws, terraform_environ

WINDLASS, TERRAFORM = "windlass", "terraform by hand"
CLUSTER = "name: bench\nregion: us-east-1\nzones: [us-east-1a, us-east-1b]\nstorage: {efs: true}\n"
GUIDES = (
    ("windlass", "VPC, EKS, EFS, bucket, ECR, Karpenter, operators", 1, 1, "windlass cluster up, down"),
    ("terraform-aws-eks", "VPC, EKS, Karpenter", 4, 3, "examples/karpenter/README.md at 005885bf"),
    ("eksctl", "VPC, EKS, Karpenter", 8, 5, "karpenter.sh, Getting Started, at 039651fa"),
)
"""Who, what it makes, and the commands or scripts of the guide to make and to remove it; without trying it out."""


@dataclass
class Account:
    """An emulated account, with a log of the calls that it has checked."""

    aws: Emulator
    environ: Mapping[str, str]
    calls_file: Path

    @property
    def calls(self) -> int:
        """So far."""
        return len(self.calls_file.read_text().splitlines()) if self.calls_file.exists() else 0


@contextmanager
def account() -> Iterator[Account]:
    """A new one, with a folder of its own as home."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls = folder / "calls.jsonl"
        with emulated_aws(folder / "aws", auth=True, environ={"FAKEAWS_CALLS": str(calls)}) as aws:
            home = {"WINDLASS_HOME": str(folder / "home"), "HOME": str(folder), "PATH": os.environ["PATH"]}
            yield Account(aws, terraform_environ(folder) | aws.environ | home, calls)


def run(words: list[str], cwd: Path, environ: Mapping[str, str]) -> float:
    """Seconds of a command. Raises RuntimeError with its output if it fails."""
    began = time.monotonic()
    done = subprocess.run(words, cwd=cwd, env=dict(environ), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return time.monotonic() - began


def by_windlass(smoke: bool) -> tuple[dict[str, float], int]:
    """Seconds of each part, and calls to AWS."""
    with account() as its:
        folder = Path(its.environ["HOME"])
        (folder / "cluster.yaml").write_text(CLUSTER)
        words = [str(BIN / "windlass"), "cluster"]
        if smoke:
            return {"plan": run([*words, "plan"], folder, its.environ)}, its.calls
        up = run([*words, "up", "--yes", "--no-components"], folder, its.environ)
        plan = run([*words, "plan"], folder, its.environ)
        down = run([*words, "down", "bench", "--yes", "--force"], folder, its.environ)
        return {"up": up, "plan": plan, "down": down}, its.calls


def by_hand() -> tuple[dict[str, float], int]:
    """The same, of the same files."""
    with account() as its:
        folder = Path(its.environ["HOME"])
        (folder / "cluster.yaml").write_text(CLUSTER)
        run([str(BIN / "windlass"), "cluster", "export"], folder, its.environ)
        work = Path(shutil.copytree(folder / "home" / "clusters" / "bench", folder / "work"))

        def terraform(*words: str) -> float:
            return run(["terraform", *words], work, its.environ)

        first = terraform("init", "-input=false") + terraform("plan", "-input=false", "-out=made")
        up = first + terraform("apply", "-input=false", "made") + terraform("output", "-json")
        plan = terraform("plan", "-input=false")
        down = terraform("destroy", "-auto-approve", "-input=false")
        return {"up": up, "plan": plan, "down": down}, its.calls


def main(runs: int, smoke: bool) -> None:
    """Print the tables."""
    ways: dict[str, Callable[[], tuple[dict[str, float], int]]] = {WINDLASS: partial(by_windlass, smoke)}
    if not smoke:
        ways[TERRAFORM] = by_hand
    results = {name: [way() for _ in range(runs)] for name, way in ways.items()}
    for part in results[WINDLASS][0][0]:
        times = {name: [seconds[part] for seconds, _ in found] for name, found in results.items()}
        report(times, peer=TERRAFORM, title=part, figure="seconds")
    table("calls to AWS", ["way", "calls"], [[name, found[0][1]] for name, found in results.items()])
    table("typed by hand", ["way", "makes", "to make", "to remove", "source"], GUIDES)


if __name__ == "__main__":
    start(main, runs=1)
