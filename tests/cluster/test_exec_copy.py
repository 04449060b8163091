"""`exec` and `cp` work in the pods of a run, and `cp` in its claim after the pods are deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Call, Result, ended, home, windlass
from tests.cli.test_exec_copy import SCRIPT
from tests.cli.test_json import hold
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.objects import claim
from tests.cluster.rights import until_role_is_granted
from tests.helpers.until import until

from windlass.runs.record import Status

__all__ = ["ended", "home", "windlass"]

pytestmark = pytest.mark.timeout(900)

LARGE_BYTES = 5_000_000
WAY_SECONDS = 600
HOSTILE = """
import os, sys, time
out = os.environ["WINDLASS_OUTPUT_DIR"]
os.symlink("/etc", os.path.join(out, "away"))
os.symlink("plain", os.path.join(out, "inside"))
open(os.path.join(out, "plain"), "w").write("plain")
"""


@pytest.fixture
def targets(cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    write_targets(cluster, namespace, monkeypatch, cluster.context)


def write_targets(cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch, context: str) -> None:
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    target = {
        "kind": "kubernetes",
        "context": context,
        "namespace": namespace,
        "image": cluster.image,
        "python": cluster.python,
    }
    Path("targets.yaml").write_text(json.dumps({"bed": target}))


def submit(windlass: Call, script: str, *words: str) -> str:
    Path("code").mkdir(exist_ok=True)
    Path("code/wait.py").write_text(script)
    Path("job.yaml").write_text("name: wait\nrun: wait.py\ncode: code\n")
    begun = windlass("run", "--on", "bed", "-d", "-q", *words)
    assert begun.code == 0, begun.err
    return begun.out.strip()


def ends_with(said: Callable[[], Result], code: int = 0) -> Result:
    """Repeats a command until it ends with this exit code; returns its output."""
    results: list[Result] = []

    def look() -> bool:
        results.append(said())
        return results[-1].code == code

    until(look, lambda: results[-1].err, WAY_SECONDS)
    return results[-1]


def helpers(cluster: Cluster, namespace: str) -> str:
    return cluster.kubectl("get", "jobs,configmaps", "-n", namespace, "-l", "windlass.dev/helper", "-o", "name")


@pytest.fixture
def live(windlass: Call, targets: None) -> Iterator[str]:
    """Run of two pods, each of which has written its file."""
    run = submit(windlass, SCRIPT, "--nodes", "2", "--set", "kubernetes.via=job")
    for rank in "01":
        written = f"import os; os.stat(os.environ['WINDLASS_OUTPUT_DIR'] + '/{rank}.txt')"
        ends_with(lambda: windlass("exec", run, "--rank", rank, "--", "python3", "-c", written))  # noqa: B023
    yield run
    windlass("rm", "--force", run)


def test_exec_and_cp_work_in_a_live_run(
    windlass: Call, live: str, cluster: Cluster, namespace: str, ended: Callable[..., Status]
) -> None:
    words = ["--", "sh", "-c", "echo $RANK $WORLD_SIZE $NODE_RANK $WINDLASS_RUN_ID; pwd"]
    assert windlass("exec", live, "--rank", "1", *words).out.split() == ["1", "2", "1", live, "/windlass/work/code"]
    assert windlass("exec", live, "--", "sh", "-c", "echo oh >&2; exit 7").code == 7
    assert windlass("exec", live, "--", "sh", "-c", "echo oh >&2").err == "oh\n"
    missing = windlass("exec", live, "--", "no-such-program")
    assert (missing.code, "no-such-program does not exist" in missing.err) == (127, True)
    assert windlass("exec", live, "--rank", "2", "--", "true").code == 2

    # copied into each of two pods, and back
    Path("large").write_bytes(os.urandom(LARGE_BYTES))
    Path("folder/deep").mkdir(parents=True)
    Path("folder/deep/a").write_text("a")
    assert windlass("cp", "folder", f"{live}:output").code == 0
    data = windlass("cp", "large", f"{live}:/tmp/other", "--node", "1", "-o", "json")
    assert (data.code, data.json["bytes"], data.json["path"]) == (0, LARGE_BYTES, "/tmp/other"), data.err
    hold("cp", data.json)
    assert windlass("cp", f"{live}:/tmp/other", "back", "--node", "1").code == 0
    assert Path("back").read_bytes() == Path("large").read_bytes()
    assert windlass("cp", f"{live}:output", "results").code == 0
    assert Path("results/folder/deep/a").read_text() == "a"
    assert Path("results/0.txt").read_text() == "0"

    refused = windlass("cp", "large", f"{live}:/usr/large")
    assert (refused.code, "cannot be copied" in refused.err) == (1, True)
    gone = windlass("cp", f"{live}:output/nope", ".")
    assert (gone.code, "nope does not exist" in gone.err) == (1, True)
    assert windlass("cp", f"{live}:output/../../x", ".").code == 2

    Path("go").write_text("")
    for node in "01":
        assert windlass("cp", "go", f"{live}:output", "--node", node).code == 0
    assert ended(live, WAY_SECONDS).exit_code == 0
    assert windlass("cp", f"{live}:output", "again").code == 0  # the outputs were fetched
    assert Path("again/folder/deep/a").read_text() == "a"
    assert Path("again/1.txt").read_text() == "1"
    lost = windlass("cp", f"{live}:checkpoints", "lost")
    assert (lost.code, "stored nowhere else" in lost.err) == (2, True)
    assert helpers(cluster, namespace) == ""


def test_exec_and_cp_work_in_a_claim_without_a_run(windlass: Call, targets: None, bed: Bed, namespace: str) -> None:
    bed.apply(claim("data"), namespace=namespace)
    Path("set/deep").mkdir(parents=True)
    Path("set/deep/a.bin").write_bytes(os.urandom(LARGE_BYTES))
    put = windlass("cp", "set", "claim:data/first", "--on", "bed", "-o", "json")
    assert (put.code, put.json["id"], put.json["files"]) == (0, "claim:data", 1), put.err
    hold("cp", put.json)
    listed = windlass("exec", "claim:data", "--on", "bed", "--", "sh", "-c", "pwd; ls first/deep; exit 7")
    assert (listed.code, listed.out.split()) == (7, ["/claim", "a.bin"])
    assert windlass("exec", "claim:data", "--on", "bed", "--", "no-such-program").code == 127
    assert windlass("cp", "claim:data/first/deep/a.bin", "back", "--on", "bed").code == 0
    assert Path("back").read_bytes() == Path("set/deep/a.bin").read_bytes()
    missing = windlass("cp", "claim:data/nope", ".", "--on", "bed")
    assert (missing.code, "nope does not exist" in missing.err) == (1, True)
    nowhere = windlass("cp", "claim:other/x", ".", "--on", "bed")
    assert (nowhere.code, "there is no claim other" in nowhere.err) == (2, True)
    assert helpers(bed, namespace) == ""


def test_results_in_a_claim_are_copied_after_the_pods_are_gone(
    windlass: Call, targets: None, bed: Bed, namespace: str, ended: Callable[..., Status]
) -> None:
    run = submit(windlass, HOSTILE, "--set", "kubernetes.results={size: 1GiB, storage_class: bed}")
    assert ended(run, WAY_SECONDS).exit_code == 0
    bed.kubectl("delete", "jobs,jobsets", "--all", "-n", namespace, "--wait=true", "--timeout=600s")
    unread = windlass("artifacts", run, "-o", "json").json
    hold("artifacts", unread)
    [outputs] = unread["artifacts"]
    assert (outputs["claim"], outputs["where"]) == (run, f"windlass/{run}/output")
    assert (outputs["files"], unread["files"]) == (None, None), "no pod was started"
    read = windlass("artifacts", run, "--files", "-o", "json").json
    assert [one["name"] for one in read["files"]] == ["plain"], "links are no files"
    assert (read["artifacts"][0]["files"], read["artifacts"][0]["bytes"]) == (1, 5)
    result = windlass("cp", f"{run}:output", "here", "-o", "json")
    assert result.code == 0, result.err
    assert Path("here/plain").read_text() == "plain"
    assert Path("here/inside").readlink() == Path("plain")
    assert not Path("here/away").is_symlink()
    assert len(result.json["left_out"]) == 1
    Path("new").write_text("new")
    assert windlass("cp", "new", f"{run}:output/later").code == 0
    assert windlass("cp", f"{run}:output/later", ".").code == 0
    assert Path("later").read_text() == "new"
    assert helpers(bed, namespace) == ""
    assert windlass("cp", f"{run}:/tmp/x", ".").code == 2
    windlass("rm", "--force", run)


def test_printed_role_suffices_for_exec_and_cp(
    windlass: Call, bed: Bed, namespace: str, monkeypatch: pytest.MonkeyPatch, ended: Callable[..., Status]
) -> None:
    write_targets(bed, namespace, monkeypatch, "bed-limited")
    bed.kubectl("apply", "-n", namespace, "-f", "-", stdin=windlass("check", "--on", "bed", "--role").out)
    until_role_is_granted(bed, namespace)
    run = submit(windlass, SCRIPT, "--nodes", "2", "--set", "kubernetes.results={size: 1GiB, storage_class: bed}")
    ends_with(lambda: windlass("exec", run, "--rank", "1", "--", "true"))
    Path("go").write_text("")
    ends_with(lambda: windlass("cp", "go", f"{run}:output"))
    assert ended(run, WAY_SECONDS).exit_code == 0
    assert windlass("cp", f"{run}:output", "here").code == 0
    assert "rank" not in windlass("logs", run).err
    assert windlass("rm", run).code == 0
    words = ("get", "pods,jobs,jobsets,services,pvc", "-n", namespace, "-l", "windlass.dev/run", "-o", "name")
    until(lambda: "jobset" not in bed.kubectl(*words), lambda: bed.kubectl(*words), WAY_SECONDS)


LEAKS = """
import os, sys
token = os.environ["HF_TOKEN"]
print("token " + token, flush=True)
raise ValueError(token + " is refused")
"""


def test_the_value_of_a_secret_that_a_rank_prints_is_masked_in_the_log_of_its_pod(
    targets: None, cluster: Cluster, namespace: str, windlass: Call, ended: Callable[..., Status]
) -> None:
    words = ("create", "secret", "generic", "hf", "-n", namespace, "--from-literal=HF_TOKEN=hf_of-no-log-4711")
    cluster.kubectl(*words)
    run = submit(windlass, LEAKS, "--set", "secrets=[hf]")
    ended(run, WAY_SECONDS)
    assert "token ***\n" in windlass("logs", run).out
    assert "ValueError: *** is refused" in windlass("why", run, "-o", "json").json["summary"]
    logs = cluster.kubectl("logs", "-n", namespace, "-l", f"windlass.dev/run={run}", "--tail=-1")
    assert "*** is refused" in logs
    shown = [windlass(*words, run, "-o", "json").out for words in (("events",), ("status",), ("why",))]
    # a part of the secret with a letter, because digits alone also occur in times
    assert not any(part in text for text in (logs, *shown) for part in ("hf_of", "log-4711"))
