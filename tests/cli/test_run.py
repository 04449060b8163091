"""`plan` and `run` in a pipe: output streams, exit codes, and events that do not end the run."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import WINDLASS, Call
from tests.engines.local.test_staging import held
from tests.helpers.until import until

from windlass.cli.run import stopping
from windlass.runs.phase import Phase
from windlass.runs.record import Attempt, RankState, Status, Times

HI = "command: [bash, -c, 'echo hi $WINDLASS_RANK']\n"
UNTIL_ENOUGH = "command: [bash, -c, 'touch begun; echo begun; until [ -e enough ]; do sleep 0.05; done; echo done']\n"


def write_job(text: str = HI, **fields: Any) -> None:
    Path("job.yaml").write_text("name: hi\n" + text + "".join(f"{name}: {value}\n" for name, value in fields.items()))


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_stdout_has_only_the_ranks_lines(windlass: Call) -> None:
    write_job(nodes=2, procs_per_node=2)
    result = windlass("run")
    assert result.code == 0
    assert sorted(result.out.splitlines()) == [f"[{rank}] hi {rank}" for rank in range(4)]


def test_stderr_has_a_line_for_each_phase_and_a_summary(windlass: Call) -> None:
    write_job(nodes=2, procs_per_node=2)
    lines = windlass("run").err.splitlines()
    run_id = next(line.split(":")[0] for line in lines if line.startswith("hi-"))
    assert f"{run_id}: starting (2 nodes × 2 ranks)" in lines
    assert f"{run_id}: training (2 nodes × 2 ranks)" in lines
    last = "\n".join(lines[-4:])
    assert re.search(rf"^{run_id} succeeded after [\d.]+s$", last, re.MULTILINE)
    assert re.search(r"time +.*training", last)
    assert f"runs/{run_id}/output" in last
    assert f"windlass logs {run_id}" in last


@pytest.mark.slow
def test_pipes_get_no_colours_except_with_force_color(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job()
    assert "\x1b" not in windlass("run").err
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in windlass("run").err


def test_quiet_prints_no_logs_and_a_summary(windlass: Call) -> None:
    write_job()
    result = windlass("run", "-q")
    assert (result.code, result.out) == (0, "")
    assert "succeeded" in result.err


def test_verbose_prints_every_event(windlass: Call) -> None:
    write_job()
    err = windlass("run", "-v").err
    assert "rank 0 started" in err
    assert "rank 0 is done" in err


def test_warnings_of_the_plan_come_before_the_run(windlass: Call) -> None:
    write_job(image="pytorch:2")
    err = windlass("run").err
    assert err.index("warning: image:") < err.index(": starting")


def test_warning_without_a_fix_is_one_line(windlass: Call) -> None:
    Path("train.py").touch()
    result = windlass("plan", "--", "torchrun", "--tee", "3", "train.py")
    assert "warning: --tee is not used" in result.out
    assert "→" not in result.out


def test_all_lines_are_printed_before_the_summary(environ: Mapping[str, str]) -> None:
    write_job("command: [bash, -c, 'for i in {1..3000}; do echo line $i; done']\n", procs_per_node=2)
    done = subprocess.run([*WINDLASS, "run"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.splitlines()
    summary = next(place for place, line in enumerate(lines) if "succeeded after" in line)
    ranks = [line for line in lines[:summary] if line.startswith("[")]
    assert len(ranks) == 6000
    assert [line for line in ranks if line.startswith("[1]")] == [f"[1] line {n}" for n in range(1, 3001)]
    assert not any(line.startswith("[") for line in lines[summary:])


def test_line_is_shown_while_the_run_is_active(environ: Mapping[str, str]) -> None:
    write_job(UNTIL_ENOUGH)
    with subprocess.Popen(
        [*WINDLASS, "run", "-v"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "[0] begun\n"  # the next line is printed only after this one was read
        Path("enough").touch()
        assert command.stdout.read() == "[0] done\n"


# -- how it ends ------------------------------------------------------------------------------------------------------


def test_failure_names_the_root_cause_with_its_traceback(windlass: Call) -> None:
    Path("boom.py").write_text(
        "import os, time\n"
        "if os.environ['WINDLASS_RANK'] != '2':\n    time.sleep(100)\n"
        "def deep():\n    raise ValueError('no rope left')\n"
        "deep()\n"
    )
    write_job(f"command: [{sys.executable}, boom.py]\n", procs_per_node=3, grace="1s")
    result = windlass("run")
    assert result.code == 100
    assert "failed after" in result.err
    assert "rank 2 failed first (exit code 1): ValueError: no rope left" in result.err
    assert 'boom.py", line 5, in deep' in result.err
    assert "ranks 0–1 failed because rank 2 failed" in result.err
    assert result.err.count("rank 2 failed first") == 1
    assert "--rank 2" in result.err


def test_long_exception_text_is_shortened(windlass: Call) -> None:
    Path("train.py").write_text("raise ValueError(f\"bad batch {['label'] * 3000}\")\n")
    result = windlass("run", "-q", "train.py")
    assert "rank 0 failed first (exit code 1): ValueError: bad batch ['label'" in result.err
    assert max(map(len, result.err.splitlines())) < 500


def test_restart_shows_its_cause_immediately(windlass: Call) -> None:
    write_job("command: [bash, -c, '[ $WINDLASS_ATTEMPT = 2 ] || exit 7']\n", restarts=1)
    result = windlass("run")
    assert result.code == 0
    assert "rank 0 failed first: exit code 7" in result.err
    assert "restarting" in result.err
    assert "attempt 2" in result.err


@pytest.mark.slow
def test_stopped_run_exits_with_103(windlass: Call, environ: Mapping[str, str], ended: Callable[..., Status]) -> None:
    write_job("command: [sleep, '300']\n")
    with subprocess.Popen([*WINDLASS, "run"], env=environ, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr is not None
        for line in command.stderr:
            if "training" in line or "starting" in line:
                break
        stopped = windlass("stop")
        rest = command.stderr.read()
    assert command.returncode == 103
    assert stopped.code == 0
    assert "stopped after" in stopped.out
    assert "30s to exit" in stopped.err
    assert ": stopping" in rest


def test_stop_of_an_ended_run_by_name_lists_unfinished_runs(windlass: Call) -> None:
    write_job("command: [sleep, '300']\n")
    older, newer = (windlass("run", "-d", "-q").out.strip() for _ in range(2))
    windlass("stop", "--now", newer)
    for words in (("stop", "hi"), ("stop",)):
        stopped = windlass(*words)
        assert f"1 other run not ended: windlass stop {older}" in stopped.err
    assert "not ended" not in windlass("stop", newer).err
    windlass("stop", "--now", older)
    assert "not ended" not in windlass("stop").err


def test_stop_during_upload_mentions_no_ranks_and_resume_starts_none(windlass: Call) -> None:
    write_job(f"command: [sh, -c, 'until [ -e go ]; do sleep 0.01; done']\noutputs: file://{Path.cwd()}/store\n")
    run = windlass("run", "--detach", "-o", "json").json["id"]
    with held(Path("store", run, ".windlass", "lock")):
        Path("go").touch()
        until(lambda: windlass("status", run, "-o", "json").json["phase"] == "uploading")
        stopped = windlass("stop", "--now", run)
    assert "stopping; the upload of its outputs is ended" in stopped.err
    assert re.search(f"windlass resume {run} +store its outputs, start no rank", stopped.out)
    assert f"windlass resume {run} stores its outputs, and starts no rank" in " ".join(windlass("why", run).out.split())
    assert windlass("resume", run).code == 0


def test_json_output_is_only_the_last_status(windlass: Call) -> None:
    write_job()
    result = windlass("run", "-o", "json")
    assert (result.code, result.err) == (0, "")
    assert result.json["phase"] == "succeeded"
    failed = windlass("run", "-o", "json", "--", "false")
    assert (failed.code, failed.json["phase"], failed.json["exit_code"]) == (100, "failed", 1)


def test_detach_returns_at_once_and_the_run_continues(windlass: Call, ended: Callable[..., Status]) -> None:
    write_job(UNTIL_ENOUGH)
    result = windlass("run", "--detach", "-o", "json")
    assert result.code == 0
    assert list(result.json) == ["id"]
    Path("enough").touch()
    assert ended(result.json["id"]).phase is Phase.SUCCEEDED
    assert windlass("logs").out == "[0] begun\n[0] done\n"


def test_detach_says_how_to_watch(windlass: Call) -> None:
    write_job()
    result = windlass("run", "-d")
    run_id = result.out.split()[0]
    assert f"windlass logs -f {run_id}" in result.out
    quiet = windlass("run", "-d", "-q")
    assert re.fullmatch(r"hi-\w{5}\n", quiet.out)
    assert quiet.err == ""


@pytest.mark.slow
def test_run_that_never_started_reports_the_reason(windlass: Call) -> None:
    write_job("command: [bash, -c, 'exit 3']\n")
    before = windlass("run", "-q").out or windlass("ps", "-q").out.strip()
    result = windlass("run", "--after", before)
    assert result.code == 103
    assert f"The run never started: {before}, after which it was to start, ended as failed" in " ".join(
        result.err.split()
    )
    assert "checkpoint" not in result.err


# -- what does not end a run ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 101)])
@pytest.mark.parametrize("form", ["table", "json"])
def test_signal_without_a_terminal_does_not_stop_the_run(
    number: signal.Signals, code: int, form: str, environ: Mapping[str, str], ended: Callable[..., Status]
) -> None:
    write_job(UNTIL_ENOUGH)
    command = subprocess.Popen(
        [*WINDLASS, "run", "-o", form],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(Path("begun").exists)
    until(lambda: catches(command.pid, number), "it does not mind signals")
    command.send_signal(number)
    out, err = command.communicate(timeout=100)
    Path("enough").touch()
    assert command.returncode == code
    if form == "table":
        assert "runs in the background" in err
        assert "windlass stop hi-" in err
    else:
        assert json.loads(out)["phase"] in ("starting", "training")
    assert ended().phase is Phase.SUCCEEDED


def test_ctrl_c_before_the_view_reports_that_the_run_continues(
    windlass: Call, ended: Callable[..., Status], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("windlass.code.snapshot.keep_snapshot", interrupted)
    write_job()
    done = windlass("run")
    assert (done.code, "runs in the background" in done.err) == (130, True)
    assert ended().phase is Phase.SUCCEEDED


def test_ctrl_c_twice_while_a_run_is_started_leaves_nothing_of_it(
    windlass: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def again(*_: object) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return ""

    monkeypatch.setattr("windlass.engines.supervised.SupervisedEngine._start_supervisor", interrupted)
    monkeypatch.setattr("windlass.engines.supervised.SupervisedEngine._remove_failed", again)
    write_job()
    done = windlass("run")
    assert (done.code, "background" in done.err) == (130, False)
    assert windlass("ps", "-q").out == ""


def test_closed_pipe_does_not_end_the_run(environ: Mapping[str, str], ended: Callable[..., Status]) -> None:
    write_job("command: [bash, -c, 'until [ -e enough ]; do echo line; sleep 0.05; done']\n")
    command = f"{shlex.join(WINDLASS)} run | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True)
    assert done.returncode == 101
    assert "runs in the background" in done.stderr
    assert "Traceback" not in done.stderr
    Path("enough").touch()
    assert ended().phase is Phase.SUCCEEDED


def catches(pid: int, number: int) -> bool:
    """Whether a process handles both `number` and SIGTERM; Python itself handles only SIGINT."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    caught = int(status["SigCgt"], 16)
    return all(caught >> (one - 1) & 1 for one in (number, signal.SIGTERM))


