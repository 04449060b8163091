"""Bad input on the real command line: one clear message, the right exit code, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.helpers.disk import fill, make_read_only, small_disk
from tests.helpers.machine import Done, Machine, machine_in

from windlass.cli.main import main
from windlass.runs.events import entry_of
from windlass.runs.store import SCHEMA_VERSION, Store

GOOD = "name: digits\nrun: train.py\n"
PLAN = '{"engine":"local"}'
USAGE, OURS, NO_RUN, RUN_FAILED = 2, 1, 102, 100


@dataclass(frozen=True)
class Row:
    """What is typed, and what must come of it."""

    words: tuple[str, ...] = ("run",)
    code: int = USAGE
    says: tuple[str, ...] = ()
    """What stands in the message: what was asked, what was found, what to try."""
    files: dict[str, str | bytes] = field(default_factory=dict)
    """Beside train.py; `job.yaml` is good unless it is here."""
    world: Callable[[Machine], contextlib.AbstractContextManager[object]] | None = None
    """What else is wrong, from the block's beginning to its end."""


def job(**fields: object) -> dict[str, str | bytes]:
    """A job.yaml that is good but for these fields."""
    return {"job.yaml": json.dumps({"name": "digits", "run": "train.py", **fields})}


@contextlib.contextmanager
def no_job_file(machine: Machine) -> Iterator[None]:
    (machine.folder / "job.yaml").unlink()
    yield


@contextlib.contextmanager
def job_file_is_a_folder(machine: Machine) -> Iterator[None]:
    (machine.folder / "job.yaml").unlink()
    (machine.folder / "job.yaml").mkdir()
    yield


@contextlib.contextmanager
def job_file_is_a_dangling_link(machine: Machine) -> Iterator[None]:
    (machine.folder / "job.yaml").unlink()
    (machine.folder / "job.yaml").symlink_to("nowhere.yaml")
    yield


@contextlib.contextmanager
def unreadable_job_file(machine: Machine) -> Iterator[None]:
    if os.geteuid() == 0:
        # Rights do not bind root; a file that the kernel refuses to read to every user does.
        (machine.folder / "job.yaml").unlink()
        (machine.folder / "job.yaml").symlink_to("/proc/self/mem")
    else:
        (machine.folder / "job.yaml").chmod(0)
    yield


@contextlib.contextmanager
def home_is_a_file(machine: Machine) -> Iterator[None]:
    machine.home.write_text("not a folder")
    yield


@contextlib.contextmanager
def home_is_read_only(machine: Machine) -> Iterator[None]:
    with small_disk(machine.home, 1024):
        Store(machine.home).close()
        make_read_only(machine.home)
        yield


@contextlib.contextmanager
def full_disk(machine: Machine) -> Iterator[None]:
    with small_disk(machine.home, 256):
        fill(machine.home)
        yield


@contextlib.contextmanager
def disk_full_but_for_the_record(machine: Machine) -> Iterator[None]:
    with small_disk(machine.home, 512), Store(machine.home) as store:
        store.statuses()
        fill(machine.home)
        yield


@contextlib.contextmanager
def newer_record(machine: Machine) -> Iterator[None]:
    Store(machine.home).close()
    with contextlib.closing(sqlite3.connect(machine.home / "record.db")) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    yield


@contextlib.contextmanager
def broken_record(machine: Machine) -> Iterator[None]:
    machine.home.mkdir()
    (machine.home / "record.db").write_bytes(b"not a database at all " * 500)
    yield


@contextlib.contextmanager
def three_runs(machine: Machine) -> Iterator[None]:
    with Store(machine.home) as store:
        for number, run_id in enumerate(["digits-aaaaa", "digits-aabbb", "mnist-ccccc"]):
            writer = store.create(run_id, name="n", target="local", output_dir="/o", plan=PLAN, time=number)
            writer.append(entry_of("end", {"phase": "succeeded", "exit_code": 0}), at=number + 1)
            writer.close()
    yield


@contextlib.contextmanager
def run_of_another_engine(machine: Machine) -> Iterator[None]:
    with Store(machine.home) as store:
        writer = store.create("a-1", name="n", target="moon", output_dir="/o", plan='{"engine":"moon"}', time=1.0)
        writer.append(entry_of("end", {"phase": "succeeded", "exit_code": 0}), at=2.0)
        writer.close()
    yield


@contextlib.contextmanager
def port_in_use(machine: Machine) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        machine.write("job.yaml", json.dumps({"name": "digits", "run": "train.py", "local": {"port": port}}))
        yield


