"""`python -m tests.cluster.bed up|down|status [--index N]`: a real cluster on this machine, for development."""

from __future__ import annotations

import argparse
import sys
import time

from tests.cluster.bed import build
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import BedError


def up(index: int) -> None:
    """Build what is missing, bring the bed up and say how to reach it."""
    build.build()
    there = Bed.at(index).is_up()
    bed = Bed.up(index)
    bed.layout.borrowed.unlink(missing_ok=True)
    print("bed: it was up already" if there else f"bed: up in {bed.made()['seconds']} s")
    print(f"bed: export KUBECONFIG={bed.kubeconfig} PATH={build.home() / 'bin'}:$PATH")


def down(index: int) -> None:
    """Remove the bed."""
    started = time.monotonic()
    Bed.at(index).down()
    print(f"bed: down in {time.monotonic() - started:.1f} s")


def status(index: int) -> None:
    """Say whether the bed runs; exit 1 where it does not."""
    bed = Bed.at(index)
    if not bed.is_up():
        sys.exit("bed: not up")
    print(bed.kubectl("get", "nodes", "-o", "wide"), end="")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bed", description=__doc__)
    parser.add_argument("chore", choices=["build", "up", "down", "status"])
    parser.add_argument("--index", type=int, default=0, help="the number of the bed (default 0); each is a cluster")
    given = parser.parse_args()
    chores = {"build": lambda _: build.build(), "up": up, "down": down, "status": status}
    try:
        chores[given.chore](given.index)
    except BedError as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
