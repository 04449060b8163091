"""Creates probe pods that resemble the pods of runs: one tests image, role and bucket; others test one claim each.

Each pod belongs to a Job with a deadline, created by `access/probe_pods.py`. The Job is deleted at the end of its
`with` block, also after Ctrl-C and SIGTERM. The leftovers of a killed command are removed by the next command, or by
the cluster at the deadline.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.checks import Check
from windlass.engines.kubernetes.access import exec_stream, probe_pods
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.exec_stream import Stream
from windlass.engines.kubernetes.access.files import last_line, parsed
from windlass.engines.kubernetes.objects.helper_manifests import helper_job, mounted, sleeping
from windlass.engines.kubernetes.objects.package import RUNNER, packed
from windlass.engines.kubernetes.objects.pod_template import PYTHON, target_shape, variables
from windlass.engines.kubernetes.reading.preflight import pod_findings, pod_program
from windlass.engines.kubernetes.reading.preflight.pod_findings import Association
from windlass.errors import EngineError
from windlass.runs.clock import Clock

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

Json = Mapping[str, Any]
POD_SECONDS: Final = 1200
"""Seconds after which the cluster ends a probe pod."""
PLACE_SECONDS: Final = 240.0
"""Seconds that a pod may wait for a node; Karpenter provisions one in about two minutes."""
START_SECONDS: Final = 600.0
"""Seconds that a scheduled pod may take to start, mostly to pull its image."""
CLAIM_SECONDS: Final = 180.0
"""Seconds that mounting a volume may take, in a pod whose image was already pulled."""
ASK_SECONDS: Final = 150.0
BROKEN_SECONDS, AGAIN_SECONDS = 15.0, 1.0
"""Seconds for which a request with a broken connection is retried, and seconds between two retries."""
MOUNT: Final = "/claim"
KEY: Final = "doctor/"
PARTS: Final = ("__init__.py", "compat.py", "errors.py", "stores")


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What to test with probe pods, and the settings that they share with the pods of runs."""

    image: str
    claims: tuple[str, ...]
    wanted: Association
    images: tuple[str, ...] = ()
    """Further images that must be pullable, such as a job's."""


@functools.cache
def archive() -> bytes:
    """Returns the zip file with the program of a probe pod."""
    return packed(Path(pod_program.__file__).read_text(encoding="utf-8"), PARTS)


def location(target: KubernetesTarget) -> tuple[str, str] | None:
    """Returns the bucket of the target, and the prefix under which the test writes; None if the target has no store."""
    if target.storage is None:
        return None
    bucket, _, prefix = target.storage.partition("://")[2].partition("/")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else "windlass/"
    return bucket, f"{prefix}{KEY}"


def probe(
    client: Client, target: KubernetesTarget, asked: ProbeRequest, on_line: Callable[[str], None]
) -> Iterator[Check]:
    """Yields checks by pods in the namespace, each as it completes. Raises EngineError if no pod can be created."""
    name = f"windlass-doctor-{secrets.token_hex(3)}"
    on_line(f"making a pod of image {asked.image}")
    with probe_pods.made(client, POD_SECONDS, _job(client, target, asked, name)):
        try:
            pod = _running(client, name, on_line)
        except EngineError as error:
            yield _not_running(client, asked, name, error)
            return
        yield pod_findings.image_check(asked.image, str(pod["spec"].get("nodeName")), _events(client, pod))
        yield from _of_pod(client, target, pod, asked)
    for image in asked.images:
        yield _of_image(client, target, replace(asked, image=image), on_line)
    if asked.claims:
        yield from _of_claims(client, target, asked, on_line)


def _of_image(client: Client, target: KubernetesTarget, asked: ProbeRequest, on_line: Callable[[str], None]) -> Check:
    name = f"windlass-doctor-{secrets.token_hex(3)}"
    on_line(f"making a pod of image {asked.image}")
    with probe_pods.made(client, POD_SECONDS, _job(client, target, asked, name)):
        try:
            pod = _running(client, name, on_line)
        except EngineError as error:
            return _not_running(client, asked, name, error)
        return pod_findings.image_check(asked.image, str(pod["spec"].get("nodeName")), _events(client, pod))


def _of_pod(client: Client, target: KubernetesTarget, pod: Json, asked: ProbeRequest) -> Iterator[Check]:
    where = location(target)
    question = {"role": True, **({"bucket": where[0], "prefix": where[1]} if where else {})}
    try:
        found = ask(client, pod, target.python or PYTHON, question)
    except EngineError as error:
        yield Check("python", "fail", error.message, error.hint)
        return
    yield Check("python", "ok", f"{found['python']} at {target.python or PYTHON}")
    yield pod_findings.role_check(found["role"], asked.wanted, needs_role=where is not None)
    if where is None:
        fix = "set storage: s3://BUCKET/PREFIX of the target"
        yield Check("s3", "warn", "the target has no storage:, so code is not sent through a bucket", fix)
    else:
        who = asked.wanted.role_arn or str(found["role"].get("arn") or "the role of the pods")
        yield pod_findings.ladder_check(found["ladder"], *where, who)


