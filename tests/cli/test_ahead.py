"""Commands that are done by a fork of a process that has imported ahead: nobody can tell, but by the time they take."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.faults.machine import until

from windlass.engines.ahead import SWITCH
from windlass.engines.local.warm import WarmPool
from windlass.runs.store import Store

SCRIPT = [sys.executable, "-c", "from windlass.cli.entry import main; main()"]
BEGIN = "import sys; from windlass.cli.ahead import begin; begin(sys.argv[1])"
PATIENCE_SECONDS = 100
Done = subprocess.CompletedProcess[str]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@dataclass
class Ahead:
    """A home with such a process, and commands in it."""

    home: Path
    work: Path
    env: dict[str, str] = field(default_factory=dict)

    def begin(self, **more: str) -> None:
        """Have a process, its imports done."""
        subprocess.run([sys.executable, "-c", BEGIN, str(self.home)], env={**self.env, **more}, check=True)
        until(lambda: list(self.home.glob("warm/*.ready")), "it does not get ready")

    @property
    def about(self) -> list[dict[str, Any]]:
        return WarmPool(self.home).show()

    @property
    def forks(self) -> int:
        return sum(one["forks"] for one in self.about)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        env = {**self.env, **options.pop("more", {})}
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([*SCRIPT, *words], cwd=self.work, env=env, text=True, **given)

    def run(self, *words: str, **options: Any) -> Done:
        popen = self.start(*words, **options)
        out, err = popen.communicate(timeout=PATIENCE_SECONDS)
        return Done(words, popen.returncode, out, err)

    def here(self, *words: str, **options: Any) -> Done:
        return self.run(*words, **{**options, "more": {**options.get("more", {}), SWITCH: "0"}})

    def children(self, word: str) -> list[int]:
        """Forks for commands in our folder that have this word among their arguments."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_text().rstrip("\0").split("\0")
                is_here = path.with_name("cwd").readlink() == self.work
            except OSError:
                continue
            if is_here and words[0] == "windlass" and word in words:
                found.append(int(path.parent.name))
        return found