# -- options ----------------------------------------------------------------------------------------------------------


def planned(windlass: Call, *words: str) -> Any:
    result = windlass("plan", *words, "-o", "json") if "--" not in words else windlass("plan", "-o", "json", *words)
    assert result.code in (0, 2), result.err
    return result.json


def test_a_script_takes_options_and_its_own_arguments(windlass: Call) -> None:
    Path("train.py").write_text("")
    plan = planned(windlass, "train.py", "--nodes", "2", "--procs-per-node", "2", "--", "--epochs", "5", "--nodes", "9")
    assert (plan["num_nodes"], plan["procs_per_node"]) == (2, 2)
    assert plan["steps"][1]["request"]["ranks"][0]["argv"][-4:] == ["--epochs", "5", "--nodes", "9"]


def test_a_torchrun_command_line_becomes_a_job(windlass: Call) -> None:
    Path("train.py").write_text("")
    plan = planned(windlass, "--", "torchrun", "--nnodes", "2", "--nproc-per-node=3", "train.py", "--lr", "1")
    assert (plan["num_nodes"], plan["procs_per_node"]) == (2, 3)
    assert plan["steps"][2]["request"]["ranks"][0]["argv"][-3:] == ["train.py", "--lr", "1"]


def test_every_option_changes_its_field(windlass: Call) -> None:
    write_job()
    plan = planned(
        windlass, "--name", "other", "--nodes", "1:3", "--procs-per-node", "2", "-e", "A=1", "-e", "B=x=y",
        "--timeout", "5min", "--set", "grace=1min", "--set", "restarts.max=4", "--set", 'env.C=""',
    )  # fmt: skip
    assert plan["name"] == "other"
    assert plan["run_id"].startswith("other-")
    assert (plan["num_nodes"], plan["procs_per_node"]) == (3, 2)
    assert plan["policy"] | {"timeout_seconds": 300.0, "grace_seconds": 60.0, "max_restarts": 4} == plan["policy"]
    env = plan["steps"][1]["request"]["env"]
    assert (env["A"], env["B"]) == ("1", "x=y")


