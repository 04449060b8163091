"""Copies between a folder and S3: ours beside s5cmd, aws s3 sync, boto3's transfer manager and obstore by itself.

All copy the same files to and from one server on loopback (VersityGW, over a folder of the same disk), in turn. Ours
verifies each file by SHA-256 both ways and ends when all of it is on the disk; of the others see `stage_peers.py`. So a
download has two times: until the command ends, and until the disk has what it wrote (`sync`, at once after it).

Then two figures on doing less. *Resume*: a copy of one large file is killed by signal 9 after half of the time that a
whole one takes, and made again. Of the second one's time, its share of the bytes is subtracted (it reports how many it
moved): what is left is the price of having been killed, as a share of starting anew. *Again*: a second upload of many
small files of which none has changed.

    python bench/stage.py [--runs 3] [--only windlass s5cmd] [--parts small tiny large resume again] [--smoke]

With `--smoke` what is not built is left out, and named; without the server, a copy from folder to folder is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import (
    BIN,
    add_smoke,
    fresh_home,
    in_turn,
    machine,
    measure,
    medians,
    require_figures,
    spread,
    table,
)
from stage_peers import Tool, tools, windlass
from tests.servers.s3 import VERSITYGW, s3_server

BUCKET = "bench"
PEER = "s5cmd"
PARTS = ("small", "tiny", "large", "resume", "again")
WAYS = ("up", "down")


@dataclass(frozen=True)
class Shape:
    """A set of files of one size."""

    num_files: int
    file_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_files * self.file_bytes

    def make(self, folder: Path) -> Path:
        rng = random.Random(1)
        for number in range(self.num_files):
            path = folder / f"{number % 100:02}" / f"{number:06}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for start in range(0, self.file_bytes, 1 << 20):
                    file.write(rng.randbytes(min(1 << 20, self.file_bytes - start)))
        return folder

    def __str__(self) -> str:
        kb = self.file_bytes // 1000
        size = f"{kb // 1_000_000} GB" if kb >= 1_000_000 else f"{kb // 1000} MB" if kb >= 1000 else f"{kb} KB"
        return f"{self.num_files:,} × {size if kb else f'{self.file_bytes} bytes'}"


SMALL, TINY, LARGE, ONE, MANY = (
    Shape(2000, 100_000),
    Shape(20_000, 10_000),
    Shape(2, 1_000_000_000),
    Shape(1, 1_000_000_000),
    Shape(100_000, 16),
)
MAX_KEPT_BYTES = 1_000_000_000
"""Of one copy, up to which it is kept until the end."""
SMOKE_SMALL, SMOKE_LARGE = Shape(50, 100_000), Shape(1, 32_000_000)


@dataclass(frozen=True)
class Trial:
    """What one copy took."""

    seconds: float
    disk_seconds: float
    """Until the disk had all that the machine had written."""
    cpu_seconds: float
    peak_mb: float


class Bench:
    """A folder with all that is copied, and the folder behind the server's bucket."""

    def __init__(self, folder: Path, bucket: Path, environ: Mapping[str, str]) -> None:
        self.folder, self.bucket, self.environ = folder, bucket, environ

    def copy(self, tool: Tool, shape: Shape, source: Path, way: str) -> Trial:
        """One copy, to a place where nothing is; downloads are of what `fill` has put there."""
        to = self.folder / "down"
        self._discard(to if way == "down" else self.bucket / "up", shape)
        command = tool.copy(way, source if way == "up" else to, "up" if way == "up" else source.name)
        os.sync()
        began = time.perf_counter()
        cost = measure(command, env=self.environ)
        os.sync()
        disk = time.perf_counter() - began
        _require(to if way == "down" else self.bucket / "up", shape)
        return Trial(cost.wall_seconds, disk, cost.cpu_seconds, cost.peak_mb)

    def _discard(self, folder: Path, shape: Shape) -> None:
        """Move a folder away. Removed would be only a few large files: ext4 looks at each inode that was freed in the
        last minutes before it makes a file, and 10,000 of them take longer than a copy.
        """
        if not folder.exists():
            return
        if shape.num_bytes > MAX_KEPT_BYTES:
            shutil.rmtree(folder)
        else:
            (self.folder / "discarded").mkdir(exist_ok=True)
            folder.rename(tempfile.mkdtemp(dir=self.folder / "discarded"))

    def fill(self, tool: Tool, source: Path) -> None:
        """Have the server hold what downloads fetch, under the name of its folder."""
        measure(tool.copy("up", source, source.name), env=self.environ)
        shutil.rmtree(self.bucket / source.name / ".windlass", ignore_errors=True)  # all are to list it

    # -- resume -------------------------------------------------------------------------------------------------------

    def resume(self, source: Path, way: str) -> dict[str, float]:
        """A copy by ours, one that is killed at half of its time, and the one after that."""
        anew = self._ours(source, way, fresh=True)
        killed = self._started(source, way, fresh=True)
        time.sleep(anew["seconds"] / 2)
        killed.kill()
        killed.communicate()
        again = self._ours(source, way, fresh=False)
        share = again["bytes"] / ONE.num_bytes
        price = again["seconds"] - anew["seconds"] * share
        return {"anew": anew["seconds"], "again": again["seconds"], "share": share, "price": price / anew["seconds"]}

    def _started(self, source: Path, way: str, fresh: bool) -> subprocess.Popen[str]:
        to = self.folder / "down" if way == "down" else self.bucket / "up"
        if fresh:
            shutil.rmtree(to, ignore_errors=True)
        os.sync()
        words = windlass(BUCKET).copy(way, source if way == "up" else to, "up" if way == "up" else source.name)
        return subprocess.Popen(words, env={**os.environ, **self.environ}, stdout=subprocess.PIPE, text=True)

    def _ours(self, source: Path, way: str, fresh: bool) -> dict[str, float]:
        popen, began = self._started(source, way, fresh), time.perf_counter()
        told, _ = popen.communicate()
        assert popen.returncode == 0, told
        return {"seconds": time.perf_counter() - began, "bytes": json.loads(told)["copied_bytes"]}