def switched_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, without what turns it off."""
    return {name: value for name, value in environ.items() if not name.startswith("COVERAGE_") and name != SWITCH}


@pytest.fixture
def ahead(home: Path, environ: Mapping[str, str]) -> Iterator[Ahead]:
    made = Ahead(home, Path.cwd(), {**switched_on(environ), "NO_COLOR": "1"})
    made.begin()
    yield made
    WarmPool(home).stop()


def same(one: Done, other: Done) -> bool:
    return (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)


# -- what is done -----------------------------------------------------------------------------------------------------


WORDS = (
    "ps", "--version", "--help", "nonsense", "plan job.yaml", "check bad.yaml", "status none-such", "schema",
    "plan bad.yaml -o json", "plan job.yaml --debug --on nowhere", "", "--",
)  # fmt: skip


def test_a_fork_says_and_ends_as_a_command_does(ahead: Ahead) -> None:
    (ahead.work / "job.yaml").write_text("name: digits\nrun: train.py\nnodes: 2\n")
    (ahead.work / "train.py").write_text("print(1)\n")
    (ahead.work / "bad.yaml").write_text("name: digits\nrun: train.py\nnodse: 2\n")
    for number, words in enumerate(WORDS):
        forked, here = ahead.run(*words.split()), ahead.here(*words.split())
        assert ahead.forks == number + 1
        assert same(_without_ids(forked), _without_ids(here)), words


def _without_ids(done: Done) -> Done:
    def clean(text: str) -> str:
        return re.sub(r"digits-\w{5}", "digits-ID", text)

    return Done(done.args, done.returncode, clean(done.stdout), clean(done.stderr))


def test_a_run_goes_its_whole_way_with_the_callers_environment(ahead: Ahead) -> None:
    (ahead.work / "train.py").write_text("import os, sys\nprint(os.environ['TOKEN'], os.getcwd())\nsys.exit(3)\n")
    done = ahead.run("run", "train.py", "--cold", more={"TOKEN": "of this caller"})
    assert done.returncode == 100
    assert f"of this caller {ahead.work}" in done.stdout
    assert ahead.forks == 1


def test_each_caller_has_its_own_folder_umask_and_limits(ahead: Ahead, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.py").write_text(
        "import os, resource\nold = os.umask(0)\n"
        "print(oct(old), os.getcwd(), resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
    )
    ahead.work = tmp_path / "there"

    def before() -> None:
        os.umask(0o27)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

    done = ahead.run("run", "train.py", "--cold", "-q", preexec_fn=before)
    assert (done.returncode, ahead.forks) == (0, 1), done.stderr
    with Store(ahead.home) as store:
        (status,) = store.statuses()
    log = ahead.run("logs", status.id)
    assert f"0o27 {tmp_path / 'there'} 0" in log.stdout


def test_a_pipe_that_nobody_reads_ends_it_quietly(ahead: Ahead) -> None:
    popen = ahead.start("schema")
    assert popen.stdout is not None
    assert popen.stderr is not None
    popen.stdout.read(10)
    popen.stdout.close()
    assert popen.wait(PATIENCE_SECONDS) == ahead.here("ps").returncode == 0
    assert popen.stderr.read() == ""
    popen.stderr.close()


def test_many_at_once(ahead: Ahead) -> None:
    popens = [ahead.start("ps", "-a") for _ in range(12)]
    ends = [(popen.communicate(timeout=PATIENCE_SECONDS), popen.returncode) for popen in popens]
    assert {code for _, code in ends} == {0}
    assert ahead.forks == 12


# -- signals ----------------------------------------------------------------------------------------------------------


def sleeping(ahead: Ahead, **options: Any) -> subprocess.Popen[str]:
    """A command that follows a run."""
    (ahead.work / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    popen = ahead.start("run", "train.py", "--cold", **options)
    assert popen.stdout is not None
    while "begun" not in popen.stdout.readline():
        assert popen.poll() is None
    return popen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 101)])
def test_a_signal_to_the_command_means_to_it_what_it_always_does(ahead: Ahead, number: int, code: int) -> None:
    popen = sleeping(ahead)
    popen.send_signal(number)
    popen.communicate(timeout=PATIENCE_SECONDS)
    assert popen.returncode == code
    with Store(ahead.home) as store:
        (status,) = store.statuses()
    assert not status.phase.is_terminal  # it goes on by itself


def test_a_signal_without_a_handler_ends_both(ahead: Ahead) -> None:
    popen = sleeping(ahead)
    popen.send_signal(signal.SIGUSR1)
    popen.communicate(timeout=PATIENCE_SECONDS)
    assert popen.returncode == -signal.SIGUSR1
    until(lambda: not ahead.children("train.py"), "the fork lives on")


def test_what_is_ignored_stays_ignored(ahead: Ahead) -> None:
    popen = sleeping(ahead, preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN))
    (fork,) = ahead.children("train.py")
    for pid in (popen.pid, fork):
        os.kill(pid, signal.SIGUSR1)  # ends who does not ignore it
    time.sleep(0.5)
    assert popen.poll() is None
    popen.send_signal(signal.SIGTERM)
    popen.communicate(timeout=PATIENCE_SECONDS)
    assert popen.returncode == 101


def test_a_killed_command_takes_its_fork_with_it(ahead: Ahead) -> None:
    popen = sleeping(ahead)
    assert len(ahead.children("train.py")) == 1
    popen.kill()
    popen.communicate(timeout=PATIENCE_SECONDS)
    until(lambda: not ahead.children("train.py"), "the fork lives on")
    assert ahead.run("ps").returncode == 0


def test_a_killed_fork_takes_its_command_with_it(ahead: Ahead) -> None:
    popen = sleeping(ahead)
    (fork,) = ahead.children("train.py")
    os.kill(fork, signal.SIGKILL)
    popen.communicate(timeout=PATIENCE_SECONDS)
    assert popen.returncode == -signal.SIGKILL


def test_a_paused_command_pauses_its_fork(ahead: Ahead) -> None:
    popen = sleeping(ahead)
    (fork,) = ahead.children("train.py")

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    popen.send_signal(signal.SIGTSTP)
    until(lambda: state(fork) == "T" and state(popen.pid) == "T", "they go on")
    popen.send_signal(signal.SIGCONT)
    until(lambda: state(fork) != "T" and state(popen.pid) != "T", "they stand still")
    popen.send_signal(signal.SIGTERM)
    popen.communicate(timeout=PATIENCE_SECONDS)
    assert popen.returncode == 101


# -- when it is not done ----------------------------------------------------------------------------------------------


def test_other_surroundings_are_served_here(ahead: Ahead) -> None:
    lower = (256, 256)
    assert ahead.run("ps", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, lower)).returncode == 0
    assert ahead.run("ps", preexec_fn=lambda: os.nice(1)).returncode == 0
    assert ahead.run("ps", more={"PYTHONUTF8": "1"}).returncode == 0
    assert ahead.forks == 0


@pytest.mark.parametrize("more", [{SWITCH: "0"}, {"LD_PRELOAD": ""}, {"COVERAGE_PROCESS_START": "x"}])
def test_what_turns_it_off(ahead: Ahead, more: dict[str, str]) -> None:
    assert ahead.run("ps", more=more).returncode == 0
    assert ahead.forks == 0


def test_a_file_of_the_callers_own_is_read_by_the_caller(ahead: Ahead) -> None:
    (ahead.work / "job.yaml").write_text("name: digits\nrun: train.py\n")
    (ahead.work / "train.py").write_text("print(1)\n")
    descriptor = os.open(ahead.work / "job.yaml", os.O_RDONLY)
    try:
        done = ahead.run("check", f"/dev/fd/{descriptor}", pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    assert ahead.forks == 0
    assert done.returncode in (0, 2)


def test_a_process_that_hangs_is_not_waited_for(ahead: Ahead) -> None:
    (about,) = ahead.about
    os.kill(about["pid"], signal.SIGSTOP)
    assert ahead.run("ps").returncode == 0  # with its output closed: who hangs was handed it, and is ended for that
    assert ahead.about == []


@as_root
def test_another_users_socket_is_told_nothing(ahead: Ahead) -> None:
    (about,) = ahead.about
    path = ahead.home / "warm" / f"{about['name']}.sock"
    path.unlink()
    told: list[bytes] = []
    pid = os.fork()
    if pid == 0:  # who has a socket is whoever was root, or not, as it began to listen
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(path))
                path.chmod(0o666)
                os.setresuid(65534, 65534, 65534)
                listener.listen(1)
                connection, _ = listener.accept()
                told.append(connection.recv(100))
                os._exit(1 if told[0] else 0)
        finally:
            os._exit(2)
    until(path.exists, "no socket")
    time.sleep(0.3)
    assert ahead.run("ps").returncode == 0
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- its life ---------------------------------------------------------------------------------------------------------


def test_a_changed_package_means_a_new_process(home: Path, environ: Mapping[str, str], tmp_path: Path) -> None:
    import windlass

    shutil.copytree(Path(windlass.__file__).parent, tmp_path / "copy" / "windlass")
    ahead = Ahead(home, Path.cwd(), {**switched_on(environ), "PYTHONPATH": str(tmp_path / "copy")})
    ahead.begin()
    assert (ahead.run("ps").returncode, ahead.forks) == (0, 1)
    os.utime(tmp_path / "copy" / "windlass" / "cli" / "words.py", (1, 1))
    assert ahead.run("ps").returncode == 0
    until(lambda: not ahead.about, "it lives on")


def test_it_holds_none_of_the_secrets_of_whoever_began_it(home: Path, environ: Mapping[str, str]) -> None:
    ahead = Ahead(home, Path.cwd(), switched_on(environ))
    ahead.begin(AWS_SECRET_ACCESS_KEY="of the first caller")
    (about,) = ahead.about
    assert b"of the first caller" not in Path(f"/proc/{about['pid']}/environ").read_bytes()
    ahead.run("ps", more={"AWS_SECRET_ACCESS_KEY": "of the second"})
    assert b"of the second" not in Path(f"/proc/{about['pid']}/environ").read_bytes()
    WarmPool(home).stop()


def test_warm_shows_and_stops_it(ahead: Ahead) -> None:
    (about,) = ahead.about
    assert (about["state"], about["modules"]) == ("ready", ["windlass"])
    assert about["name"] in ahead.run("warm", "ls").stdout
    assert ahead.run("warm", "stop").returncode == 0
    assert ahead.about == []
    assert ahead.run("ps").returncode == 0


def test_a_command_that_outlives_it_ends_as_it_would(ahead: Ahead) -> None:
    popen = sleeping(ahead)
    WarmPool(ahead.home).stop()
    popen.send_signal(signal.SIGTERM)
    popen.communicate(timeout=PATIENCE_SECONDS)
    assert popen.returncode == 101


def test_a_command_that_asked_no_cluster_leaves_none(home: Path, environ: Mapping[str, str]) -> None:
    ahead = Ahead(home, Path.cwd(), switched_on(environ))
    assert ahead.run("ps").returncode == 0
    assert ahead.about == []
