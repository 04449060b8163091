"""In a company's namespace the first run succeeds, once `windlass check` alone has told what to write.

Pod security `restricted`, policies of two kinds, tainted nodes and a quota hold there, see `company.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, ended, home, windlass
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.sharing import operating
from tests.cluster.company import ANNOTATION, LABEL, PRIORITY, TAINT, WAIT_SECONDS, company
from tests.cluster.harnesses import OPERATORS, set_up
from tests.cluster.stores import BUCKET, PodStore, pod_store
from tests.helpers.until import until

__all__ = ["ended", "home", "windlass"]

pytestmark = pytest.mark.timeout(1200)
SCRIPT = """
import os, pathlib, tempfile, time
rank, out = os.environ["RANK"], pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
data = pathlib.Path(os.environ["WINDLASS_DATA_DIGITS"], "digits.txt").read_text()
with tempfile.NamedTemporaryFile():
    print("rank", rank, "read", data, flush=True)
try:
    pathlib.Path("/root-is-writable").write_text("")
except OSError as error:
    print("root:", error.strerror, flush=True)
out.mkdir(parents=True, exist_ok=True)
(out / f"{rank}.txt").write_text(f"of rank {rank}")
while os.environ.get("WAITS") and not (out / "go").exists():
    time.sleep(0.05)
"""
WRITES = {
    "annotations": {ANNOTATION: "4711"},
    "labels": {LABEL: "ml"},
    "tolerations": [TAINT],
    "read_only_root": True,
    "supervisor_pod": {"spec": {"priorityClassName": PRIORITY}},
}
"""What the user writes into the target."""
RESOURCES = {"cpus": 1, "memory": "500MiB"}
STORAGE = {"size": "1GiB", "storage_class": "bed"}


class User:
    """A user with a script, a job file and a target of the company's namespace."""

    def __init__(self, bed: Bed, namespace: str, windlass: Call, store: PodStore) -> None:
        self.windlass = windlass
        self._store = store
        self.target: dict[str, Any] = {
            "kind": "kubernetes",
            "context": bed.context,
            "namespace": namespace,
            "image": bed.image,
            "python": bed.python,
        }
        self.job: dict[str, Any] = {
            "name": "digits",
            "run": "train.py",
            "code": "code",
            "nodes": 2,
            "data": [{"name": "digits", "source": f"s3://{BUCKET}/digits"}],
            "outputs": f"s3://{BUCKET}/out",
            "kubernetes": {"data": STORAGE, "results": STORAGE},
            **store.fields,
        }
        Path("code").mkdir()
        Path("code/train.py").write_text(SCRIPT)
        self.write()

    def write(self) -> None:
        """Writes both files."""
        Path("targets.yaml").write_text(json.dumps({"lab": self.target}))
        Path("job.yaml").write_text(json.dumps(self.job))

    def stored(self, run: str) -> list[str]:
        """Returns the keys of a run's outputs in the store."""
        listed = self._store.server.client().list_objects_v2(Bucket=BUCKET, Prefix=f"out/{run}/")
        return [one["Key"] for one in listed.get("Contents", ())]

    def comply(self, **kubernetes: Any) -> None:
        """Writes what the company demands."""
        self.target |= WRITES
        self.job |= {"priority": PRIORITY, "resources": RESOURCES}
        self.job["kubernetes"] |= kubernetes
        if kubernetes.get("via") == "mpijob":
            self.job["launcher"] = "mpi"
        self.write()


@pytest.fixture
def user(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path, windlass: Call, monkeypatch: pytest.MonkeyPatch
) -> Iterator[User]:
    monkeypatch.setenv("KUBECONFIG", lone_bed.kubeconfig)
    set_up(lone_bed, lone_namespace)
    with pod_store(lone_bed, lone_namespace, tmp_path / "buckets") as store:
        store.server.client().put_object(Bucket=BUCKET, Key="digits/digits.txt", Body=b"8 digits")
        yield User(lone_bed, lone_namespace, windlass, store)


def require_outcome(user: User, run: str, said: str) -> None:
    """Requires what the ranks of a run print, and its outputs in the store."""
    for rank in "01":
        assert f"rank {rank} read 8 digits" in said
        assert f"out/{run}/{rank}.txt" in user.stored(run)
    assert said.count("root: Read-only file system") == 2


def until_empty(bed: Bed, namespace: str) -> None:
    """Waits until no pod runs, beside whatever sidecar: pods count against the quota."""

    def running() -> str:
        return bed.kubectl("get", "pods", "-n", namespace, "--field-selector=status.phase=Running", "-o", "name")

    until(lambda: not running(), running, WAIT_SECONDS)


@pytest.mark.parametrize(
    ("via", "is_native"),
    [
        pytest.param("job", False, marks=pytest.mark.nightly),
        pytest.param("jobset", True, marks=pytest.mark.nightly),
        pytest.param("jobset", False, marks=pytest.mark.nightly),
        *(
            pytest.param(via, is_native, marks=pytest.mark.operators)
            for via in OPERATORS
            for is_native in (True, False)
        ),
    ],
)
def test_first_run_succeeds_by_each_workload_kind_beside_a_sidecar(
    user: User, lone_bed: Bed, lone_namespace: str, tmp_path: Path, via: str, is_native: bool
) -> None:
    with contextlib.ExitStack() as running:
        if via in OPERATORS:
            running.enter_context(operating(lone_bed, OPERATORS[via]))
        running.enter_context(company(lone_bed, lone_namespace, tmp_path / "policies", is_native=is_native))
        user.comply(via=via)
        checked = user.windlass("check", "--on", "lab")
        assert checked.code == 0, checked.out
        done = user.windlass("run", "--on", "lab")
        assert done.code == 0, f"{done.out}\n{done.err}\n{user.windlass('why').out}"
        [run] = re.findall(r"(digits-\w+) succeeded", done.err)
        require_outcome(user, run, done.out)
        until_empty(lone_bed, lone_namespace)