@contextlib.contextmanager
def a_dead_link(machine: Machine) -> Iterator[None]:
    (machine.folder / "linked.py").symlink_to("not-there.py")
    yield


@contextlib.contextmanager
def a_folder(machine: Machine) -> Iterator[None]:
    machine.write("sub/job.yaml", GOOD)
    yield


LONG = "x" * 300
NOT_UTF8 = b"name: \xff\xfe\nrun: train.py\n"
ROWS: dict[str, Row] = {
    # the job file
    "no job file": Row(says=("no job.yaml", "windlass init"), world=no_job_file),
    "empty file": Row(files={"job.yaml": ""}, says=("job.yaml", "empty")),
    "only a comment": Row(files={"job.yaml": "# later\n"}, says=("job.yaml", "empty")),
    "not YAML": Row(files={"job.yaml": "name: digits\nrun: [train.py\n"}, says=("job.yaml:",)),
    "tabs": Row(files={"job.yaml": "name: digits\nresources:\n\tgpus: 1\n"}, says=("job.yaml:3", "tab")),
    "a list": Row(files={"job.yaml": "- name\n- run\n"}, says=("job.yaml", "mapping")),
    "two documents": Row(files={"job.yaml": GOOD + "---\n" + GOOD}, says=("job.yaml",)),
    "a key twice": Row(files={"job.yaml": GOOD + "name: other\n"}, says=("job.yaml:3", "name")),
    "not UTF-8": Row(files={"job.yaml": NOT_UTF8}, says=("job.yaml", "UTF-8")),
    "a NUL": Row(files={"job.yaml": b"name: digits\x00\nrun: train.py\n"}, says=("job.yaml",)),
    "wrong types": Row(
        files=job(nodes="many", env=["A"], timeout="soon"), says=("job.yaml", "nodes:", "env", "timeout", "many")
    ),
    "an unknown field": Row(
        files={"job.yaml": GOOD + "num_nodes: 2\n"}, says=("job.yaml:3", "num_nodes", "did you mean nodes?")
    ),
    "10 MB of YAML": Row(files={"job.yaml": GOOD + "# padding\n" * 1_000_000}, says=("job.yaml", "larger than 1 MiB")),
    "a million brackets": Row(files={"job.yaml": GOOD + "env: " + "[" * 1_000_000}, says=("job.yaml",)),
    "a thousand aliases": Row(
        files={
            "job.yaml": "a: &a [x, x, x, x, x, x, x, x]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 8)}]\n" for n in range(12))
            + GOOD
        },
        says=("job.yaml",),
    ),
    "job.yaml is a folder": Row(says=("job.yaml",), world=job_file_is_a_folder),
    "job.yaml is a folder, and named": Row(("run", "job.yaml"), says=("job.yaml",), world=job_file_is_a_folder),
    "a dangling link": Row(("run", "job.yaml"), says=("job.yaml",), world=job_file_is_a_dangling_link),
    "unreadable": Row(("run", "job.yaml"), says=("job.yaml", "cannot be read"), world=unreadable_job_file),
    "no such job file": Row(("run", "other.yaml"), says=("other.yaml", "cannot be read", "No such file")),
    "no such script to run": Row(("run", "other.py"), says=("other.py",)),
    "a file that is neither": Row(("run", "notes.txt/x"), files={"notes.txt": "x"}, says=("notes.txt/x",)),
    "a name too long for the disk": Row(("run", LONG + ".py"), says=(LONG[:40],)),
    "a job file too long for the disk": Row(("run", LONG + ".yaml"), says=(LONG[:40],)),
    "the home of an unknown user": Row(("run", "~nosuchuser/job.yaml"), says=("~nosuchuser",)),
    "a name that is no text": Row(("run", "\udcff.yaml"), says=("yaml",)),
    "an empty name": Row(("run", ""), says=()),
    "an empty command line": Row(("run", "--"), says=("no command follows --",)),
    # sizes and names
    "0 nodes": Row(("run", "--nodes", "0"), says=("nodes", "at least 1", "0")),
    "−1 nodes": Row(("run", "--nodes", "-1"), says=("nodes", "at least 1", "-1")),
    "0 ranks": Row(files=job(procs_per_node=0), says=("procs_per_node", "at least 1")),
    "−1 ranks": Row(("run", "--procs-per-node", "-1"), says=("--procs-per-node", "at least 1")),
    "odd ranks": Row(("run", "--procs-per-node=--5"), says=("--5",)),
    "ranks of another script": Row(("run", "--procs-per-node", "²"), says=("²",)),
    "a number without end": Row(("run", "--procs-per-node", "9" * 5000), says=("--procs-per-node",)),
    "nodes without end": Row(("run", "--nodes", "9" * 5000), says=("nodes",)),
    "a billion nodes": Row(("run", "--nodes", "1000000000"), says=("nodes", "at most")),
    "a hundred million ranks": Row(
        ("run", "--nodes", "100000", "--procs-per-node", "1024"), says=("102400000 ranks", "this machine")
    ),
    "a range turned round": Row(("run", "--nodes", "4:2"), says=("nodes",)),
    "a name with a slash": Row(("run", "--name", "a/b"), says=("name", "a/b", "a-b")),
    "a name that climbs": Row(("run", "--name", "../../etc"), says=("name", "../../etc")),
    "a name with control characters": Row(files=job(name="a\x1b[31mb"), says=("job.yaml", "name")),
    "a name with a line break": Row(("run", "--name", "a\nb"), says=("name",)),
    "a name of 300 letters": Row(("run", "--name", LONG), says=("name", "at most 40")),
    "an empty name of a job": Row(("run", "--name", ""), says=("name",)),
    # the job names something that does not exist
    "no such script": Row(files=job(run="other.py"), says=("other.py", "is not in")),
    "a script with a long name": Row(files=job(run=LONG + ".py"), says=(LONG[:40], "is not in")),
    "a script that is a folder": Row(files=job(run="sub"), world=a_folder, says=("sub", "not")),
    "no such code": Row(files=job(code="elsewhere"), says=("elsewhere", "is not an existing folder", "code:")),
    "code with a long name": Row(files=job(code=LONG), says=(LONG[:40], "is not an existing folder")),
    "code that is a file": Row(files=job(code="train.py"), says=("train.py", "is not an existing folder")),
    "a link to nothing": Row(
        ("run", "linked.py"), says=("linked.py is a link to", "which does not exist"), world=a_dead_link
    ),
    "a notebook": Row(
        ("run", "a b.ipynb"), files={"a b.ipynb": "{}"}, says=("notebook", "nbconvert --to script 'a b.ipynb'")
    ),
    "no such program": Row(("run", "--", "no-such-program"), says=("no-such-program", "was not found")),
    "a program with a long name": Row(("run", "--", "./" + LONG), says=(LONG[:40], "was not found")),
    "no such interpreter": Row(("run", "--python", "./nowhere/python"), says=("nowhere/python", "python:")),
    "no such interpreter by name": Row(("run", "--python", "python9.9"), says=("python9.9",)),
    "an interpreter that is a folder": Row(("run", "--python", "./sub"), world=a_folder, says=("sub", "python:")),
    "an interpreter of an unknown user": Row(("run", "--python", "~nosuchuser/python"), says=("~nosuchuser",)),
    "no such data": Row(files=job(data=[{"name": "d", "source": "nowhere"}]), says=("data d",)),
    "data of an unknown user": Row(files=job(data=[{"name": "d", "source": "~nosuchuser/d"}]), says=("data d",)),
    "a secret that is not set": Row(files=job(secrets=["hf-token"]), says=("hf-token", "HF_TOKEN", "export")),
    "a port in use": Row(says=("port", "in use", "local.port"), world=port_in_use),
    "a port that cannot be": Row(files=job(local={"port": 70000}), says=("local.port", "70000")),
    # --set and the other options
    "--set without a value": Row(("run", "--set", "grace"), says=("--set grace", "NAME=VALUE")),
    "--set of nothing": Row(("run", "--set", "=1"), says=("--set =1",)),
    "--set of an unknown field": Row(("run", "--set", "grce=1min"), says=("grce", "did you mean grace?")),
    "--set below a value": Row(("run", "--set", "name=a", "--set", "name.b=c"), says=("name",)),
    "--set with dots": Row(("run", "--set", "...=1"), says=()),
    "--set of broken JSON": Row(("run", "--set", "env={x"), says=("env",)),
    "--set of deep JSON": Row(("run", "--set", "env=" + "[" * 100_000), says=("env",)),
    "--env without a value": Row(("run", "--env", "A"), says=("--env A", "NAME=VALUE")),
    "--env of the contract": Row(("run", "--env", "RANK=1"), says=("RANK",)),
    "a time that is none": Row(("run", "--timeout", "soon"), says=("timeout", "soon")),
    "an unknown option": Row(("run", "--node", "2"), says=("--node",)),
    "an unknown command": Row(("runn",), says=("runn", "did you mean run?")),
    "an unknown form": Row(("run", "-o", "xml"), says=("xml",)),
    # targets
    "an unknown target": Row(("run", "--on", "moon"), says=("moon", "local")),
    "a target that is no text": Row(("run", "--on", "\udcff"), says=("local",)),
    "targets with errors": Row(
        ("run", "--on", "lab"),
        files={"targets.yaml": "lab: {kind: kubernets}\nb: 7\n"},
        says=("targets.yaml:1", "kubernets", "did you mean kubernetes?", "targets.yaml:2"),
    ),
    "targets that are no YAML": Row(files={"targets.yaml": "lab: [\n"}, says=("targets.yaml:",)),
    "a target of another kind": Row(
        ("run", "--on", "lab"),
        files={"targets.yaml": "lab: {kind: sagemaker, region: us-east-1, role: training}\n"},
        says=("lab.storage", "missing"),
    ),
    "a cluster without a kubeconfig": Row(
        ("run", "--on", "lab"),
        files={"targets.yaml": "lab: {kind: kubernetes, context: paddock}\n"},
        says=("paddock", "kubeconfig"),
    ),
    "what this machine cannot do": Row(
        files=job(volumes=[{"claim": "c", "path": "/c"}], outputs="ftp://b/x"),
        says=("volumes", "ftp://"),
    ),
    # the record
    "a home that is a file": Row(code=OURS, says=("home", "WINDLASS_HOME"), world=home_is_a_file),
    "a home that may only be read": Row(code=OURS, says=("home", "WINDLASS_HOME"), world=home_is_read_only),
    "a full disk": Row(code=OURS, says=("no space left", "home", "free some space"), world=full_disk),
    "a disk that fills": Row(
        code=OURS, says=("no space left", "home", "free some space"), world=disk_full_but_for_the_record
    ),
    "a newer record": Row(code=OURS, says=("version", "use the Windlass that wrote it"), world=newer_record),
    "a newer record, read": Row(
        ("ps",), code=OURS, says=("version", "use the Windlass that wrote it"), world=newer_record
    ),
    "a broken record": Row(code=OURS, says=("record", "cannot be read"), world=broken_record),
    "a broken record, read": Row(("status",), code=OURS, says=("record", "cannot be read"), world=broken_record),
    # runs
    "no run yet": Row(("status",), code=NO_RUN, says=("no run yet", "windlass run")),
    "no such run": Row(("status", "nope"), code=NO_RUN, says=("'nope'", "windlass ps"), world=three_runs),
    "no such run to follow": Row(("logs", "-f", "nope"), code=NO_RUN, says=("'nope'",), world=three_runs),
    "no such run to stop": Row(("stop", "nope"), code=NO_RUN, says=("'nope'",), world=three_runs),
    "no such run to remove": Row(("rm", "digits-aaaaa", "nope"), code=NO_RUN, says=("'nope'",), world=three_runs),
    "events of no run": Row(("events", "nope"), code=NO_RUN, says=("'nope'",), world=three_runs),
    "several such runs": Row(
        ("status", "digits-aa"), code=NO_RUN, says=("digits-aaaaa", "digits-aabbb", "more letters"), world=three_runs
    ),
    "a run that climbs": Row(("rm", "../digits-aaaaa"), code=NO_RUN, says=("../digits-aaaaa",), world=three_runs),
    "a run that is a path": Row(("logs", "mnist-ccccc/../x"), code=NO_RUN, says=("mnist-ccccc/..",), world=three_runs),
    "a run that is no text": Row(("status", "\udcff"), code=NO_RUN, says=("windlass ps",), world=three_runs),
    "removing all by nothing": Row(("rm", ""), code=NO_RUN, says=(), world=three_runs),
    "a run of another engine": Row(("status",), says=("moon", "upgrade"), world=run_of_another_engine),
    "a rank that does not exist": Row(("logs", "--rank", "-1"), says=("-1",), world=three_runs),
    "since nonsense": Row(("logs", "--since", "soon"), says=("--since soon",), world=three_runs),
    "since without end": Row(("logs", "--since", "9" * 400 + "s"), says=("--since",), world=three_runs),
}


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for what SQLite keeps beside an open record."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name.startswith("record.db-") or path.name == "filler":
            continue
        found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else b""
    return found


