"""Transfers the code of a run to its pods, in ConfigMaps or, if they cannot hold the code, through a store.

In a store, runs with the same code share one archive.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from windlass.engines.kubernetes.objects.manifests import PIECE_BYTES
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.travel import planned_code
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.plan.steps import CodeStep
from windlass.stores.errors import StoreError
from windlass.stores.part_sizes import STREAM_PART_BYTES
from windlass.stores.s3.store import S3Store

HINT: Final = "the store is storage: of the target; this machine writes to it, and the pods read it"


def packed(plan: Plan) -> bytes:
    """Returns the archive of the planned code. Raises UsageError, and EngineError if the folder has changed since the
    plan.
    """
    if plan.only(CodeStep).is_imported:
        raise EngineError(f"the code of {plan.run_id} is no longer there", "resume it on the machine that submitted it")
    return planned_code(plan)


def pieces(plan: Plan) -> list[Manifest]:
    """Returns the ConfigMaps with the pieces of the code. Raises the same errors as `packed`."""
    data, planned = packed(plan), plan.only(CodeStep).pieces
    return [
        {**piece, "binaryData": {"piece": base64.b64encode(data[at : at + PIECE_BYTES]).decode()}}
        for piece, at in zip(planned, range(0, len(data), PIECE_BYTES), strict=True)
    ]


def send(address: str, size: int, data: Callable[[], bytes]) -> None:
    """Writes an archive to `s3://bucket/key` unless the key, which contains a digest, exists. Raises EngineError."""
    name, _, key = address.partition("://")[2].partition("/")
    try:
        store = S3Store(name)
        if not store.has(key, size):
            found = memoryview(data())
            store.write(key, (found[at : at + STREAM_PART_BYTES] for at in range(0, len(found), STREAM_PART_BYTES)))
    except StoreError as error:
        raise EngineError(f"the code could not be stored: {error}", HINT) from error
