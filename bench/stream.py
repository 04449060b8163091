"""Streams from S3: ours beside s3torchconnector, litdata and mosaicml-streaming, and beside files of this machine.

All read the same samples (a picture and a label) from one server on loopback (VersityGW), shuffled, in batches of 32 by
a DataLoader, each in the form that it is made for: s3torchconnector has an object for each sample, litdata its chunks,
mosaicml-streaming its shards, and ours tar shards (WebDataset's layout) and single objects. One interpreter runs all.

*Epochs*: an empty cache, with all that opening takes, such as our index of the shards; theirs are made when the set is
written. Then a second epoch. *Restart*: a process is killed by signal 9 in mid-epoch; the next one is timed from
opening the set to its first batch, and as a whole with its imports: on the same node with what the first has left in
its cache, and on a new one without; once with the workers of a loader, whose forks take a tenth of a second for all,
and once without. Then the epoch is ended: samples trained on twice, or never, are counted.

    python bench/stream.py [--runs 3] [--parts epochs restart] [--smoke]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import BIN, ROOT, add_smoke, in_turn, machine, peers, require_figures, spread, table
from tests.servers.s3 import VERSITYGW, S3Server, s3_server

BUCKET = "bench"
NUM_WORKERS = 2
TRIES = 5
"""Of a peer: with several workers mosaicml-streaming 0.13 gives samples in some runs that are none of the set."""
SAMPLE_BYTES = 100_000
PARTS = ("epochs", "restart")
PEERS = ("s3torchconnector", "litdata", "mosaicml-streaming")
WAYS = {
    "windlass, tar": ("windlass", "tar"),
    "windlass, objects": ("windlass", "files"),
    "s3torchconnector": ("s3torchconnector", "files"),
    "litdata": ("litdata", "litdata"),
    "mosaicml-streaming": ("mosaicml", "mds"),
}
LOCAL = "local files"
Figures = dict[str, float]


@dataclass(frozen=True)
class Bench:
    """A folder with the sets, the server that has them too, and the interpreter that all ways run under."""

    folder: Path
    python: Path
    num_samples: int
    environ: Mapping[str, str]
    numbers: count[int]

    def epochs(self, way: str, address: str) -> object:
        return self._run("epochs", way, address, self._new(), NUM_WORKERS)

    def restart(self, num_workers: int, way: str, address: str) -> object:
        """The next process on the same node, and on a new one."""
        found: Figures = {}
        cache = self._new()
        self._run("half", way, address, cache, num_workers)
        for node in ("same", "new"):
            if node == "new":  # at the same path, without which litdata takes no position
                shutil.rmtree(cache)
                cache.mkdir()
            one = self._run("rest", way, address, cache, num_workers, node)
            found |= {f"{node} {name}": value for name, value in one.items()}
        return found

    def _new(self) -> Path:
        """An empty cache, and a run of its own, whose index outlives a node."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        (self.folder / "run").mkdir()
        cache = self.folder / f"cache-{next(self.numbers)}"
        cache.mkdir()
        return cache

    def _run(self, mode: str, way: str, address: str, cache: Path, num_workers: int, node: str = "") -> Figures:
        """The figures of a process. Where a peer fails, that is printed, and it begins anew with an empty cache."""
        failures = 0
        while True:
            try:
                return self._run_once(mode, way, address, cache, num_workers, node)
            except RuntimeError as error:
                failures += 1
                if way == "windlass" or mode == "rest" or failures == TRIES:
                    raise
                print(f"  ({way} failed; again: {str(error).splitlines()[-1][:100]})", flush=True)
                shutil.rmtree(cache)
                cache.mkdir()

    def _run_once(self, mode: str, way: str, address: str, cache: Path, num_workers: int, node: str) -> Figures:
        words = [self.python, ROOT / "bench" / "stream_ways.py", mode, way, address, cache]
        words += [num_workers, self.num_samples, self.folder / "position"]
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**self.environ, "STARTED": str(time.time()), "NODE": node},
            start_new_session=True,
        )
        if mode == "half" and done.returncode == -9:
            return {}
        for line in done.stdout.splitlines():
            if line.startswith("FOUND "):
                return dict(json.loads(line.removeprefix("FOUND ")))
        raise RuntimeError(f"{way} {mode} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    add_smoke(parser)
    chosen = parser.parse_args()
    run(chosen.runs, chosen.parts, chosen.smoke)
    if chosen.smoke:
        require_figures()


def run(runs: int, parts: Sequence[str], is_smoke: bool) -> None:
    num_samples = 64 if is_smoke else 2000
    print(f"stream: {num_samples:,} samples of {SAMPLE_BYTES // 1000} kB, {NUM_WORKERS} workers; {machine()}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-stream-")))
        python = BIN / "python" if is_smoke else peers(*PEERS, env="stream-env") / "python"
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(folder / "home")}
        environ |= {"WINDLASS_RUN_ID": "bench-1", "WINDLASS_CHECKPOINT_DIR": str(folder / "run")}
        words = [python, ROOT / "bench" / "stream_ways.py", "prepare", folder / "sets", num_samples, SAMPLE_BYTES]
        words += [] if is_smoke else ["--peers"]
        subprocess.run([str(word) for word in words], env=environ, capture_output=True, check=True)
        root = str(folder / "sets")
        if not is_smoke or VERSITYGW.is_built():
            server = stack.enter_context(s3_server(folder / "buckets"))
            environ |= environment(server)
            upload(server, folder / "sets")
            root = f"s3://{BUCKET}"
        else:
            print("the S3 server is not built (make server-build): ours reads a folder")
        bench = Bench(folder, python, num_samples, environ, count())
        ways = {
            name: (way, f"{root}/{where}/") for name, (way, where) in WAYS.items() if not is_smoke or where == "tar"
        }
        if not is_smoke:
            ways[LOCAL] = ("local", str(folder / "sets" / "files"))
        if "epochs" in parts:
            epochs(bench, ways, 0 if is_smoke else runs)
        for num_workers in ((NUM_WORKERS,) if is_smoke else (0, NUM_WORKERS)) if "restart" in parts else ():
            restarts(bench, ways, 0 if is_smoke else runs, num_workers)