@contextlib.contextmanager
def set_up(row: Row, machine: Machine) -> Iterator[None]:
    """The files of a row and the world around them."""
    machine.write("train.py", "print('ran')\n")
    for file, content in {"job.yaml": GOOD, **row.files}.items():
        (machine.folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with row.world(machine) if row.world is not None else contextlib.nullcontext():
        yield


def windlass_here(machine: Machine, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> Done:
    """`windlass WORDS` as `Machine.windlass` calls it, in this process: a command takes milliseconds then."""
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(machine.folder):
        for variable in os.environ:
            patch.delenv(variable)
        for variable, value in machine.environ.items():
            patch.setenv(variable, value)
        with pytest.raises(SystemExit) as ended:
            main(list(words))
    sys.stdout.flush()
    return Done(words, int(ended.value.code or 0), *capfd.readouterr())


@pytest.mark.parametrize("name", ROWS, ids=[re.sub(r"[^\w]+", "-", name) for name in ROWS])
def test_bad_input_gets_one_message_and_leaves_nothing(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    row = ROWS[name]
    with machine_in(tmp_path) as machine, set_up(row, machine):
        runs_before = snapshot(machine.home / "runs")
        job_before = {} if row.world is unreadable_job_file else snapshot(machine.folder)
        done = windlass_here(machine, row.words, capfd)

        assert done.returncode == row.code, done.stderr
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert "defect" not in done.stderr
        assert re.match(r"error: \S", done.stderr), done.stderr
        assert len(re.findall(r"^error:", done.stderr, re.MULTILINE)) == 1
        assert max(map(len, done.stderr.splitlines())) < 1000, "a message is for reading"
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", done.stderr), "it changes the terminal"
        for part in row.says:
            assert part in done.stderr

        assert snapshot(machine.home / "runs") == runs_before
        assert row.world is unreadable_job_file or snapshot(machine.folder) == job_before
        assert machine.processes() == []


@pytest.mark.parametrize(
    "name", ["an unknown field", "no such run", "a newer record", "an unknown option", "no such script"]
)
def test_bad_input_is_json_where_json_was_asked_for(tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    with machine_in(tmp_path) as machine, set_up(row, machine):
        done = machine.windlass(*row.words, "-o", "json")
        assert (done.returncode, done.stdout) == (row.code, "")
        error = json.loads(done.stderr)["error"]
        assert error["code"] == row.code
        assert error["message"]
        for part in row.says:
            assert part in json.dumps(error)


# -- what can be known only once it runs ------------------------------------------------------------------------------


def not_python(machine: Machine) -> str:
    path = machine.write("bin/python", "#!/bin/sh\necho I am no Python >&2\nexit 3\n")
    path.chmod(0o755)
    return str(path)


def not_a_program(machine: Machine) -> str:
    path = machine.write("bin/python", "neither a script nor a binary\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("python", [not_python, not_a_program])
def test_an_interpreter_that_is_no_python_fails_the_run_and_is_named(
    tmp_path: Path, python: Callable[[Machine], str]
) -> None:
    with machine_in(tmp_path) as machine:
        machine.write("train.py", "print('ran')\n")
        machine.write("job.yaml", GOOD)
        done = machine.windlass("run", "--python", python(machine), "-o", "json")
        assert done.returncode in (RUN_FAILED, USAGE), done.stderr
        assert "Traceback" not in done.stderr
        if done.returncode == RUN_FAILED:
            status = json.loads(done.stdout)
            assert status["phase"] == "failed"
            assert "python" in status["cause"]["summary"].lower(), status["cause"]
        machine.empty()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("raise ValueError('too warm')", "ValueError: too warm"),
        ("import os; os.kill(os.getpid(), 11)", "segmentation fault"),
        ("def broken(:\n", "SyntaxError"),
        ("import sys; sys.exit(7)", "exit code 7"),
        ("import no_such_module", "no_such_module"),
    ],
)
def test_a_script_that_fails_is_exit_code_100_and_its_cause_is_said(tmp_path: Path, script: str, says: str) -> None:
    with machine_in(tmp_path) as machine:
        machine.write("train.py", script)
        machine.write("job.yaml", GOOD)
        done = machine.windlass("run", "--python", sys.executable, "-o", "json")
        assert done.returncode == RUN_FAILED, done.stderr
        assert says in json.loads(done.stdout)["cause"]["summary"]
        machine.empty()
