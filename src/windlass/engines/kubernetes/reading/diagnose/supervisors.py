"""Rule on a supervisor's pod that does not run: its state, its last log lines, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Verdict
from windlass.engines.kubernetes.objects.observations import ClusterStatus
from windlass.engines.kubernetes.reading.diagnose.pod_reasons import explained
from windlass.engines.kubernetes.reading.supervisor_status import NO_ACCOUNT, SILENT
from windlass.runs.record import SUPERVISOR_ABSENT

CODE: Final = "supervisor-absent"
ELSEWHERE: Final = "supervisor: machine in target {target} supervises runs from your machine"
REFUSED: Final = ("quota-exceeded", "limit-range", "admission-refused")
"""Codes of verdicts that usually advise to change the job, which has no effect on a supervisor's pod."""
FIXES: Final = (
    (r"OOMKilled", f"report it: a supervisor needs less memory than its limit; meanwhile {ELSEWHERE}"),
    (
        r"has crashed \(exit code 126|exec: \"|executable file not found",
        "the image has no interpreter for it: set python: in the job, or supervisor_image: in target {target}",
    ),
    (
        SILENT,
        "nothing to do: its Job makes another pod, which continues the run once the cluster declares the node lost; "
        "see: kubectl get nodes",
    ),
    (
        r"has crashed",
        f"fix the problem in its log; the cluster restarts it automatically, at increasing intervals; {ELSEWHERE}",
    ),
    (r"untolerated taint", f"add nodes without that taint, or have a policy add the toleration; {ELSEWHERE}"),
    (
        r"is not scheduled: ",
        "it needs 50m of CPU and 96Mi of memory on one node: add a node, or wait for other pods to end",
    ),
    (r"queue \S+ has not admitted it|it is suspended", "see the queue: kubectl get workloads"),
    (r"", "see: windlass check --on {target}; kubectl describe pods"),
)
"""Fixes by a pattern for the message; the first match counts."""
IMAGE_OF: Final = "the supervisor's image is supervisor_image: of target {target}, else that of the job or its runtime"
_IMAGE: Final = re.compile(r"image \"([^\"]+)\"")


def absent(message: str, log: Sequence[str], target: str) -> Verdict:
    """Returns the verdict on a run without a running supervisor; `message` is that of the run's condition."""
    image = found[1] if (found := _IMAGE.search(message)) else "the supervisor"
    evidence = (message, *log)
    if NO_ACCOUNT in message:
        fix = f"windlass target setup {target} creates it"
        if pod := re.search(r"pod (\S+) ", message):
            fix += f"; then kubectl delete pod {pod[1]}, whose token is of the account that was deleted"
        return Verdict("service-account-missing", message, None, tuple(log), fix, 106)
    if known := explained(message, "the supervisor's pod", evidence, 106, image=image):
        if known.code in REFUSED:
            fix = f"{ELSEWHERE.format(target=target)}; or have that rule changed: no job changes this pod"
            return replace(known, fix=fix)
        is_image = known.code.startswith("image-")
        return replace(known, fix=f"{known.fix}; {IMAGE_OF.format(target=target)}") if is_image else known
    fix = next(fix for pattern, fix in FIXES if re.search(pattern, message))
    return Verdict(CODE, message, None, tuple(log), fix.format(target=target), 106)


def not_running(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on a run whose supervisor should be a pod of the cluster but does not run."""
    state = case.status.supervision.condition
    if state is not None and state.type == SUPERVISOR_ABSENT and not case.status.phase.is_terminal:
        yield absent(state.message, state.log, case.status.target)
