"""`python -m tests.cluster.bed COMMAND [--index N]`: runs a real test cluster on this machine, for development."""

from __future__ import annotations

import argparse
import sys
import time

from tests.cluster.bed import build
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import BedError
from tests.cluster.bed.operators import ON_DEMAND
from tests.helpers.golang import BuildError


def up(index: int) -> None:
    """Builds missing programs, starts the test cluster and prints how to access it."""
    build.build()
    there = Bed.at(index).is_up()
    bed = Bed.up(index)
    bed.layout.borrowed.unlink(missing_ok=True)
    print("bed: it was up already" if there else f"bed: up in {bed.made()['seconds']} s")
    print(f"bed: export KUBECONFIG={bed.kubeconfig} PATH={build.home() / 'bin'}:$PATH")


def down(index: int) -> None:
    """Removes the test cluster."""
    started = time.monotonic()
    Bed.at(index).down()
    print(f"bed: down in {time.monotonic() - started:.1f} s")


def status(index: int) -> None:
    """Prints whether the test cluster runs; exits with 1 if it does not."""
    bed = Bed.at(index)
    if not bed.is_up():
        sys.exit("bed: not up")
    print(bed.kubectl("get", "nodes", "-o", "wide"), end="")


def start(index: int, operator: str) -> None:
    """Starts an operator."""
    started = time.monotonic()
    _running(index).start_operator(operator)
    print(f"bed: {operator} runs, after {time.monotonic() - started:.1f} s")


def stop(index: int, operator: str) -> None:
    """Stops an operator and removes its kinds, with all their objects."""
    started = time.monotonic()
    _running(index).stop_operator(operator)
    print(f"bed: {operator} is gone, after {time.monotonic() - started:.1f} s")


def _running(index: int) -> Bed:
    bed = Bed.at(index)
    if not bed.is_up():
        sys.exit("bed: not up")
    return bed


def build_operators(_index: int) -> None:
    """Builds the operators that tests may request, helm, and the controller of load balancers."""
    build.build(*ON_DEMAND)
    build.build_cluster_tools()


def build_all_of_ci(_index: int) -> None:
    """Builds what `make test-cluster` needs; operators are built when requested."""
    build.build()


CHORES = {
    "build": build_all_of_ci,
    "build-operators": build_operators,
    "up": up,
    "down": down,
    "status": status,
}
OF_OPERATORS = {"start": start, "stop": stop}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bed", description=__doc__)
    parser.add_argument("chore", choices=[*CHORES, *OF_OPERATORS])
    parser.add_argument("operator", nargs="?", choices=list(ON_DEMAND), help="which one to start or stop")
    parser.add_argument("--index", type=int, default=0, help="the number of the bed (default 0); each is a cluster")
    given = parser.parse_args()
    if (given.chore in OF_OPERATORS) is not bool(given.operator):
        parser.error("start and stop are told an operator, and no other chore is")
    try:
        if given.operator:
            OF_OPERATORS[given.chore](given.index, given.operator)
        else:
            CHORES[given.chore](given.index)
    except (BedError, BuildError) as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
