"""Where everything is in a host of SageMaker, and how jobs, channels and objects are named."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

OPT: Final = "/opt/ml"
CHANNELS: Final = f"{OPT}/input/data"
OWN: Final = "windlass"
"""The channel with what starts an attempt."""
CODE_CHANNEL: Final = "windlass-code"
START: Final = f"{CHANNELS}/{OWN}/sagemaker_start.py"
NODES: Final = "nodes.json.gz"
ARCHIVE: Final = "code.tar.gz"
WORK: Final = f"{OPT}/windlass"
CODE: Final = f"{WORK}/code"
TRAVEL: Final = f"{WORK}/travel"
MODEL: Final = f"{OPT}/model"
MODEL_ARCHIVE: Final = "model.tar.gz"
"""In which SageMaker stores what is there."""
CHECKPOINTS: Final = f"{OPT}/checkpoints"
NAMED: Final = 5
"""Files that a warning names."""

DIGEST_VARIABLE: Final = "WINDLASS_CODE_DIGEST"
RUN_VARIABLE: Final = "WINDLASS_RUN"
"""In the environment of a training job: the run whose attempt it is."""
SECRETS_VARIABLE: Final = "WINDLASS_SECRETS"
"""There too: the names of the job's secrets, which the host reads."""
RUN_TAG, JOB_TAG, USER_TAG, ATTEMPT_TAG = "windlass:run", "windlass:job", "windlass:user", "windlass:attempt"
FIRST_PORT: Final = 20_000
NUM_PORTS: Final = 10_000
"""Below the kernel's ephemeral ports."""


def meeting_port(attempt: str) -> int:
    """Where the ranks of an attempt meet, by its address: two attempts in one network hardly share it."""
    return FIRST_PORT + zlib.crc32(attempt.encode()) % NUM_PORTS


def job_name(run_id: str, attempt: int) -> str:
    """The training job of an attempt."""
    return f"{run_id}-{attempt}"


def host(place: int) -> str:
    """The host at a place of an attempt, as all hosts call it."""
    return f"algo-{place + 1}"


def run_folder(storage: str, run_id: str) -> str:
    """Address of all that a run has in the store."""
    return f"{storage.rstrip('/')}/runs/{run_id}"


def attempt_folder(storage: str, run_id: str, attempt: int) -> str:
    """Address of the channel that starts an attempt."""
    return f"{run_folder(storage, run_id)}/attempt-{attempt}/"


def code_folder(storage: str, digest: str) -> str:
    """Address of the channel with the code, for all runs that have the same."""
    return f"{storage.rstrip('/')}/code/{digest}/"


def some_of(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more
