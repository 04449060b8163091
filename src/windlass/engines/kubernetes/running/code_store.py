"""Brings the code of a run to its pods: in pieces, as objects of the run; or, where these cannot carry it, in a store,
once for all runs that have the same.
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
from windlass.stores.s3.store import S3Store
from windlass.stores.store import PART_BYTES

HINT: Final = "the store is storage: of the target; this machine writes to it, and the pods read it"


def packed(plan: Plan) -> bytes:
    """The code as it was planned. Raises EngineError where the folder has changed since the plan, UsageError."""
    if plan.only(CodeStep).is_imported:
        raise EngineError(f"the code of {plan.run_id} is no longer there", "resume it on the machine that submitted it")
    return planned_code(plan)


def pieces(plan: Plan) -> list[Manifest]:
    """The pieces of the code with their content. Raises as `packed`."""
    data, planned = packed(plan), plan.only(CodeStep).pieces
    return [
        {**piece, "binaryData": {"piece": base64.b64encode(data[at : at + PIECE_BYTES]).decode()}}
        for piece, at in zip(planned, range(0, len(data), PIECE_BYTES), strict=True)
    ]


def send(address: str, size: int, data: Callable[[], bytes]) -> None:
    """Write an archive to `s3://bucket/key`, whose key names its digest, unless it is there. Raises EngineError."""
    name, _, key = address.partition("://")[2].partition("/")
    try:
        store = S3Store(name)
        if not store.has(key, size):
            found = memoryview(data())
            store.write(key, (found[at : at + PART_BYTES] for at in range(0, len(found), PART_BYTES)))
    except StoreError as error:
        raise EngineError(f"the code could not be stored: {error}", HINT) from error