def test_set_changes_one_field_of_a_mapping_and_keeps_the_others(windlass: Call) -> None:
    write_job(
        restarts="{max: 1, on: [node-loss]}",
        checkpoint="{every: 5 steps, keep: 2}",
        env="{A: x, B: y}",
        local="{port: 12345}",
    )
    plan = planned(windlass, "--set", "restarts.max=4", "--set", "checkpoint.keep=4", "-e", "A=z", "--cold")
    assert (plan["policy"]["max_restarts"], plan["policy"]["restart_on"]) == (4, ["node-loss"])
    env = plan["steps"][1]["request"]["env"]
    assert (env["A"], env["B"]) == ("z", "y")
    assert plan["job"]["checkpoint"] == {"every": "5 steps", "keep": 4}
    assert (plan["job"]["local"], plan["job"]["start"]) == ({"port": 12345}, "cold")
    assert planned(windlass, "--set", 'restarts={"max": 4}')["policy"]["restart_on"] != ["node-loss"]
    assert planned(windlass, "--set", "restarts={max: 4, on: [failure]}")["policy"]["restart_on"] == ["failure"]


def test_job_options_keep_other_fields_of_the_file(windlass: Call) -> None:
    write_job(grace="7s", procs_per_node=2)
    plan = planned(windlass, "--nodes", "2")
    assert plan["policy"]["grace_seconds"] == 7.0
    assert plan["procs_per_node"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "many"), "nodes"),
        (("--nodes", "0"), "nodes"),
        (("--nodes", "4:1"), "nodes"),
        (("--procs-per-node", "-1"), "--procs-per-node"),
        (("--set", "nodse=2"), "did you mean nodes?"),
        (("--set", "grace"), "NAME=VALUE"),
        (("--set", "=3"), "NAME=VALUE"),
        (("--env", "A"), "NAME=VALUE"),
        (("--set", "grace=forever"), "grace"),
        (("--set", "name=x", "--set", "name.y=1"), "name"),
        (("--name", "No Good"), "name"),
        (("--on", "moon"), "no target is called 'moon'"),
        (("--timeout", "soon"), "timeout"),
    ],
)
def test_invalid_option_is_refused_with_code_2_before_a_start(
    words: tuple[str, ...], said: str, windlass: Call, home: Path
) -> None:
    write_job()
    result = windlass("run", *words)
    assert result.code == 2
    assert said in result.err
    assert not (home / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing.yaml",), "nothing.yaml"),
        (("no-script.py",), "no-script.py does not exist"),
        (("--",), "no command follows --"),
        (("--", "--epochs", "1"), "windlass run job.yaml -- --epochs"),
        (("--", "no-such-program"), "no-such-program was not found"),
        ((), "there is no job.yaml"),
    ],
)
def test_missing_job_is_refused_with_code_2(words: tuple[str, ...], said: str, windlass: Call, home: Path) -> None:
    result = windlass("run", *words)
    assert result.code == 2
    assert said in result.err
    assert not (home / "runs").exists()


