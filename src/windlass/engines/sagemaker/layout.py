"""Paths in a SageMaker container, and names of training jobs, channels and objects in the store."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

OPT: Final = "/opt/ml"
CHANNELS: Final = f"{OPT}/input/data"
OWN: Final = "windlass"
"""Name of the channel with the start program and the node specs of an attempt."""
CODE_CHANNEL: Final = "windlass-code"
START: Final = f"{CHANNELS}/{OWN}/sagemaker_start.py"
NODES: Final = "nodes.json.gz"
ARCHIVE: Final = "code.tar.gz"
WORK: Final = f"{OPT}/windlass"
CODE: Final = f"{WORK}/code"
TRAVEL: Final = f"{WORK}/travel"
MODEL: Final = f"{OPT}/model"
MODEL_ARCHIVE: Final = "model.tar.gz"
"""Archive in which SageMaker stores the files of /opt/ml/model."""
CHECKPOINTS: Final = f"{OPT}/checkpoints"
NAMED: Final = 5
"""Maximum number of files that a warning names."""

DIGEST_VARIABLE: Final = "WINDLASS_CODE_DIGEST"
RUN_VARIABLE: Final = "WINDLASS_RUN"
"""Environment variable of a training job: the id of its run."""
SECRETS_VARIABLE: Final = "WINDLASS_SECRETS"
"""Environment variable of a training job: the names of the secrets that each host reads."""
RUN_TAG, JOB_TAG, USER_TAG, ATTEMPT_TAG = "windlass:run", "windlass:job", "windlass:user", "windlass:attempt"
FIRST_PORT: Final = 20_000
NUM_PORTS: Final = 10_000
"""Number of ports from FIRST_PORT; all are below the kernel's ephemeral ports."""


def rendezvous_port(attempt: str) -> int:
    """Returns the port of the ranks' rendezvous, a hash of the attempt's address: collisions in one network are
    unlikely.
    """
    return FIRST_PORT + zlib.crc32(attempt.encode()) % NUM_PORTS


def job_name(run_id: str, attempt: int) -> str:
    """Returns the name of an attempt's training job."""
    return f"{run_id}-{attempt}"


def host(place: int) -> str:
    """Returns the name of the host with this index, which all hosts of the job can resolve."""
    return f"algo-{place + 1}"


def run_folder(storage: str, run_id: str) -> str:
    """Returns the address of a run's objects in the store."""
    return f"{storage.rstrip('/')}/runs/{run_id}"


def attempt_folder(storage: str, run_id: str, attempt: int) -> str:
    """Returns the address of the channel with the start files of an attempt."""
    return f"{run_folder(storage, run_id)}/attempt-{attempt}/"


def code_folder(storage: str, digest: str) -> str:
    """Returns the address of the channel with the code; runs with the same code share it."""
    return f"{storage.rstrip('/')}/code/{digest}/"


def some_of(names: Sequence[str]) -> str:
    """Joins the first `NAMED` names, and adds how many others there are."""
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more