def _of_claims(
    client: Client, target: KubernetesTarget, asked: ProbeRequest, on_line: Callable[[str], None]
) -> Iterator[Check]:
    on_line(f"mounting {', '.join(asked.claims)}")
    names: dict[str, str] = {}
    with contextlib.ExitStack() as pods:  # all pods are created at once, since each waits for its volume
        for claim in asked.claims:
            refused = _missing(client, claim)
            if refused is not None:
                yield refused
                continue
            names[claim] = f"windlass-doctor-{secrets.token_hex(3)}"
            try:
                job = _job(client, target, asked, names[claim], claim)
                pods.enter_context(probe_pods.made(client, POD_SECONDS, job))
            except EngineError as error:
                yield Check(f"claim {claim}", "fail", f"no pod can be created for it: {error.message}", error.hint)
                del names[claim]
        for claim, name in names.items():
            yield _of_claim(client, target, claim, name)


def _missing(client: Client, claim: str) -> Check | None:
    try:
        found = client.get_if_exists("v1", "PersistentVolumeClaim", claim)
    except Refused as error:
        return Check(f"claim {claim}", "warn", f"unknown: {error.message}", error.hint)
    if found is None:
        fix = f"kubectl -n {client.namespace} get pvc; the target names it in targets.yaml"
        return Check(f"claim {claim}", "fail", f"there is none in namespace {client.namespace}", fix)
    return None


def _of_claim(client: Client, target: KubernetesTarget, claim: str, name: str) -> Check:
    try:
        [pod] = probe_pods.running(client, name, 1, CLAIM_SECONDS, lambda _text: None)
        answer = ask(client, pod, target.python or PYTHON, {"folder": MOUNT})
    except EngineError as error:
        fix = f"kubectl -n {client.namespace} describe pvc {claim}"
        return Check(f"claim {claim}", "fail", f"no pod can use it: {error.message}", fix)
    return pod_findings.folder_check(claim, answer["folder"])


def ask(client: Client, pod: Json, python: str, question: Json, clock: Clock | None = None) -> Json:
    """Runs the program in a pod, and returns its results; retries if the connection breaks. Raises EngineError.

    A connection breaks, for example, at a restart of the API server that relays it.
    """
    clock = clock or Clock()
    give_up = clock.monotonic() + BROKEN_SECONDS
    while True:
        try:
            return _answer(client, pod, python, question)
        except Unreachable:
            if clock.monotonic() >= give_up:
                raise
            clock.wait(AGAIN_SECONDS)


def _answer(client: Client, pod: Json, python: str, question: Json) -> Json:
    program, out, err = archive(), io.BytesIO(), io.BytesIO()
    words = [python, "-I", "-S", "-c", RUNNER, str(len(program)), "{}", json.dumps(question)]
    with contextlib.closing(Stream(client, pod, words, stdin=True, silence_seconds=ASK_SECONDS)) as stream:
        code = exec_stream.copy(stream, io.BytesIO(program), out, err)
    answer = parsed(out.getvalue())
    if code == 0 and answer is None:  # the API server also reports success after it has lost the kubelet
        raise Unreachable("the connection to the check was lost before its answer", "is its node healthy?")
    if code or answer is None:
        said = last_line(err.getvalue(), "no output")
        raise EngineError(
            f"{python} in the image does not run the check: exit code {code}, {said}",
            "the image needs Python 3.9 or newer; python: of the target names it",
        )
    return answer


def _job(
    client: Client, target: KubernetesTarget, asked: ProbeRequest, name: str, claim: str = ""
) -> probe_pods.Manifest:
    pod = sleeping(asked.image, target.python or PYTHON, POD_SECONDS)
    pod["containers"][0]["env"] += variables(target.env)
    pod["serviceAccountName"] = asked.wanted.service_account
    if claim:
        pod = mounted(pod, {"persistentVolumeClaim": {"claimName": claim}}, MOUNT)
    return helper_job(target_shape(target, client.namespace, name), "doctor", pod, POD_SECONDS)


def _running(client: Client, name: str, on_line: Callable[[str], None]) -> Json:
    """Returns the running pod of a Job. A scheduled pod gets more time, to pull its image. Raises EngineError."""
    try:
        [pod] = probe_pods.running(client, name, 1, PLACE_SECONDS, on_line)
    except EngineError as error:
        if not error.message.endswith(": starting"):
            raise
        [pod] = probe_pods.running(client, name, 1, START_SECONDS, on_line)
    return pod


def _not_running(client: Client, asked: ProbeRequest, name: str, error: EngineError) -> Check:
    """Returns the failed check of a probe pod that does not run, mostly because of its image."""
    text = error.message.removeprefix("its pods do not run: ")
    if "Image" in text or "pull" in text.lower():
        fix = (
            "is its name right, does image_pull_secrets: of the target name a login, and may the role of the nodes "
            "pull from ECR?"
        )
        return Check("image pull", "fail", f"{asked.image} cannot be pulled: {text}", fix)
    fix = f"kubectl -n {client.namespace} describe job {name}; windlass check --on shows quotas and nodes"
    return Check("probe pod", "fail", f"it does not run: {text}", fix)


def _events(client: Client, pod: Json) -> Sequence[Json]:
    with contextlib.suppress(Refused):
        found = client.find("v1", "Event", fieldSelector=f"involvedObject.uid={pod['metadata']['uid']}")
        return [one for one in found["items"] if one.get("reason") in ("Pulling", "Pulled")]
    return ()
