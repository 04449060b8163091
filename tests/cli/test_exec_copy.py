"""`exec` and `cp` work on runs of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pexpect
import pytest
from tests.cli.conftest import WINDLASS, Call
from tests.cli.test_json import hold
from tests.helpers.until import until

from windlass.runs.record import Status
from windlass.spec.job import Job

SCRIPT = """
import os, pathlib, time
out = pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
(out / f"{os.environ['RANK']}.txt").write_text(os.environ["RANK"])
pathlib.Path(os.environ["WINDLASS_CHECKPOINT_DIR"], "last.pt").write_text("weights")
while not (out / "go").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def live(windlass: Call) -> str:
    """A run of two ranks on two nodes that ends once its output contains a file `go`."""
    Path("wait.py").write_text(SCRIPT)
    begun = windlass("run", "-d", "-q", "--nodes", "2", "--set", "launcher=torchrun", "wait.py")
    assert begun.code == 0, begun.err
    run = begun.out.strip()
    output = Path.cwd().parent / "home" / "runs" / run / "output"
    until(lambda: len(list(output.glob("*.txt"))) == 2, lambda: windlass("status", run).out)
    return run


def test_exec_command_has_the_environment_and_folder_of_a_rank(windlass: Call, live: str) -> None:
    words = ["--", "bash", "-c", "echo $RANK $WORLD_SIZE $NODE_RANK $WINDLASS_RUN_ID; pwd"]
    assert windlass("exec", live, *words).out.split() == ["0", "2", "0", live, str(Path.cwd())]
    assert windlass("exec", live, "--rank", "1", *words).out.split()[:3] == ["1", "2", "1"]
    show = "echo ${RANK-none} $WORLD_SIZE $WINDLASS_NODE_RANK $NODE_RANK $GROUP_RANK"
    alike = windlass("exec", live, "--node", "1", "--", "bash", "-c", show)
    assert alike.out.split() == ["none", "2", "1", "1", "1"]


def test_exec_exits_with_the_code_of_its_command(windlass: Call, live: str) -> None:
    assert windlass("exec", live, "--", "bash", "-c", "echo oh >&2; exit 7").code == 7
    piped = windlass("exec", live, "--", "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}")
    assert (piped.out.split(), piped.err) == (["y", str(128 + signal.SIGPIPE)], "")
    missing = windlass("exec", live, "--", "no-such-program")
    assert (missing.code, "no-such-program does not exist" in missing.err) == (127, True)
    assert windlass("exec", live, "--rank", "2", "--", "true").code == 2
    assert windlass("exec", live, "--node", "2", "--", "true").code == 2
    assert windlass("exec", live).code == 2
    assert windlass("exec", "nope", "--", "true").code == 102


@pytest.mark.slow
def test_sigint_without_a_terminal_ends_the_command(live: str, environ: Mapping[str, str]) -> None:
    words = [*WINDLASS, "exec", live, "--", "sh", "-c", "echo ready; exec sleep 600"]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, start_new_session=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        client.send_signal(signal.SIGINT)
        assert client.wait(100) == 128 + signal.SIGINT


@pytest.mark.slow
def test_exec_command_gets_the_terminal(windlass: Call, live: str, environ: Mapping[str, str]) -> None:
    refused = windlass("exec", live, "-t", "--", "true")
    assert (refused.code, "--tty needs a terminal" in refused.err) == (2, True)
    program, *words = [*WINDLASS, "exec", live, "-t", "--", "sh", "-c", "tty; read line; echo got $line"]
    child = pexpect.spawn(program, words, env=dict(environ), encoding="utf-8", timeout=100)
    child.expect("/dev/pts/")
    child.sendline("hello")
    child.expect("got hello")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.slow
