"""The command line of torchrun's agent, one per node, which starts rank proxies in place of the script. Pure.

The proxy (`worker/rank_proxy.py`) asks the node's worker for its rank, see `worker/external_launcher.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from windlass.worker.protocol import LauncherSpec

RENDEZVOUS: Final = "keep_alive_interval=5,keep_alive_max_attempt=120"
"""An agent that does not report for the product of both, 600 s, is left out: as long as agents wait for each other, by
torch's default. One that is left out when all have joined is not missed: the others would train with a smaller world. A
busy machine may keep an agent from reporting for seconds; lost nodes are noticed by the run's supervisor.
"""
AGENT_ENVIRONMENT: Final = {
    # Else the ranks use the agents' store, which outlives them, and may read there the address of a dead rank.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
AGENT_END_SECONDS: Final = 330.0
"""The agent of a node whose ranks are done waits for the other nodes: 300 s (its exit barrier), and some to end."""


def torchrun(
    *, python: str, proxy: Sequence[str], run_id: str, procs_per_node: int, grace_seconds: float
) -> LauncherSpec:
    """The agent of any node; facts of the attempt stand as `$NAME`, which `compose` fills in."""
    argv = (
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", "$NUM_NODES", "--nproc-per-node", str(procs_per_node)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "$MASTER_ADDR:$RENDEZVOUS_PORT"),
        *("--rdzv-id", f"{run_id}.$ATTEMPT", "--rdzv-conf", f"is_host=$IS_HOST,{RENDEZVOUS}"),
        *("--local-addr", "$NODE_ADDR"),
        *("--max-restarts", "0"),  # the run's own policy restarts, with a fresh store and all nodes
        *("--shutdown-timeout", str(math.ceil(grace_seconds) + 1)),
        *("--log-dir", "$ATTEMPT_DIR/agent-$NODE"),
        *("--no-python", *proxy),
    )
    return LauncherSpec("torchrun", argv, "LOCAL_RANK", AGENT_END_SECONDS, AGENT_ENVIRONMENT)