def environment(server: S3Server) -> dict[str, str]:
    """What boto3 and ours read, and what mosaicml-streaming reads."""
    return {**server.environ(), "AWS_ENDPOINT_URL": server.endpoint, "S3_ENDPOINT_URL": server.endpoint}


def upload(server: S3Server, folder: Path) -> None:
    client = server.client()
    client.create_bucket(Bucket=BUCKET)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), BUCKET, str(path.relative_to(folder)))


def trials(
    ways: Mapping[str, tuple[str, str]], runs: int, work: Callable[[str, str], object]
) -> dict[str, list[Figures]]:
    """The figures of each way; each is tried once without `runs`."""
    todo = {name: partial(work, *where) for name, where in ways.items()}
    found = in_turn(todo, runs)
    return {name: [dict(one) for one in each if isinstance(one, dict)] for name, each in found.items()}


def epochs(bench: Bench, ways: Mapping[str, tuple[str, str]], runs: int) -> None:
    found = trials(ways, runs, bench.epochs)
    rows = []
    for name, each in found.items():
        cold, warm, first, cpu = ([one[key] for one in each] for key in ("cold", "warm", "first", "cpu"))
        rates = [f"{bench.num_samples / median(cold):.0f}", f"{bench.num_samples / median(warm):.0f}"]
        row = [name, spread(cold), rates[0], ratio(found, "cold", each), spread(warm), rates[1]]
        rows.append([*row, ratio(found, "warm", each), spread(first), spread(cpu)])
    header = ["way", "cold epoch, s", "samples/s", "÷ fastest peer", "warm epoch, s", "samples/s", "÷ fastest peer"]
    table("Epochs", [*header, "first batch, s", "CPU of both, with imports, s"], rows)


def restarts(bench: Bench, ways: Mapping[str, tuple[str, str]], runs: int, num_workers: int) -> None:
    found = trials(ways, runs, partial(bench.restart, num_workers))
    rows = []
    for name, each in found.items():
        row = [name]
        for key in ("same first", "new first", "same from start", "new from start"):
            row += [spread([one[key] for one in each]), ratio(found, key, each)]
        lost = max(one["same twice"] + one["same never"] for one in each)
        rows.append([*row, f"{lost:.0f}"])
    columns = ["same node, s", "÷", "new node, s", "÷", "with imports, s", "÷", "new, with imports, s", "÷"]
    title = f"Restart in mid-epoch with {num_workers} workers, to the next batch; ÷ fastest peer"
    table(title, ["way", *columns, "twice or never"], rows)


def ratio(found: Mapping[str, list[Figures]], key: str, each: list[Figures]) -> str:
    """Of a time to that of the fastest peer."""
    others = [median([one[key] for one in found[name]]) for name in found if name.startswith(PEERS)]
    return f"{median([one[key] for one in each]) / min(others):.2f}" if others else "–"


if __name__ == "__main__":
    main()
