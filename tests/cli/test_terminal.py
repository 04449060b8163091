"""`windlass run` on a real terminal: the live view, and the question on Ctrl-C."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pexpect
import pytest
from tests.cli.conftest import WINDLASS, Call
from tests.helpers.until import until

from windlass.engines.local.warm_pool import WarmPool
from windlass.runs.phase import Phase
from windlass.runs.record import Status

STEPS = (
    'for i in $(seq 1 {steps}); do echo "::windlass {{\\"step\\": $i, \\"total\\": {steps}, \\"loss\\": 0.5}}"; '
    "echo line $i; sleep 0.05; [ -e enough ] && break; done; echo all lines"
)
ASKED = r"\[d\]etach, the run continues · \[s\]top it · \[c\]ontinue"
Start = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def terminal(environ: Mapping[str, str]) -> Iterator[Start]:
    """Provides a function that starts a command on a terminal of 30 rows and 100 columns."""
    started: list[pexpect.spawn[str]] = []

    def start(*words: str, **more: str) -> pexpect.spawn[str]:
        env = {**environ, "TERM": "xterm-256color", **more}
        program, *arguments = [*WINDLASS, *words]
        child = pexpect.spawn(program, arguments, env=env, dimensions=(30, 100), encoding="utf-8", timeout=100)
        started.append(child)
        return child

    yield start
    for child in started:
        child.close(force=True)
    WarmPool(Path(environ["WINDLASS_HOME"])).stop()


def run_steps(steps: int = 4000, before: str = "") -> tuple[str, ...]:
    """Returns the command line of a run that lasts longer than any test, unless a file `enough` exists."""
    return ("run", "--name", "steps", "--set", "grace=200s", "--", "bash", "-c", before + STEPS.format(steps=steps))


def enough() -> None:
    """Ends the run after its current step."""
    Path("enough").touch()


def finish(child: pexpect.spawn[str]) -> tuple[int | None, str]:
    """Returns the exit code and the remaining output."""
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus, child.before or ""


def test_list_of_runs_fits_the_terminal_and_is_complete_in_a_pipe(terminal: Start, windlass: Call) -> None:
    labels = ("team=vision", "sweep=learning-rate-3e-4", "owner=ada")
    note = "the best so far: a warmup of 500 steps, then cosine"
    given = [word for label in labels for word in ("--label", label)]
    assert windlass("run", "-q", "--name", "finetune", *given, "--", "true").code == 0
    assert windlass("note", "finetune", note).code == 0
    code, shown = finish(terminal("ps", COLUMNS="100"))
    head, row, *rest = re.sub(r"\x1b\[[0-9;]*m", "", shown).strip().splitlines()
    assert (code, rest) == (0, ["not in 100 columns: NAME; -o yaml has all"])
    assert max(len(head), len(row)) <= 100
    assert re.search(r"LABELS +NOTE$", head)
    assert re.search(r"  team=vision sweep=\S*…  the best so…$", row)
    assert re.search(rf"finetune .* {' '.join(labels)}  {note}$", windlass("ps").out.splitlines()[1])


@pytest.mark.parametrize(
    ("command", "lost"), [("prices list p5.48xlarge g5.12xlarge", "GBIT/S, EFA, NVME"), ("targets", "FILE")]
)
def test_other_lists_lose_columns_too(terminal: Start, command: str, lost: str) -> None:
    text = "a: {kind: kubernetes, context: 'arn:aws:eks:eu-central-1:012345678901:cluster/team'}\n"
    Path("targets.yaml").write_text(text)
    code, shown = finish(terminal(*command.split(), COLUMNS="80"))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).strip().splitlines()
    assert (code, lines.count(f"not in 80 columns: {lost}; -o yaml has all")) == (0, 1)
    assert all(len(line.rstrip()) <= 80 for line in lines[:3])


def test_the_panel_shows_phase_progress_rate_time_left_ranks_and_output(terminal: Start) -> None:
    child = terminal(*run_steps())
    child.expect(r"steps-\w+.*training.*\d+\.\ds")
    child.expect(r"[█░]")
    child.expect(r"\d+%.*\d+/4\S?000.* left")
    child.expect(r"loss 0\.5.*steps/s")
    child.expect(r"1 node × 1 rank on local.*1 of 1 running")
    child.expect(r"output.*~/home/runs/steps-\w+/output")
    child.expect("Ctrl-C: detach or stop")
    enough()
    code, rest = finish(child)
    assert code == 0
    assert "succeeded" in rest


def test_all_lines_and_the_summary_remain_after_the_end_without_the_panel(terminal: Start) -> None:
    child = terminal(*run_steps(12))
    code, text = finish(child)
    assert code == 0
    screen = replay(text)
    assert [line for line in screen if line.startswith("[0] line")] == [f"[0] line {n}" for n in range(1, 13)]
    assert not any("│" in line or "╭" in line for line in screen)
    assert any("succeeded after" in line for line in screen)


def replay(text: str) -> list[str]:
    """Returns what a terminal shows after this output; supports only the escape sequences of the live view."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r\n|\r|[^\x1b\r\n]+|.", text, re.DOTALL):
        if token == "\r\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            pass  # the live view erases the line directly afterwards
        elif token.endswith("A") and token.startswith("\x1b["):
            row -= int(token[2:-1])
        elif token == "\x1b[J":
            lines[row:] = [""]
        elif token.endswith("m") and token.startswith("\x1b["):
            pass
        else:
            assert "\x1b" not in token, repr(token)
            lines[row] += token
    return lines


