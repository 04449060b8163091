"""Lists what a diagnosis could not look at, so that "nothing is wrong so far" is not read as more than it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windlass.diagnose.rules.case import Case
from windlass.runs.record import Phase

BEGUN = (Phase.TRAINING, Phase.CHECKPOINTING)


def unseen(case: Case) -> tuple[str, ...]:
    """One line for each thing that was not there to be read, and why; of an ended run, only the cluster's silence."""
    return tuple(_unseen(case))


def _unseen(case: Case) -> Iterator[str]:
    cluster = case.seen.cluster
    if cluster is not None and cluster.unreachable:
        yield f"the cluster: {cluster.unreachable}; pods and objects are as the record last saw them"
    if cluster is not None:
        yield from cluster.unseen
    if case.status.phase not in BEGUN:
        return
    quiet = [seen.rank for seen in case.seen.ranks if seen.last_output_at is None]
    if quiet:
        where = "nothing of them has come from the cluster" if cluster is not None else "they have written nothing yet"
        yield f"the output of {_named(quiet)}: {where}"
    silence = case.seen.silence()
    hang = case.seen.plan.get("policy", {}).get("hang_seconds")
    if silence is None:
        when = f"they are taken after {hang:g} s without output (hang:)" if hang else "the job has no hang:"
        yield f"where the ranks are now: no stacks were taken, {when}"
    elif missing := sorted(rank for rank, stack in silence.stacks.items() if not stack):
        yield f"where {_named(missing)} {'was' if len(missing) == 1 else 'were'}: no stack came from there"
    absent = [state.rank for state in case.status.ranks if silence is not None and state.rank not in silence.stacks]
    if absent:
        yield f"where {_named(absent)} {'was' if len(absent) == 1 else 'were'}: their nodes have not answered"
    yield "memory, disks and limits of the nodes: these are read when a rank fails"


def _named(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"rank {some}" if len(ranks) == 1 else f"ranks {some}"
