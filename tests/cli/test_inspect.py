"""`ps`, `status`, `logs`, `events`, `stop` and `rm` of successful, failed and active runs."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import jsonschema
import pytest
from tests.cli.conftest import WINDLASS, Call

from windlass.runs.events import Warned
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.spec.job import Job
from windlass.views.schema import schema_of

DONE = Job(name="job", command=["true"])
SAY = 'echo "::windlass {\\"step\\": 30, \\"total\\": 100, \\"loss\\": 0.25}"; echo said'


def start(windlass: Call, *command: str, name: str = "job") -> str:
    return str(windlass("run", "-d", "-o", "json", "--name", name, "--", *command).json["id"])


# -- ps ---------------------------------------------------------------------------------------------------------------


def test_ps_has_a_row_for_each_run_newest_first(windlass: Call, ended: Callable[..., Status]) -> None:
    first = start(windlass, "bash", "-c", SAY, name="first")
    ended(first)
    second = start(windlass, "sleep", "300", name="second")
    lines = windlass("ps").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "TARGET", "PHASE", "PROGRESS", "AGE", "TIME"]
    assert [line.split()[0] for line in lines[1:]] == [second, first]
    assert re.search(rf"^{first} +first +local +succeeded +30/100", lines[2])
    windlass("stop", "--now", second)


def test_ps_without_runs_says_how_to_start_one(windlass: Call) -> None:
    result = windlass("ps")
    assert (result.code, result.out) == (0, "")
    assert "windlass run" in result.err
    assert windlass("ps", "-o", "json").json == []
    assert windlass("ps", "-q").out == ""


def test_ps_quiet_prints_ids_for_other_commands(windlass: Call, recorded: Callable[..., str]) -> None:
    ids = {recorded(DONE, 0), recorded(DONE, 0)}
    assert set(windlass("ps", "-q").out.split()) == ids
    assert windlass("rm", *windlass("ps", "-q").out.split()).code == 0
    assert windlass("ps", "-q").out == ""


def test_ps_says_how_many_it_does_not_show(windlass: Call, recorded: Callable[..., str]) -> None:
    for _ in range(3):
        recorded(DONE, 0)
    result = windlass("ps", "-n", "1")
    assert len(result.out.splitlines()) == 2
    assert "2 older" in result.err
    assert len(windlass("ps", "-n", "1", "--all").out.splitlines()) == 4


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_takes_a_prefix_and_shows_the_run(windlass: Call, ended: Callable[..., Status]) -> None:
    run_id = start(windlass, "bash", "-c", SAY, name="unique")
    ended(run_id)
    out = windlass("status", "uni").out
    for word in (run_id, "succeeded", "30/100", "30%", "loss 0.25", "training", f"windlass logs {run_id}"):
        assert word in out


def test_status_as_json_has_the_documented_fields(windlass: Call, ended: Callable[..., Status]) -> None:
    ended(start(windlass, "true"))
    status = windlass("status", "-o", "json").json
    assert {"id", "name", "target", "phase", "exit_code", "attempts", "phases", "output_dir"} <= set(status)
    (attempt,) = status["attempts"]
    assert set(attempt) == {
        "number",
        "world_size",
        "phase",
        "started_at",
        "ended_at",
        "reason",
        "restored_step",
        "members",
        "is_resume",
    }
    assert sum(status["phases"].values()) == pytest.approx(status["ended_at"] - status["created_at"], abs=0.01)
    assert windlass("ps", "-o", "json").json[0]["attempts"] == [attempt]


def test_status_as_yaml_equals_json(windlass: Call, recorded: Callable[..., str]) -> None:
    from ruamel.yaml import YAML

    recorded(DONE, 0)
    assert YAML(typ="safe").load(windlass("status", "-o", "yaml").out) == windlass("status", "-o", "json").json


def test_exit_code_of_status_is_that_of_the_run(windlass: Call, recorded: Callable[..., str]) -> None:
    run_id = start(windlass, "sleep", "300")
    assert windlass("status", "--exit-code").code == 101
    assert windlass("status").code == 0
    windlass("stop", "--now", run_id)
    assert windlass("status", run_id, "--exit-code").code == 103
    recorded(DONE, 0)
    assert windlass("status", "--exit-code", "-o", "json").code == 0
    recorded(DONE, 1)
    assert windlass("status", "--exit-code").code == 100


def test_watching_ends_with_the_run(windlass: Call) -> None:
    start(windlass, "bash", "-c", "sleep 0.4; exit 3")
    result = windlass("status", "--watch", "--exit-code")
    assert result.code == 100
    assert "rank 0 failed first: exit code 3" in result.out


# -- logs and events --------------------------------------------------------------------------------------------------


def test_logs_are_the_bytes_of_the_ranks(windlass: Call, ended: Callable[..., Status]) -> None:
    ended(start(windlass, "bash", "-c", SAY))
    assert windlass("logs").out == "[0] said\n"
    assert windlass("logs", "--rank", "0").out == "said\n"
    assert windlass("logs", "--tail", "0").out == ""
    assert windlass("logs", "--since", "1h").out == "[0] said\n"


def test_logs_of_missing_ranks_and_attempts_are_refused(windlass: Call, ended: Callable[..., Status]) -> None:
    ended(start(windlass, "bash", "-c", SAY))
    for words, said in (
        (("--rank", "7"), "there is no rank 7"),
        (("--rank", "0-1"), "expected a whole number from 0, found '0-1'"),
        (("--attempt", "0"), "expected a whole number from 1, found '0'"),
        (("--attempt", "3"), "there is no attempt 3"),
        (("--since", "x"), "--since x"),
    ):
        result = windlass("logs", *words)
        assert (result.code, said in result.err) == (2, True), (words, result)


def test_logs_on_a_terminal_have_coloured_ranks_and_cannot_move_the_cursor(
    windlass: Call, ended: Callable[..., Status], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(start(windlass, "bash", "-c", r"printf '\033[2J\033[31mred\033[0m\n'"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert windlass("logs").out == "\x1b[36m[0]\x1b[0m \x1b[31mred\x1b[0m\x1b[0m\n"
    assert windlass("logs", "--rank", "0").out == "\x1b[2J\x1b[31mred\x1b[0m\n"


def test_logs_are_searched_stamped_and_printed_as_json(windlass: Call) -> None:
    lines = "echo loss 1; echo note; echo loss 2; echo loss [3]"
    assert windlass("run", "-q", "--procs-per-node", "1", "--", "bash", "-c", lines).code == 0
    assert windlass("logs", "--grep", r"loss \d", "-r", "0").out == "loss 1\nloss 2\n"
    assert windlass("logs", "--grep", "loss", "--tail", "2").out == "[0] loss 2\n[0] loss [3]\n"
    assert windlass("logs", "-f", "--grep", "loss", "--tail", "3").out == "[0] loss 2\n[0] loss [3]\n"
    stamped = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ "
    assert re.fullmatch(rf"{stamped}\[0\] loss 1\n", windlass("logs", "-t", "-g", "loss 1").out)
    assert re.fullmatch(rf"{stamped}loss 1\n", windlass("logs", "-t", "-g", "loss 1", "-r", "0").out)
    found = [json.loads(line) for line in windlass("logs", "-o", "json", "--grep", "note").out.splitlines()]
    jsonschema.Draft202012Validator(schema_of("logs")).validate(found[0])
    assert [(one["rank"], one["attempt"], one["text"]) for one in found] == [(0, 1, "note")]


def test_invalid_pattern_is_refused(windlass: Call) -> None:
    refused = windlass("logs", "--grep", "[")
    assert refused.code == 2
    assert "--grep [: unterminated character set" in refused.err


def test_following_logs_ends_with_the_run(windlass: Call) -> None:
    start(windlass, "bash", "-c", "echo a; sleep 0.4; echo b")
    assert windlass("logs", "-f").out == "[0] a\n[0] b\n"


def test_events_are_sentences_in_order(windlass: Call, ended: Callable[..., Status]) -> None:
    ended(start(windlass, "bash", "-c", SAY))
    lines = windlass("events").out.splitlines()
    assert re.match(r" *\+0\.0s  job-\w+ begins on local", lines[0])
    assert "ended: succeeded" in lines[-1]


def test_events_as_json_are_one_object_a_line(windlass: Call, recorded: Callable[..., str]) -> None:
    recorded(DONE, 0)
    events = [json.loads(line) for line in windlass("events", "-o", "json").out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["kind"], events[-1]["kind"]) == ("created", "end")


def test_late_events_are_sorted_by_time(windlass: Call, recorded: Callable[..., str], home: Path) -> None:
    run_id = recorded(DONE, 0)
    with Store(home) as store:
        began_at = store.status(run_id).times.created_at
        writer = store.writer(run_id)
        assert writer is not None
        with closing(writer):
            for message, after in (("last", 9.0), ("first", 5.0)):
                writer.append(Warned(message), at=began_at + after)
    lines = windlass("events", run_id).out.splitlines()
    assert [line.rpartition(" ")[2] for line in lines if "warning" in line] == ["first", "last"]


def test_events_as_yaml_are_one_list(windlass: Call, recorded: Callable[..., str]) -> None:
    from ruamel.yaml import YAML

    recorded(DONE, 0)
    events = [json.loads(line) for line in windlass("events", "-o", "json").out.splitlines()]
    assert YAML(typ="safe").load(windlass("events", "-o", "yaml").out) == events


def test_following_events_ends_with_the_run(windlass: Call) -> None:
    start(windlass, "sleep", "0.4")
    assert "ended: succeeded" in windlass("events", "-f").out.splitlines()[-1]


# -- stop and rm ------------------------------------------------------------------------------------------------------


def test_stop_waits_for_the_end_and_reports_it(windlass: Call) -> None:
    run_id = start(windlass, "sleep", "300")
    result = windlass("stop")
    assert result.code == 0
    assert f"{run_id} stopped after" in result.out
    again = windlass("stop")
    assert again.code == 0
    assert "ended already" in again.out


def test_stop_ends_several_runs_named_or_by_a_label(windlass: Call) -> None:
    first = start(windlass, "sleep", "300")
    others = [windlass("run", "-d", "-q", "--label", "sweep=lr", "--", "sleep", "300").out.strip() for _ in range(2)]
    assert windlass("stop", "--label", "sweep").code == 0
    assert [windlass("status", run, "-o", "json").json["phase"] for run in others] == ["stopped", "stopped"]
    assert windlass("status", first, "-o", "json").json["phase"] != "stopped"
    again = windlass("stop", "--label", "sweep=lr")
    assert (again.code, "no unfinished run has the label sweep=lr" in again.err) == (102, True)
    both = windlass("stop", first, others[0], first)
    assert both.out.count("stopped after") == 2


def test_logs_of_several_runs_are_grouped_below_their_ids(windlass: Call, recorded: Callable[..., str]) -> None:
    runs = [windlass("run", "-q", "--label", "sweep=lr", "--", "echo", word) for word in ("one", "two")]
    assert [one.code for one in runs] == [0, 0]
    found = windlass("logs", "--label", "sweep=lr", "--rank", "0").out.splitlines()
    assert [one for one in found if not one.startswith("==>")] == ["two", "", "one"]
    assert sum(one.startswith("==> echo-") for one in found) == 2
    refused = windlass("logs", "--label", "sweep=lr", "-f")
    assert (refused.code, "-f takes one run, found 2" in refused.err) == (2, True)


@pytest.mark.slow
def test_rm_by_label_keeps_active_runs(windlass: Call) -> None:
    ended = [windlass("run", "-d", "-q", "--label", "sweep=lr", "--", "true").out.strip() for _ in range(2)]
    for run in ended:
        assert windlass("wait", run).code == 0
    going = windlass("run", "-d", "-q", "--label", "sweep=lr", "--", "sleep", "300").out.strip()
    assert sorted(windlass("rm", "--label", "sweep=lr", "-o", "json").json["removed"]) == sorted(ended)
    assert windlass("rm").code == 2
    assert windlass("rm", "--force", "-l", "sweep=lr", "-o", "json").json == {"removed": [going]}


def test_ps_sorts_by_a_column(windlass: Call, recorded: Callable[..., str]) -> None:
    for name in ("b", "c", "a"):
        recorded(Job(name=name, command=["true"]), 0)
    for words, order in ((("--sort", "name"), "abc"), (("--sort", "age"), "bca"), ((), "acb")):
        found = [one["name"] for one in windlass("ps", *words, "-o", "json").json]
        assert "".join(found) == order
    assert windlass("ps", "--sort", "name", "--watch").code == 2


def test_stop_without_waiting_returns_at_once(windlass: Call, ended: Callable[..., Status]) -> None:
    start(windlass, "bash", "-c", "trap '' TERM; sleep 300")
    result = windlass("stop", "--no-wait", "-o", "json")
    assert result.json["phase"] in ("queued", "starting", "training", "stopping")
    windlass("stop", "--now")
    assert ended().phase == "stopped"


def test_rm_refuses_an_active_run_and_removes_nothing(windlass: Call, recorded: Callable[..., str]) -> None:
    done, going = recorded(DONE, 0), start(windlass, "sleep", "300")
    refused = windlass("rm", done, "no-such-run")
    assert refused.code == 102
    assert windlass("status", done).code == 0
    assert windlass("rm", going).code == 2
    assert windlass("rm", "--force", going, "-o", "json").json == {"removed": [going]}
    assert windlass("status", going).code == 102


def test_a_long_name_of_a_run_completes(recorded: Callable[..., str], environ: Mapping[str, str]) -> None:
    run_id = recorded(Job(name="complete-me", command=["true"]), 0)
    shell = {"_WINDLASS_COMPLETE": "bash_complete", "COMP_WORDS": "windlass status compl", "COMP_CWORD": "2"}
    done = subprocess.run([*WINDLASS], env={**environ, **shell}, capture_output=True, text=True)
    assert f"plain,{run_id}" in done.stdout


def test_completing_without_a_home_is_silent(environ: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shell = {"_WINDLASS_COMPLETE": "bash_complete", "COMP_WORDS": "windlass status x", "COMP_CWORD": "2"}
    there = {**environ, **shell, "WINDLASS_HOME": str(tmp_path / "file" / "home")}
    done = subprocess.run([*WINDLASS], env=there, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")