def test_blocked_plan_is_shown_and_exits_with_2(windlass: Call) -> None:
    write_job(data="[{name: mnist, source: nowhere/}]")
    result = windlass("plan")
    assert result.code == 2
    assert "error:" in result.out
    assert "cannot be run" in result.out


def test_plan_of_an_elastic_job_shows_its_minimum_nodes(windlass: Call) -> None:
    Path("train.py").touch()
    shown = windlass("plan", "train.py", "--nodes", "1:3")
    assert shown.code == 0, shown.err
    assert "train on local: 3 nodes × 1 rank, and with 1 node if others are lost" in shown.out


def test_a_plan_shows_the_setup_of_this_machine_once(windlass: Call) -> None:
    write_job(setup="pip install x", nodes=2)
    assert re.findall(r"^   setup +(.*)$", windlass("plan").out, re.MULTILINE) == ["pip install x"]
    write_job(setup='"pip install x\\npip install y\\n"')
    assert "   setup   2 lines of bash, before the ranks: windlass plan -v\n" in windlass("plan").out
    assert "   setup   pip install x\npip install y\n" in windlass("plan", "-v").out


def test_plan_shows_a_placeholder_for_the_run_id(windlass: Call) -> None:
    write_job()
    first, again = windlass("plan", "-o", "json"), windlass("plan", "-o", "json")
    assert first.out == again.out
    assert first.json["run_id"] == f"{first.json['name']}-xxxxx"
    assert "xxxxx stands for letters of its id" in windlass("plan").out