def _require(folder: Path, shape: Shape) -> None:
    """All of a set is there. Raises RuntimeError."""
    found = [one for one in folder.rglob("*.bin") if ".windlass" not in one.parts]
    num_bytes = sum(one.stat().st_size for one in found)
    if (len(found), num_bytes) != (shape.num_files, shape.num_bytes):
        raise RuntimeError(f"{folder} has {len(found)} files of {num_bytes} bytes, not {shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="tools whose name contains one of these words")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    add_smoke(parser)
    chosen = parser.parse_args()
    runs = 0 if chosen.smoke else chosen.runs
    print(f"stage: {machine()}, {medians(runs)}")
    with ExitStack() as stack:
        stack.enter_context(fresh_home())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-bench-", dir=chosen.folder)))
        if chosen.smoke and not VERSITYGW.is_built():
            print("left out: all that needs the S3 server, which is not built (python -m tests.servers)")
            folder_to_folder(folder)
        else:
            server = stack.enter_context(s3_server(folder / "s3"))
            (server.folder / BUCKET).mkdir()
            bench = Bench(folder, server.folder / BUCKET, server.environ())
            kept, skipped = tools(BUCKET, server.endpoint, folder, chosen.only, only_built=chosen.smoke)
            if skipped:
                print(f"left out, as they are not built: {', '.join(skipped)}")
            if chosen.smoke:
                print("left out, as they take minutes: resume, again")
                chosen.parts = [part for part in ("small", "large") if part in chosen.parts]
            smoke = {"small": SMOKE_SMALL, "large": SMOKE_LARGE}
            for name, shape in (smoke if chosen.smoke else {"small": SMALL, "tiny": TINY, "large": LARGE}).items():
                if name in chosen.parts:
                    both_ways(bench, kept, shape, name, runs)
            if "resume" in chosen.parts:
                resumed(bench, runs)
            if "again" in chosen.parts:
                copied_again(bench, kept, runs)
    if chosen.smoke:
        require_figures()


def both_ways(bench: Bench, kept: Mapping[str, Tool], shape: Shape, name: str, runs: int) -> None:
    """Both directions; without a round to warm up where `runs` is 0."""
    source = shape.make(bench.folder / name)
    bench.fill(windlass(BUCKET), source)
    for way in WAYS:
        trials: dict[str, Callable[[], object]] = {
            name: partial(bench.copy, tool, shape, source, way) for name, tool in kept.items()
        }
        title = f"{shape}, {'folder to S3' if way == 'up' else 'S3 to folder'}"
        found = in_turn(trials, runs)
        report(title, shape, found, with_disk=way == "down")
    for used in (source, bench.bucket / name, bench.bucket / "up", bench.folder / "down"):
        shutil.rmtree(used, ignore_errors=True)


def report(title: str, shape: Shape, results: Mapping[str, list[object]], with_disk: bool) -> None:
    found = {way: [one for one in trials if isinstance(one, Trial)] for way, trials in results.items()}
    base = found.get(PEER)
    header = ["tool", "s", "MB/s", "files/s", f"× {PEER}"]
    header += [*(["on the disk, s", f"× {PEER}"] if with_disk else []), "CPU, s", f"÷ {PEER}", "peak MB"]
    rows = []
    for way, trials in found.items():
        seconds = [one.seconds for one in trials]
        disk = [one.disk_seconds for one in trials]
        cpu = [one.cpu_seconds for one in trials]
        row = [way, spread(seconds), f"{shape.num_bytes / 1e6 / median(seconds):.0f}"]
        row += [f"{shape.num_files / median(seconds):.0f}" if shape.num_files > 9 else "–"]
        row += [_speed([one.seconds for one in base or ()], seconds)]
        if with_disk:
            row += [spread(disk), _speed([one.disk_seconds for one in base or ()], disk)]
        ratio = f"{median(cpu) / median([one.cpu_seconds for one in base]):.2f}" if base else ""
        rows.append([*row, spread(cpu), ratio, f"{max(one.peak_mb for one in trials):.0f}"])
    table(title, header, rows)


def _speed(base: list[float], seconds: list[float]) -> str:
    """How many times as fast as the peer."""
    return f"{median(base) / median(seconds):.2f}" if base else ""


def resumed(bench: Bench, runs: int) -> None:
    source, rows = ONE.make(bench.folder / "one"), []
    bench.fill(windlass(BUCKET), source)
    for way in WAYS:
        found = [bench.resume(source, way) for _ in range(runs + 1)][1:]
        columns = {key: spread([one[key] for one in found]) for key in ("anew", "again", "share", "price")}
        rows.append(["folder to S3" if way == "up" else "S3 to folder", *columns.values()])
    table(
        f"windlass, {ONE}, killed at half of the time and made again",
        ["way", "anew, s", "again, s", "bytes moved again ÷ all", "price ÷ anew"],
        rows,
    )
    for used in (source, bench.bucket / "one", bench.bucket / "up", bench.folder / "down"):
        shutil.rmtree(used, ignore_errors=True)


def copied_again(bench: Bench, kept: Mapping[str, Tool], runs: int) -> None:
    """A second upload of files that have not changed; each tool's first one is not timed."""
    source = MANY.make(bench.folder / "many")
    trials: dict[str, Callable[[], object]] = {}
    for number, (name, tool) in enumerate(kept.items()):
        if tool.again is not None:
            measure(tool.copy("up", source, f"many-{number}"), env=bench.environ)
            trials[name] = partial(measure, tool.again(source, f"many-{number}"), env=bench.environ)
    rows = []
    for name, found in in_turn(trials, runs).items():
        costs: list[tuple[float, float]] = [(one.wall_seconds, one.cpu_seconds) for one in found]  # type: ignore[attr-defined]
        rows.append([name, spread([wall for wall, _ in costs]), spread([cpu for _, cpu in costs])])
    table(f"{MANY}, folder to S3, again: nothing has changed", ["tool", "s", "CPU, s"], rows)


def folder_to_folder(folder: Path) -> None:
    """Ours alone: what CI can measure without the server."""
    for shape in (SMOKE_SMALL, SMOKE_LARGE):
        source, to = shape.make(folder / "from"), folder / "to"
        cost = measure([BIN / "windlass", "data", "copy", source, to])
        _require(to, shape)
        trial = Trial(cost.wall_seconds, 0, cost.cpu_seconds, cost.peak_mb)
        report(f"{shape}, folder to folder", shape, {"windlass": [trial]}, with_disk=False)
        shutil.rmtree(source)
        shutil.rmtree(to)


if __name__ == "__main__":
    main()
