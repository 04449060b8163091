"""A real API server accepts the volumes of mounted data sets, and pods mount a claim with the planned name.

No CSI driver of AWS runs here: the pods mount a claim of the test cluster's own storage class, under the name from the
plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Call, ended, home, windlass
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.sharing import only_user
from tests.cluster.objects import claim
from tests.cluster.test_exec_copy import WAY_SECONDS, write_targets

from windlass.runs.record import Status

__all__ = ["ended", "home", "windlass"]

pytestmark = pytest.mark.timeout(600)
FILE_SYSTEM = {"kind": "s3-files", "id": "fs-0123456789abcdef0", "source": "s3://bucket/"}
READS = """
import os, pathlib
root = pathlib.Path(os.environ["WINDLASS_DATA_DIGITS"])
print("read", root, (root / "a.txt").read_text(), flush=True)
try:
    (root / "b.txt").write_text("b")
except OSError as error:
    print("refused", error.strerror, flush=True)
"""


@pytest.fixture
def alone(bed: Bed) -> Iterator[None]:
    """Drivers are cluster-wide, and other tests of this file may run in parallel."""
    with only_user(bed, "drivers"):
        yield


@pytest.fixture
def drivers(bed: Bed, alone: None) -> Iterator[None]:
    """CSIDriver objects, without the drivers."""
    names = ("s3.csi.aws.com", "efs.csi.aws.com")
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver"}
    bed.apply(
        *({**kind, "metadata": {"name": name}, "spec": {"attachRequired": False}} for name in names),
        namespace="default",
    )
    yield
    bed.kubectl("delete", "csidriver", *names)


@pytest.fixture
def job(bed: Bed, namespace: str, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    write_targets(bed, namespace, monkeypatch, bed.context)
    targets = json.loads(Path("targets.yaml").read_text())
    targets["bed"]["file_systems"] = [FILE_SYSTEM]
    Path("targets.yaml").write_text(json.dumps(targets))
    Path("code").mkdir()
    Path("code/reads.py").write_text(READS)
    data = {"name": "digits", "source": "s3://bucket/digits/", "via": "mount"}
    small = {"size": "1GiB", "files": 100_000}
    text = {"name": "reads", "run": "reads.py", "code": "code", "launcher": "plain", "data": [{**data, **small}]}
    Path("job.yaml").write_text(json.dumps(text))


def test_missing_driver_blocks_the_plan(windlass: Call, job: None, bed: Bed, alone: None) -> None:
    made = windlass("plan", "--on", "bed", "-o", "json").json
    [note] = [note for note in made["notes"] if note["blocks"]]
    assert note["code"] == "mount-driver"
    assert "aws eks create-addon" in note["fix"]


def test_api_server_accepts_the_volumes_and_pods_read_the_claim(
    windlass: Call, job: None, drivers: None, bed: Bed, namespace: str, ended: Callable[..., Status]
) -> None:
    whole = "data=[{name: digits, source: s3://bucket/d, via: mount}]"
    by_mountpoint = windlass("plan", "--on", "bed", "-o", "json", "--set", whole).json
    made = windlass("plan", "--on", "bed", "-o", "json").json
    for plan, kind in ((by_mountpoint, "mountpoint"), (made, "s3-files")):
        assert [note for note in plan["notes"] if note["blocks"]] == [], "its dry run included"
        steps = {step["kind"]: step["request"] for step in plan["steps"]}
        assert steps["mount"]["by"] == kind
        assert steps["mount-volume"]["kind"] == "PersistentVolume"
    name = steps["mount"]["claim"]
    bed.apply(claim(name), namespace=namespace)
    Path("set/digits").mkdir(parents=True)
    Path("set/digits/a.txt").write_text("here")
    assert windlass("cp", "set/digits", f"claim:{name}/digits", "--on", "bed").code == 0
    begun = windlass("run", "--on", "bed", "-d", "-q", "--set", "kubernetes.via=job")
    assert begun.code == 0, begun.err
    run = begun.out.strip()
    assert ended(run, WAY_SECONDS).exit_code == 0
    log = windlass("logs", run).out
    assert "read /windlass/mounts/digits here" in log
    assert "refused Read-only file system" in log
    windlass("rm", "--force", run)
    left = bed.kubectl("get", "pvc", "-n", namespace, "-o", "name")
    assert f"persistentvolumeclaim/{name}" in left.split(), "no run removes it"