def test_files_are_copied_from_and_into_a_live_run(windlass: Call, live: str, ended: Callable[..., Status]) -> None:
    data = windlass("cp", f"{live}:output", "here", "-o", "json").json
    hold("cp", data)
    assert (data["files"], data["bytes"], data["left_out"]) == (2, 2, [])
    assert sorted(path.name for path in Path("here").iterdir()) == ["0.txt", "1.txt"]
    assert windlass("cp", f"{live}:checkpoints/last.pt", ".").code == 0
    assert Path("last.pt").read_text() == "weights"
    assert windlass("cp", f"{live}:checkpoints/last.pt", "weights/").code == 0
    assert Path("weights/last.pt").read_text() == "weights"
    assert windlass("cp", "last.pt", f"{live}:output/more/").code == 0
    assert windlass("cp", f"{live}:output/more/last.pt", "again.pt").code == 0
    nowhere = windlass("cp", "last.pt", f"{live}:output/new/last.pt")
    assert (nowhere.code, "make it first" in nowhere.err) == (1, True)
    assert windlass("cp", f"{live}:output/nope", "empty/").code == 2
    assert not Path("empty").exists()
    Path("go").write_text("")
    assert windlass("cp", "go", f"{live}:output").code == 0
    assert ended(live).exit_code == 0
    assert windlass("cp", f"{live}:output/go", "back").code == 0
    after = windlass("exec", live, "--", "true")
    assert (after.code, "has ended" in after.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "b"), "must be of a run"),
        (("{run}:output", "{run}:output/x"), "must be a path of this machine"),
        (("{run}:../../record.db", "."), "may not lead upwards"),
        (("{run}:output/../../../record.db", "."), "may not lead upwards"),
        (("{run}:output/nope", "."), "does not exist"),
        (("job.yaml", "{run}:lock"), "is none of its results"),
        (("job.yaml", "{run}:"), "is none of its results"),
        (("job.yaml", "{run}:code"), "is what the run began with"),
        (("{run}:/etc/hosts", "."), "a path of this machine"),
        (("nope", "{run}:output"), "does not exist"),
        (("~no-such-user/x", "{run}:output"), "~no-such-user/x does not exist"),
        (("pipe", "{run}:output"), "pipe is neither a file nor a folder"),
        (("{run}:output/pipe", "."), "output/pipe is neither a file nor a folder"),
        (("{run}:output", "device"), "device is neither a file nor a folder"),
        (("{run}:output", "pipe/"), "pipe is neither a file nor a folder"),
    ],
)
def test_invalid_copies_are_refused(
    windlass: Call, recorded: Callable[..., str], words: tuple[str, ...], said: str
) -> None:
    run = recorded(Job(name="job", command=["true"]), 0)
    output = Path(windlass("status", run, "-o", "json").json["output_dir"])
    output.mkdir(parents=True, exist_ok=True)
    Path("job.yaml").touch()
    Path("device").symlink_to("/dev/null")  # a link, so that a bug does not destroy the device of this machine
    for folder in (Path(), output):
        os.mkfifo(folder / "pipe")
    result = windlass("cp", *(word.format(run=run) for word in words))
    assert (result.code, said in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cp", "claim:data/x", "."), "no target is named"),
        (("exec", "claim:data", "--", "ls"), "no target is named"),
        (("cp", "claim:data/x", ".", "--on", "local"), "claim: is not supported by engine local"),
        (("cp", "claim:data/../x", ".", "--on", "local"), "may not lead upwards"),
        (("cp", "claim:Data!/x", ".", "--on", "local"), "names no claim"),
        (("cp", "claim:/x", ".", "--on", "local"), "names no claim"),
        (("cp", "claim:data/x", ".", "--on", "local", "--node", "1"), "has neither ranks nor nodes"),
        (("exec", "claim:data", "--on", "local", "--rank", "0", "--", "ls"), "has neither ranks nor nodes"),
    ],
)
def test_claim_option_needs_a_target_with_claims(windlass: Call, words: tuple[str, ...], said: str) -> None:
    refused = windlass(*words)
    assert (refused.code, said in refused.err) == (2, True), refused.err
