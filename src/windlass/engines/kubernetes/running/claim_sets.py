"""Lists the data sets staged in a claim, and removes unused ones, with a helper pod."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.access.claim_files import MOUNT, ClaimFiles, claim_files
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.files import last_line, parsed
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.package import REFUSED, RUNNER, transfer_archive
from windlass.errors import EngineError

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

ROOT: Final = f"{MOUNT}/{layout.DATA_FOLDER}"


def list_sets(client: Client, target: KubernetesTarget, claim: str) -> list[dict[str, Any]]:
    """Lists the data sets of a claim, least recently used first. Raises UsageError, EngineError."""
    with claim_files(client, target, claim) as files:
        return list(_asked(files, {"kind": "list", "namespace": client.namespace})["sets"])


def remove_set(client: Client, target: KubernetesTarget, claim: str, which: str) -> dict[str, Any]:
    """Removes a data set, given by its source or a prefix of its digest, unless an existing run reads it; returns a
    description of the set. Raises UsageError, EngineError.
    """
    named = {"namespace": client.namespace}
    with claim_files(client, target, claim) as files:
        # The list of runs is read before the runs are checked: a listed run that is missing was removed, since run ids
        # are not reused.
        runs = _asked(files, {"kind": "list", **named})["runs"]
        gone = [run for run in runs if client.get_if_exists("v1", "ConfigMap", run) is None]
        return dict(_asked(files, {"kind": "remove", "which": which, "gone": gone, **named})["removed"])


def _asked(files: ClaimFiles, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Runs the transfer program in the helper pod, and returns its JSON answer. Raises EngineError."""
    program, out, err = transfer_archive(), io.BytesIO(), io.BytesIO()
    variables = {"WINDLASS_TRANSFER": json.dumps({**asked, "root": ROOT}), "WINDLASS_TRANSFER_RESULT": os.devnull}
    command = [files.python, "-I", "-S", "-c", RUNNER, str(len(program)), json.dumps(variables)]
    code = files.execute(command, io.BytesIO(program), out, err)
    answer = parsed(out.getvalue()) or {}
    if code == REFUSED and "error" in answer:
        raise EngineError(str(answer["error"]), str(answer.get("hint", "")))
    if code or not answer:
        said = last_line(err.getvalue(), "no output")
        raise EngineError(
            f"the program in the pod ended with {code}: {said}", "the image of the target needs Python 3.11"
        )
    return answer
