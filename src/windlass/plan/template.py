"""What all attempts of a run have in common: the ingredients of which `compose` makes node specs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.worker.protocol import EMPTY, CollectSpec, Environment, LauncherSpec, NetworkSpec, NoticeSpec, ResumeSpec
from windlass.worker.values import Value


class NodeTemplate(Value):
    """The nodes of a run, before it is known which of them take part in an attempt."""

    run_id: str
    num_nodes: int
    procs_per_node: int
    script: str
    worker_python: str
    cwd: str
    argv: tuple[str, ...]
    """The command line of every rank; see `argv_by_rank`."""
    contract: Environment
    """What the job's script is promised and no attempt changes: run id, folders, checkpoint settings."""
    defaults: Environment
    """What the engine sets, unless the user does."""
    target_env: Environment
    job_env: Environment
    grace_seconds: float
    node_env: Mapping[str, Environment] = EMPTY
    """By number, what one node has of its own: its share of the machine's GPUs."""
    known_at_start: tuple[str, ...] = ()
    progress: str | None = None
    warm: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    """Libraries that take long to import, and that the script imports; shown while its ranks start."""
    stay_seconds: float = 0.0
    outputs_max: int = 0
    setup: str = ""
    """The job's script that runs once on a machine before the ranks."""
    resume: ResumeSpec | None = None
    collect: CollectSpec | None = None
    notices: NoticeSpec | None = None
    networks: tuple[NetworkSpec, ...] = ()
    """The network of each node, where nodes have networks of their own."""
    launchers: tuple[LauncherSpec, ...] = ()
    """The external launcher of each place of an attempt; where there are fewer, the last one is that of the rest."""
    launcher: str = "torchrun"
    """The job's: which variables ranks get to find each other."""
    argv_by_rank: bool = False
    """Whether `argv` names numbers of the rank or of the group, as `$WINDLASS_RANK`, which `compose` fills in."""
    one_worker: bool = False
    """Whether one worker starts the ranks of all nodes: mpirun does, on one machine."""

    @property
    def common(self) -> Environment:
        """The variables that all ranks of all attempts have alike."""
        env = {**self.contract, **self.defaults, **self.target_env, **self.job_env}
        parts, chosen = self.defaults.get("PYTHONPATH"), env.get("PYTHONPATH")
        if parts and chosen and chosen != parts:  # that of the user comes first
            env["PYTHONPATH"] = f"{chosen}:{parts}"
        return env


NO_NODES = NodeTemplate("", 0, 1, "", "", "", (), {}, {}, {}, {}, 0.0)
"""Of a plan that starts no node."""
