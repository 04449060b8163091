"""The command line of torchrun's agent, one a node, that asks a node's worker for its ranks. Pure.

It is not given the script: it starts `worker/guest.py`, which asks the node for the rank (see `worker/hosted.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, Final

RENDEZVOUS: Final = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
"""A node that is gone is noticed in 3 s instead of 15. With 2 attempts instead of 3, none that comes back is let in."""
AGENT_ENVIRONMENT: Final = {
    # Else the ranks use the agents' store, which outlives them, and may read there the address of a dead rank.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
AGENT_END_SECONDS: Final = 330.0
"""The agent of a node whose ranks are done waits for the other nodes: 300 s (its exit barrier), and some to end."""


def torchrun_request(
    *, python: str, guest: Sequence[str], run_id: str, node: int, procs_per_node: int, grace_seconds: float
) -> dict[str, Any]:
    """What a node's request says of its agent. What only an attempt knows stands as `$NAME`: see `fill_in`."""
    argv = [
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", "$NUM_NODES", "--nproc-per-node", str(procs_per_node)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "$MASTER_ADDR:$RENDEZVOUS_PORT"),
        *("--rdzv-id", f"{run_id}.$ATTEMPT", "--rdzv-conf", f"is_host=$IS_HOST,{RENDEZVOUS}"),
        *("--local-addr", "$NODE_ADDR"),
        *("--max-restarts", "0"),  # the run's own policy restarts, with a fresh store and all nodes
        *("--shutdown-timeout", str(math.ceil(grace_seconds) + 1)),
        *("--log-dir", f"$ATTEMPT_DIR/agent-{node}"),
        "--no-python",
    ]
    return {
        "name": "torchrun",
        "argv": [*argv, *guest],
        "env": AGENT_ENVIRONMENT,
        "index": "LOCAL_RANK",
        "end_seconds": AGENT_END_SECONDS,
    }


def fill_in(spec: Mapping[str, Any], rendezvous_port: int, node_addr: str) -> dict[str, Any]:
    """The `launch` of a node's spec with the facts of the attempt in place of their names."""
    env = spec["env"]
    values = {
        "MASTER_ADDR": env["MASTER_ADDR"],
        "RENDEZVOUS_PORT": str(rendezvous_port),
        "NUM_NODES": env["GROUP_WORLD_SIZE"],
        "IS_HOST": "true" if spec["ranks"][0]["env"]["NODE_RANK"] == "0" else "false",
        "NODE_ADDR": node_addr,
        "ATTEMPT": env["WINDLASS_ATTEMPT"],
        "ATTEMPT_DIR": spec["folder"],
    }
    return {**spec["launch"], "argv": [Template(word).safe_substitute(values) for word in spec["launch"]["argv"]]}