@pytest.mark.slow
def test_key_d_detaches_with_0_and_the_run_continues(terminal: Start, ended: Callable[..., Status]) -> None:
    child = terminal(*run_steps())
    child.expect("line 5")
    child.sendintr()
    child.expect(ASKED)
    child.expect("line")  # the run continues meanwhile
    child.send("d")
    code, rest = finish(child)
    enough()
    assert code == 0
    assert "runs in the background" in rest
    assert "windlass logs -f steps-" in rest
    assert ended().phase is Phase.SUCCEEDED


def test_key_c_continues_watching_to_the_end(terminal: Start) -> None:
    child = terminal(*run_steps())
    child.expect("line 5")
    child.sendintr()
    child.expect(ASKED)
    child.send("c")
    child.expect("Ctrl-C: detach or stop")
    enough()
    code, rest = finish(child)
    assert code == 0
    assert "all lines" in rest


def test_key_s_stops_with_103(terminal: Start) -> None:
    child = terminal(*run_steps())
    child.expect("line 5")
    child.sendintr()
    child.expect(ASKED)
    child.send("s")
    code, rest = finish(child)
    assert code == 103
    assert "stopped" in rest


def test_a_second_ctrl_c_stops_with_grace_and_a_third_kills(terminal: Start) -> None:
    child = terminal(*run_steps(before="trap 'echo saving; sleep 150; echo saved' TERM; "))
    child.expect("line 5")
    child.sendintr()
    child.expect(ASKED)
    child.sendintr()
    child.expect("Ctrl-C again kills without a grace period")
    child.expect("saving")
    child.sendintr()
    code, rest = finish(child)
    assert code == 103
    assert "] saved" not in rest
    assert "0m saved" not in rest


@pytest.mark.slow
def test_root_cause_of_a_failure_stays_on_the_terminal(terminal: Start) -> None:
    Path("boom.sh").write_text("echo about to; sleep 0.2; exit 9\n")
    code, text = finish(terminal("run", "--", "bash", "boom.sh"))
    assert code == 100
    assert any("The script ended with exit code 9; its last line: about to" in line for line in replay(text))


@pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminal_without_colours_gets_plain_lines(more: dict[str, str], terminal: Start) -> None:
    code, text = finish(terminal(*run_steps(5), **more))
    assert code == 0
    assert "\x1b" not in text
    assert "[0] line 5" in text
    assert re.search(r"steps-\w+: training", text)


def test_plain_terminal_gets_the_question_too(terminal: Start) -> None:
    child = terminal(*run_steps(), TERM="dumb")
    child.expect("line 5")
    child.sendintr()
    child.expect(ASKED)
    child.send("s")
    assert finish(child)[0] == 103


@pytest.mark.slow
def test_status_watch_shows_the_panel_and_exits_at_ctrl_c(terminal: Start, ended: Callable[..., Status]) -> None:
    detached = terminal(*run_steps()[:1], "-d", *run_steps()[1:])
    assert finish(detached)[0] == 0
    child = terminal("status", "--watch")
    child.expect("Ctrl-C: leave")
    child.sendintr()
    assert finish(child)[0] == 130
    enough()
    assert ended().phase is Phase.SUCCEEDED


def test_the_terminal_echoes_again_after_a_question(environ: Mapping[str, str], terminal: Start) -> None:
    child = terminal(*run_steps())
    child.expect("line 5")
    child.sendintr()
    child.expect(ASKED)
    until(lambda: child.getecho() is False, "the keys are shown")
    child.send("c")
    child.expect("Ctrl-C: detach or stop")
    until(lambda: child.getecho() is True, "the keys are not shown again")
    child.sendintr()
    child.expect(ASKED)
    child.send("d")
    assert finish(child)[0] == 0
    enough()