def test_simulated_nodes_get_no_core_warning_but_too_many_ranks_per_node_do(windlass: Call) -> None:
    write_job()
    cores = len(os.sched_getaffinity(0))
    for nodes, procs, is_warned in ((4, cores, False), (5, cores, True), (1, cores + 1, True)):
        notes = windlass("plan", "--nodes", str(nodes), "--procs-per-node", str(procs), "-o", "json").json["notes"]
        assert ("ranks-exceed-cores" in [note["code"] for note in notes]) == is_warned


def test_slow_start_shows_the_imported_modules(windlass: Call) -> None:
    Path("torch.py").write_text("import time\ntime.sleep(1.3)\n")  # shadows the installed module
    Path("train.py").write_text("import torch\nprint('trains')\n")
    result = windlass("run", "--cold", "train.py")
    assert result.code == 0, result.err
    said = [line.partition(": ")[2] for line in result.err.splitlines() if ": " in line]
    assert said[:3] == ["starting (1 node × 1 rank)", "starting: importing torch", "training (1 node × 1 rank)"]


def test_script_that_rejects_its_arguments_is_not_called_training(windlass: Call) -> None:
    Path("train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    result = windlass("run", "train.py", "--", "--epoch", "x")
    assert result.code == 100
    assert "unrecognized arguments: --epoch x" in result.err
    for shown in (result.err, windlass("status").out, windlass("why").out, windlass("events").out):
        assert "training" not in shown
    assert "training" not in windlass("status", "-o", "json").json["phases"]


def test_plan_changes_nothing(windlass: Call, home: Path) -> None:
    write_job()
    before = sorted(Path().iterdir())
    assert windlass("plan").code == 0
    assert not home.exists()
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("phase", "pid", "words"),
    [
        (Phase.QUEUED, None, "no rank has started"),
        (Phase.PULLING, 7, "the ranks have 30s to exit"),  # one of several pods still pulls its image
        (Phase.TRAINING, None, "the ranks have 30s to exit"),
        (Phase.UPLOADING, 7, "its outputs are uploaded first; --now does not wait for them"),
    ],
)
def test_stop_describes_what_happens_to_the_ranks(phase: Phase, pid: int | None, words: str) -> None:
    before = Status(
        "r-1",
        "r",
        "lab",
        phase,
        Times(0.0, 0.0),
        "out",
        attempts=(Attempt(1, 1, Phase.STARTING, 0.0),),
        ranks=(RankState(0, 0, pid),),
    )
    assert stopping(before, 30.0, now=False, is_slow=False, is_recorded=True) == words
