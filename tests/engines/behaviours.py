"""Functions that ranks run in the contract tests: as a script under real engines, as a function under the fake engine.

`behaviours.py NAME ARGS…` calls the function NAME with a `Rank` and the arguments. The function returns the exit code.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Rank(Protocol):
    """Interface of a rank for these functions, implemented by `windlass.engines.fake.FakeRank` and by
    `RealRank` below.
    """

    rank: int
    attempt: int
    argv: list[str]
    env: dict[str, str]

    def print(self, text: str) -> None: ...
    def write(self, data: bytes) -> None: ...
    def report(self, **fields: Any) -> None: ...
    def sleep(self, seconds: float) -> None: ...
    def on_term(self, callback: Callable[[], None]) -> None: ...
    def die(self, number: int) -> None: ...


class RealRank:
    """The rank of a process that a real engine has started."""

    def __init__(self) -> None:
        self.rank = int(os.environ["WINDLASS_RANK"] if "WINDLASS_RANK" in os.environ else os.environ["RANK"])
        self.attempt = int(os.environ.get("WINDLASS_ATTEMPT", "1"))
        self.argv = sys.argv
        self.env = dict(os.environ)
        self.sleep = time.sleep

    def print(self, text: str) -> None:
        print(text, flush=True)

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def report(self, **fields: Any) -> None:
        import windlass.train

        windlass.train.report(**fields)

    def on_term(self, callback: Callable[[], None]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: callback())

    def die(self, number: int) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(60)


def environment(rank: Rank, *words: str) -> None:
    rank.print(json.dumps({**rank.env, **({"arguments": words} if words else {})}))


def arguments(rank: Rank, *words: str) -> None:
    rank.print(json.dumps(words))


def save_and_fail(rank: Rank, *words: str) -> int:
    """Leaves a complete zip file, as torch.save does, and a truncated newer one, then fails; with arguments, which a
    resume adds, prints them.
    """
    if words:
        rank.print(json.dumps(words))
        return 0
    if rank.rank == 0:
        folder = Path(rank.env["WINDLASS_CHECKPOINT_DIR"])
        with zipfile.ZipFile(folder / "saved-step=9.pt", "w") as file:
            file.writestr("data", bytes(1000))
        newest = folder / "saved-step=10.pt"
        newest.write_bytes((folder / "saved-step=9.pt").read_bytes()[:600])
        later = time.time() + 1
        os.utime(newest, (later, later))
        return 5
    rank.sleep(600)
    return 0


def leave(rank: Rank, code: str) -> int:
    return int(code)


def leave_with_text(rank: Rank, text: str) -> None:
    sys.exit(text)


def die(rank: Rank, number: str) -> None:
    rank.print("dying")
    rank.die(int(number))


def _all_are_here(rank: Rank) -> None:
    """Waits for all ranks. A launcher may start them at different times, and a rank that was not started cannot be
    ended.
    """
    _say_in_a_file(rank, "here")
    _wait_for_files(rank, "here", int(rank.env["WINDLASS_WORLD_SIZE"]))


def _shared(rank: Rank) -> Path:
    """Returns a folder that all ranks of this run share, and no other run uses."""
    folder = Path(rank.env.get("CASE_FOLDER") or rank.env["WINDLASS_OUTPUT_DIR"], rank.env["WINDLASS_RUN_ID"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _say_in_a_file(rank: Rank, word: str) -> None:
    (_shared(rank) / f"{word}-{rank.attempt}-{rank.rank}").touch()


def _wait_for_files(rank: Rank, word: str, count: int) -> None:
    """Waits until `count` ranks of this attempt have written the file of this word."""
    folder, give_up = _shared(rank), time.monotonic() + 240
    while len(list(folder.glob(f"{word}-{rank.attempt}-*"))) < count and time.monotonic() < give_up:
        rank.sleep(0.01)


def one_leaves(rank: Rank, which: str, code: str) -> int:
    """One rank exits without output; the others would run for ten minutes."""
    _all_are_here(rank)
    if rank.rank == int(which):
        return int(code)
    rank.sleep(600)
    return 0


def one_dies(rank: Rank, which: str, number: str) -> None:
    _all_are_here(rank)
    if rank.rank == int(which):
        rank.sleep(0.1)
        rank.die(int(number))
    rank.sleep(600)


def killed_once(rank: Rank, which: str) -> None:
    """Kills one rank in the first attempt; the next attempt succeeds."""
    if rank.attempt == 1:
        one_dies(rank, which, "9")


def one_raises(rank: Rank, which: str) -> None:
    """One rank raises at step 3; on SIGTERM, the others raise an error about their closed connection."""
    _all_are_here(rank)
    for step in range(1, 4):
        if rank.rank == int(which) and step == 3:
            raise ValueError(f"loss is nan at step {step}")
    rank.on_term(_complain)
    rank.sleep(600)


def _complain() -> None:
    raise RuntimeError("Connection closed by peer [127.0.0.1]:29500")


def sleep(rank: Rank, seconds: str) -> None:
    rank.print("ready")
    rank.sleep(float(seconds))


def last_words(rank: Rank, seconds: str) -> int:
    """Saves for some seconds after SIGTERM, and exits with 0."""
    told: list[bool] = []

    def save() -> None:
        rank.print("saving")
        told.append(True)

    rank.on_term(save)
    rank.print("ready")
    _say_in_a_file(rank, "ready")
    while not told:
        rank.sleep(0.02)
    rank.sleep(float(seconds))
    rank.print("saved")
    return 0


def last_words_or_fail(rank: Rank, which: str, seconds: str) -> int:
    """One rank fails once the others are ready; the others save."""
    if rank.rank == int(which):
        _wait_for_files(rank, "ready", int(rank.env["WINDLASS_WORLD_SIZE"]) - 1)
        return 4
    return last_words(rank, seconds)


def deaf(rank: Rank) -> None:
    rank.on_term(lambda: None)
    rank.print("ready")
    rank.sleep(600)


def lines(rank: Rank, count: str, per_write: str) -> None:
    """Writes `count` numbered lines, `per_write` in each write."""
    step = int(per_write)
    for start in range(0, int(count), step):
        numbers = range(start, start + step)
        rank.write(b"".join(b"%d line %d of this rank\n" % (rank.rank, number) for number in numbers))


def odd_bytes(rank: Rank) -> None:
    rank.write(b"\xff\xfe\x00 not UTF-8\n")
    rank.write(b"x" * 3_000_000 + b"\n")
    rank.write(b"\n\r\n")
    rank.write(b"no newline at the end")


def fail_until(rank: Rank, attempt: str) -> int:
    names = (
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "WINDLASS_ATTEMPT",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    rank.print(json.dumps({name: rank.env.get(name) for name in names}))
    return 7 if rank.attempt < int(attempt) and rank.rank == 0 else 0


def fail_at_start(rank: Rank) -> None:
    """Fails with the same error in every attempt, before any step."""
    raise ValueError("no shard 11 of 10")


def fail_at_step(rank: Rank, step: str) -> None:
    """Fails after the same step in every attempt."""
    for number in range(1, int(step) + 1):
        rank.report(step=number)
    raise ValueError("label 11 of 10")


def work_and_wait(rank: Rank, step: str) -> None:
    """Waits for SIGTERM after a step of the first attempt and then saves; the next attempt continues from there."""
    path = Path(rank.env["WINDLASS_CHECKPOINT_DIR"], f"rank-{rank.rank}")
    saved = int(path.read_text()) if path.exists() else 0
    rank.print(f"from {saved}")
    if saved:
        return
    rank.report(step=int(step))

    def save() -> None:
        path.write_text(step)
        sys.exit(143)

    rank.on_term(save)
    rank.print("ready")
    rank.sleep(600)


def fail_then_tell(rank: Rank, *attempts: str) -> int:
    """Fails in the given attempts; in others, prints its environment."""
    if str(rank.attempt) in attempts:
        return 3
    rank.print(json.dumps(rank.env))
    return 0


def hang_once(rank: Rank) -> None:
    """Writes nothing for ten minutes in the first attempt."""
    rank.print("ready")
    if rank.attempt == 1:
        rank.sleep(600)


def pause(rank: Rank, seconds: str) -> None:
    """Writes nothing for some seconds, then continues."""
    rank.print("ready")
    rank.sleep(float(seconds))
    rank.print("on I go")
    rank.sleep(1.0)


def wait_for(rank: Rank, name: str) -> None:
    """Runs until a file of this name exists in the folder of results."""
    rank.print("ready")
    while not Path(rank.env["WINDLASS_OUTPUT_DIR"], name).exists():
        rank.sleep(0.02)


def work_until(rank: Rank, name: str) -> None:
    """Runs until a file of this name exists in the folder that all ranks share."""
    rank.print("ready")
    while not (_shared(rank) / name).exists():
        rank.sleep(0.02)
    rank.print("done")


def interrupted_once(rank: Rank, name: str) -> None:
    """Runs until its machine is taken away; the second start succeeds."""
    first = _shared(rank) / name
    if not first.exists():
        first.touch()
        rank.print("ready")
        rank.sleep(600)
    rank.print("done")


def report(rank: Rank, steps: str) -> None:
    total = int(steps)
    for step in range(1, total + 1):
        rank.report(step=step, total=total, loss=1 / step)
        rank.sleep(0.02)


def bar(rank: Rank, total: str) -> None:
    """Writes a progress bar like tqdm: one line that is redrawn."""
    for step in range(1, int(total) + 1):
        share = step / int(total)
        mark = "#" * int(10 * share)
        rank.write(
            f"\rtrain: {share:4.0%}|{mark:10}| {step}/{total} [00:01<00:00, 25.0it/s, loss={1 / step:.3f}]".encode()
        )
        rank.sleep(0.02)
    rank.write(b"\n")


def phases(rank: Rank, seconds: str) -> None:
    """Silent, then training, then checkpointing, each for some seconds."""
    rank.sleep(float(seconds))
    rank.report(step=1, total=2)
    rank.sleep(float(seconds))
    rank.report(step=2, total=2, phase="checkpointing")
    rank.sleep(float(seconds))


def keep_result(rank: Rank) -> None:
    """Writes to the folders in its environment, which exist already."""
    for name in ("WINDLASS_OUTPUT_DIR", "WINDLASS_CHECKPOINT_DIR"):
        Path(rank.env[name], f"rank-{rank.rank}.txt").write_text(rank.env["WINDLASS_RUN_ID"])


def play(rank: Rank) -> int | None:
    """Runs the function that the rank's arguments name."""
    code = globals()[rank.argv[1]](rank, *rank.argv[2:])
    return code if isinstance(code, int) else None


if __name__ == "__main__":
    sys.exit(play(RealRank()))
