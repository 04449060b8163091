"""`rerun`, `prune`, `note`, labels, and the recorded code of a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from tests.cli.conftest import Call
from tests.cli.test_json import hold
from tests.helpers.until import until
from tests.supervise.test_notify import SECRET, hooked

from windlass.actions.jobs import planned_job
from windlass.actions.prune import prune
from windlass.actions.runs import make_plan
from windlass.cli.main import cli
from windlass.code.kept import NOT_KEPT
from windlass.runs.context import Context
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.spec.job import Job

DONE = Job(name="job", command=["true"])


def ran(windlass: Call, *words: str) -> str:
    """Runs the script of this folder to its end and returns the run id."""
    return str(windlass("run", "-o", "json", *words).json["id"])


def script(text: str) -> None:
    Path("train.py").write_text(text)


# -- rerun ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rerun_runs_the_recorded_job_with_changes(windlass: Call) -> None:
    script("import sys; print('args', sys.argv[1:])")
    first = ran(windlass, "train.py", "--cold", "--label", "team=vision", "--", "--epochs", "5")
    again = windlass("rerun", first, "-o", "json", "--name", "again", "--label", "of=first", "--", "--seed", "2")
    hold("rerun", again.json)
    assert (again.code, again.json["name"]) == (0, "again")
    assert again.json["labels"] == {"team": "vision", "of": "first"}
    assert "args ['--epochs', '5', '--seed', '2']" in windlass("logs", again.json["id"]).out


def test_interpreter_of_this_machine_is_not_used_in_the_cluster(
    windlass: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    Path("kubeconfig").write_text(json.dumps(away))
    monkeypatch.setenv("KUBECONFIG", str(Path("kubeconfig").absolute()))
    script("print(1)")
    first = ran(windlass, "train.py", "--cold")
    Path("targets.yaml").write_text("lab: {kind: kubernetes, context: c, image: img}\n")
    context = Context(os.environ, Path.cwd())
    with Store(home) as store:
        plan = store.plan(first)
        python = plan.nodes.worker_python
        for _ in range(2):  # also for a run repeated on this machine
            job = planned_job(plan, {})
            made = {on: make_plan(job, on, context) for on in ("local", "lab")}
            seen = {on: one.nodes.worker_python for on, one in made.items()}
            assert seen == {"local": python, "lab": "python3"}
            plan = made["local"]


@pytest.mark.slow
def test_rerun_lists_changed_code_files(windlass: Call) -> None:
    script("print('then')")
    first = ran(windlass, "train.py", "--cold")
    assert windlass("rerun", first, "-d").err == ""
    script("print('now')")
    again = windlass("rerun", first)
    assert f"1 file of the code differs from what {first} began with: train.py; windlass cp {first}:code" in again.err
    assert "now" in again.out


def test_rerun_without_the_folder_of_the_code_says_where_the_code_is(windlass: Call, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").write_text("print(1)")
    first = ran(windlass, str(tmp_path / "other" / "train.py"), "--cold")
    (tmp_path / "other").rename(tmp_path / "moved")
    again = windlass("rerun", first)
    assert again.code == 2
    assert f"windlass cp {first}:code FOLDER has the code of then" in again.err
    assert windlass("rerun", "nothing").code == 102


# -- the code of a run ------------------------------------------------------------------------------------------------


def test_cp_copies_the_code_of_a_run(windlass: Call, tmp_path: Path) -> None:
    script("print('then')")
    run = ran(windlass, "train.py", "--cold")
    script("print('now')")
    copied = windlass("cp", f"{run}:code", str(tmp_path / "then"), "-o", "json")
    assert (copied.json["files"], (tmp_path / "then" / "train.py").read_text()) == (1, "print('then')")
    assert windlass("cp", f"{run}:code/train.py", str(tmp_path)).code == 0
    assert (tmp_path / "train.py").read_text() == "print('then')"
    assert windlass("cp", f"{run}:code", str(tmp_path / "then")).code == 0, "into a folder that is there"
    assert (tmp_path / "then" / "code" / "train.py").exists()
    refused = windlass("cp", "train.py", f"{run}:code/train.py")
    assert (refused.code, "windlass rerun" in refused.err) == (2, True)


def test_status_shows_why_the_code_was_not_kept(windlass: Call, home: Path, recorded: Callable[..., str]) -> None:
    run = recorded(DONE, 0)
    assert windlass("status", run, "-o", "json").json["code_not_kept"] == ""
    (home / "runs" / run / NOT_KEPT).write_text("the code is 20.0 MB; at most 16 MB are kept with a run\n")
    assert "code        not kept with the run: the code is 20.0 MB; at most 16 MB" in windlass("status", run).out
    refused = windlass("cp", f"{run}:code", "then")
    assert (refused.code, "was not kept here: the code is 20.0 MB" in refused.err) == (2, True)


def test_status_shows_the_commit_of_the_code(windlass: Call) -> None:
    script("print(1)")
    who = ("-c", "user.name=ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run(["git", *who, *words], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    script("print(2)")
    run = ran(windlass, "train.py", "--cold")
    assert windlass("status", run, "-o", "json").json["revision"] == {"commit": commit, "branch": "main", "changed": 1}
    assert f"code        {commit[:12]} (main), 1 file changed since" in windlass("status", run).out


# -- labels, notes and filters ----------------------------------------------------------------------------------------


def test_ps_shows_labels_and_notes_of_runs(windlass: Call) -> None:
    script("pass")
    plain = ran(windlass, "train.py", "--cold")
    assert "LABELS" not in windlass("ps").out
    labelled = ran(windlass, "train.py", "--cold", "--label", "team=vision")
    windlass("note", labelled, "diverges after step 400 with this batch size")
    rows = {line.split()[0]: line for line in windlass("ps").out.splitlines()}
    assert rows[labelled].endswith("team=vision  diverges after step 400 with this batch size")
    assert rows[plain].split()[-2:] == ["–", "–"]


def test_ps_selects_by_name_phase_label_and_age(windlass: Call, home: Path, recorded: Callable[..., str]) -> None:
    script("pass")
    labelled = ran(windlass, "train.py", "--cold", "--label", "team=vision", "--label", "kind=test")
    failed, other = recorded(DONE, 3), recorded(Job(name="other", command=["true"]), 0)
    for words, expected in (
        (("--label", "team=vision"), {labelled}),
        (("--label", "team", "--label", "kind=test"), {labelled}),
        (("--label", "team=speech"), set()),
        (("--name", "j*"), {failed}),
        (("--name", "job", "--phase", "succeeded"), set()),
        (("--phase", "failed", "--phase", "succeeded", "--since", "1h"), {labelled, failed, other}),
        (("--since", "0s"), set()),
    ):
        assert set(windlass("ps", "-q", *words).out.split()) == expected, words
    assert "No run matches these filters" in windlass("ps", "--phase", "lost").err
    assert "'soon'" in windlass("ps", "--since", "soon").err


def test_reserved_labels_are_refused(windlass: Call) -> None:
    script("pass")
    refused = windlass("run", "train.py", "--label", "app.kubernetes.io/name=x")
    assert (refused.code, "not for users" in refused.err) == (2, True)
    assert windlass("run", "train.py", "--label", "team").code == 2


def test_a_note_is_shown_replaced_and_removed(windlass: Call, recorded: Callable[..., str]) -> None:
    run = recorded(DONE, 0)
    assert windlass("note", run).out == f"{run} has no note\n"
    assert windlass("note", run, "batch", "64").out == "batch 64\n"
    assert "note        batch 64" in windlass("status", run).out
    told = windlass("note", run, "batch 128\x1b[31m", "-o", "json")
    hold("note", told.json)
    assert told.json == {"id": run, "note": "batch 128\x1b[31m"}
    assert "\x1b" not in windlass("status", run).out
    assert windlass("note", run, "--remove").out == f"{run} has no note\n"
    assert windlass("note", run, "x" * 4001).code == 2
    assert "--remove removes" in windlass("note", run, " ").err
    assert windlass("note", "nothing", "x").code == 102


@pytest.mark.parametrize(
    "words", ["status", "logs", "why", "events", "cost", "stop", "note", "artifacts", "checkpoints", "resume"]
)
def test_job_name_selects_its_newest_run_in_every_command(
    windlass: Call, recorded: Callable[..., str], words: str
) -> None:
    older, newest = recorded(DONE, 0), recorded(DONE, 0)
    ours = f"{newest.rpartition('-')[0]}: its newest run is {newest}\n"
    assert windlass(words, newest.rpartition("-")[0]).err.startswith(ours)
    assert ours not in windlass(words, older).err


def test_rm_accepts_no_job_names(windlass: Call, recorded: Callable[..., str]) -> None:
    older, newest = recorded(DONE, 0), recorded(DONE, 0)
    refused = windlass("rm", older, newest.rpartition("-")[0])
    assert (refused.code, f"windlass rm {newest}" in refused.err) == (2, True)
    assert windlass("status", older).code == 0, "nothing is removed"


def test_list_command_given_a_run_suggests_commands_for_runs(windlass: Call) -> None:
    refused = windlass("ps", "digits")
    assert (refused.code, "windlass ps --name digits, or windlass status digits" in refused.err) == (2, True)


def test_completion_offers_run_ids_and_shared_job_names(windlass: Call, recorded: Callable[..., str]) -> None:
    run, other = recorded(DONE, 0), recorded(DONE, 0)
    complete = ShellComplete(cli, {}, "windlass", "_WINDLASS_COMPLETE").get_completions
    for command, names in (("status", [run.rpartition("-")[0]]), ("rm", [])):  # `rm` accepts no job names
        assert sorted(item.value for item in complete([command], run[:2])) == sorted([*names, run, other])
    assert [item.value for item in complete(["status"], run)] == [run]


def test_invalid_label_name_is_shown_in_the_error(windlass: Call) -> None:
    Path("job.yaml").write_text("name: job\ncommand: ['true']\nlabels: {a b: c}\n")
    assert "job.yaml:3: labels.a b: 'a b' is not the name of a label" in windlass("check").err
    Path("job.yaml").write_text("name: job\ncommand: ['true']\n")
    assert windlass("plan", "--label", "a b=c").err.startswith("error: --label a b=c: 'a b' is not the name of a label")


# -- prune ------------------------------------------------------------------------------------------------------------


def aged(home: Path, run: str, days: float) -> None:
    """Changes the end of a run to `days` ago."""
    with Store(home) as store:
        row = store._db.execute("SELECT status FROM runs WHERE id = ?", (run,)).fetchone()
        data = json.loads(row[0])
        data["times"][2] -= days * 86400  # the end of the run
        store._db.execute("UPDATE runs SET status = ? WHERE id = ?", (json.dumps(data), run))


def test_prune_removes_runs_that_ended_long_ago(windlass: Call, home: Path, recorded: Callable[..., str]) -> None:
    old, older, new = recorded(DONE, 0), recorded(DONE, 3), recorded(DONE, 0)
    aged(home, old, 20)
    aged(home, older, 40)
    assert "2 runs would be removed" in windlass("prune", "--older-than", "10d", "--dry-run").out
    assert len(windlass("ps", "-q").out.split()) == 3
    done = windlass("prune", "--older-than", "10d", "--phase", "succeeded", "-o", "json")
    hold("prune", done.json)
    assert [one["id"] for one in done.json["removed"]] == [old]
    assert windlass("prune", "--older-than", "30d").out.splitlines()[-1].startswith("1 run removed, ")
    assert windlass("ps", "-q").out.split() == [new]
    assert windlass("prune", "--older-than", "1d").out == "0 runs removed\n"
    assert [path.name for path in (home / "runs").iterdir()] == [new]


def test_prune_keeps_the_only_checkpoints_of_runs_that_can_be_resumed(
    windlass: Call, home: Path, recorded: Callable[..., str]
) -> None:
    run = recorded(DONE, 3)
    (home / "runs" / run / "checkpoints" / "step-1").mkdir()
    (home / "runs" / run / "checkpoints" / "step-1" / "model.pt").write_text("weights")
    aged(home, run, 40)
    kept = windlass("prune", "--older-than", "30d")
    assert "0 runs removed; 1 kept: windlass resume RUN, or --force removes them" in kept.out
    assert windlass("prune", "--older-than", "30d", "--force").out.splitlines()[-1].startswith("1 run removed, ")


def test_prune_keeps_runs_with_results_without_the_option(
    windlass: Call, home: Path, recorded: Callable[..., str]
) -> None:
    model, empty = recorded(DONE, 0), recorded(DONE, 0)
    (home / "runs" / model / "output").mkdir(exist_ok=True)
    (home / "runs" / model / "output" / "model.pt").write_bytes(bytes(5_000_000))
    for run in (model, empty):
        aged(home, run, 40)
    found = windlass("prune", "--older-than", "30d").out.splitlines()
    assert re.search(rf"^{model} +succeeded +40d00h ago +4.8 MiB +1 file +results$", found[2])
    assert found[-1].startswith("1 run removed, ")
    assert found[-1].endswith("; 1 kept: --results removes them")
    assert (home / "runs" / model / "output" / "model.pt").exists()
    hold("prune", windlass("prune", "--older-than", "30d", "--dry-run", "-o", "json").json)
    assert "1 run removed, 4.8 MiB" in windlass("prune", "--older-than", "30d", "--results").out
    assert windlass("ps", "-q").out == ""


def test_du_shows_the_largest_runs_and_other_files(windlass: Call, home: Path, recorded: Callable[..., str]) -> None:
    small, large = recorded(DONE, 0), recorded(DONE, 0)
    (home / "runs" / large / "output").mkdir(exist_ok=True)
    (home / "runs" / large / "output" / "model.pt").write_bytes(bytes(3 << 20))
    (home / "data").mkdir()
    (home / "data" / "set").write_bytes(bytes(2 << 20))
    found = windlass("du", "-o", "json").json
    hold("du", found)
    assert [one["id"] for one in found["runs"]] == [large, small]
    assert (found["runs"][0]["result_files"], found["runs"][0]["result_bytes"]) == (1, 3 << 20)
    assert found["others"]["data"] == 2 << 20
    assert found["bytes"] == sum(one["bytes"] for one in found["runs"]) + sum(found["others"].values())
    shown = windlass("du").out
    assert f"MiB in {home}" in shown
    assert "beside runs: data 2.0 MiB" in shown


def test_run_removed_concurrently_is_reported_neither_removed_nor_kept(
    windlass: Call, home: Path, recorded: Callable[..., str]
) -> None:
    gone, old = recorded(DONE, 0), recorded(DONE, 0)

    class Stale(Store):
        def statuses(self, *, last: int | None = None, unfinished: bool = False) -> list[Status]:
            found = super().statuses(last=last, unfinished=unfinished)
            assert windlass("rm", gone).code == (0 if gone in {one.id for one in found} else 102)
            return found

    with Stale(home) as store:
        pruned = prune(store, float("inf"), (), now=time.time())
    assert ([one.id for one in pruned.removed], pruned.kept) == ([old], ())


def test_watched_list_shows_the_end_of_a_run(
    windlass: Call, ended: Callable[..., Status], environ: dict[str, str]
) -> None:
    from tests.cli.conftest import WINDLASS

    script("input()")
    watched = subprocess.Popen([*WINDLASS, "ps", "--watch"], env=environ, stdout=subprocess.PIPE, text=True)
    assert watched.stdout is not None
    run = ran(windlass, "train.py", "--cold", "-d")
    seen = [next(watched.stdout)]
    ended(run)
    while "failed" not in seen[-1]:
        seen.append(next(watched.stdout))
    watched.terminate()
    watched.communicate()
    assert all(line.startswith(run) for line in seen)


@pytest.mark.parametrize("words", [["-n", "1"], ["--name", "job"]])
def test_watched_list_reports_only_removed_runs_as_removed(
    windlass: Call, recorded: Callable[..., str], environ: dict[str, str], words: list[str]
) -> None:
    from tests.cli.conftest import WINDLASS

    first = recorded(DONE, 0)
    popen = subprocess.Popen([*WINDLASS, "ps", "--watch", *words], env=environ, stdout=subprocess.PIPE, text=True)
    assert popen.stdout is not None
    seen = [next(popen.stdout).split()[:2]]
    second = recorded(DONE)
    seen.append(next(popen.stdout).split()[:2])
    assert windlass("rm", second).code == 0
    while seen[-1] != [second, "removed"]:
        seen.append(next(popen.stdout).split()[:2])
    popen.terminate()
    popen.communicate()
    assert [line for line in seen if line != [first, "succeeded"]] == [[second, "failed"], [second, "removed"]]


def test_webhook_is_called_at_the_end_of_a_run(windlass: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script("raise SystemExit(3)")
    assert "SLACK_URL is not set" in windlass("plan", "train.py", "--set", "notify=slack-url").out
    with hooked() as hook:
        monkeypatch.setenv("SLACK_URL", hook.address)
        run = ran(windlass, "train.py", "--cold", "--set", "notify=slack-url")
        until(lambda: "told of the end" in windlass("events", run).out)
    [got] = hook.got
    assert (got["run"]["id"], got["run"]["phase"]) == (run, "failed")
    assert "the webhook of slack-url was told of the end" in windlass("events", run).out
    for path in home.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
