"""In a company's namespace the first run succeeds, once `windlass check` alone has told what to write.

Pod security `restricted`, policies of two kinds, tainted nodes and a quota hold there, see `company.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, Result, ended, home, windlass
from tests.cli.test_json import hold
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.sharing import operating
from tests.cluster.company import ANNOTATION, LABEL, PRIORITY, TAINT, WAIT_SECONDS, company
from tests.cluster.harnesses import OPERATORS, set_up
from tests.cluster.stores import BUCKET, PodStore, pod_store
from tests.cluster.test_exec_copy import ends_with
from tests.helpers.until import until

from windlass.runs.phase import Phase
from windlass.runs.record import Status

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


DEMANDS: Mapping[str, Callable[[User], object]] = {
    rf"tolerations: \[{TAINT}\]": lambda user: user.target.update(tolerations=[TAINT]),
    rf"annotations: {{{ANNOTATION}: ": lambda user: user.target.update(annotations={ANNOTATION: "4711"}),
    rf"labels: {{{LABEL}: ": lambda user: user.target.update(labels={LABEL: "ml"}),
    r"read_only_root: true": lambda user: user.target.update(read_only_root=True),
    rf"supervisor_pod: {{spec: {{priorityClassName: {PRIORITY}}}}}": lambda user: user.target.update(
        supervisor_pod=WRITES["supervisor_pod"]
    ),
    rf"\bpriority: {PRIORITY}": lambda user: user.job.update(priority=PRIORITY),
    r"resources: {cpus: ": lambda user: user.job.update(resources=RESOURCES),
}
"""Lines that `windlass check` tells the user to write, and what the user then writes."""


def told(result: Result) -> str:
    """Returns what a check tells to write, of the cluster and of the job."""
    assert result.out, result.err
    hold("check", result.json)
    notes = (result.json["job"] or {"notes": []})["notes"]
    return "\n".join(one["fix"] for one in (*result.json["checks"], *notes) if one["fix"])


def test_first_run_succeeds_once_check_alone_has_told_what_to_write(
    user: User, lone_bed: Bed, lone_namespace: str, tmp_path: Path, ended: Callable[..., Status]
) -> None:
    with company(lone_bed, lone_namespace, tmp_path / "policies", is_native=True):
        left = dict(DEMANDS)
        while left:
            lines = told(user.windlass("check", "--on", "lab", "-o", "json"))
            new = [line for line in left if re.search(line, lines)]
            assert new, f"nothing tells to write {', '.join(left)}:\n{lines}"
            for line in new:
                left.pop(line)(user)
            user.write()
        assert user.windlass("check", "--on", "lab").code == 0
        planned = user.windlass("plan", "--on", "lab", "-o", "json").json
        assert [note for note in planned["notes"] if note["blocks"]] == []
        user.job["env"] |= {"WAITS": "1"}
        user.write()
        begun = user.windlass("run", "--on", "lab", "-d", "-q")
        assert begun.code == 0, begun.err
        run = begun.out.strip()
        for rank in "01":
            ends_with(lambda: user.windlass("cp", f"{run}:output/{rank}.txt", rank))  # noqa: B023
        assert Path("1").read_text() == "of rank 1"
        seen = user.windlass("exec", run, "--rank", "1", "--", "sh", "-c", "echo $RANK; touch $WINDLASS_OUTPUT_DIR/go")
        assert (seen.code, seen.out) == (0, "1\n"), seen.err
        followed = user.windlass("logs", "-f", run)
        assert ended(run).phase is Phase.SUCCEEDED, f"{followed}\n{user.windlass('why', run).out}"
        require_outcome(user, run, followed.out)
        assert user.windlass("cp", f"{run}:output/0.txt", "again").code == 0
        assert Path("again").read_text() == "of rank 0"
        network = user.windlass("check", "--on", "lab", "--network", "-o", "json")
        levels = {one["name"]: one["level"] for one in network.json["checks"]}
        assert [levels[name] for name in ("names", "ports", "all-reduce")] == ["ok"] * 3, network.out
        until_empty(lone_bed, lone_namespace)


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
