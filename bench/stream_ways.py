"""One process that trains on a stream, in each of the ways that `stream.py` compares; run by the peers' interpreter.

    stream_ways.py prepare FOLDER NUM_SAMPLES SAMPLE_BYTES [--peers]
    stream_ways.py epochs WAY ADDRESS CACHE NUM_WORKERS
    stream_ways.py half WAY ADDRESS CACHE NUM_WORKERS
    stream_ways.py rest WAY ADDRESS CACHE NUM_WORKERS

`epochs` prints how long two epochs took, `half` is killed by signal 9 in mid-epoch, and `rest` prints how long it took
from there to the next batch. All shuffle, and take batches of 32 samples of a picture and a label.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH = 32
NUM_SHARDS = 8
SEED = 1


def picture(number: int, num_bytes: int) -> tuple[bytes, int]:
    return random.Random(number).randbytes(num_bytes), number


# -- the sets ---------------------------------------------------------------------------------------------------------


def prepare(folder: Path, num_samples: int, num_bytes: int, for_peers: bool) -> None:
    files(folder / "files", num_samples, num_bytes)
    tars(folder / "tar", num_samples, num_bytes)
    if for_peers:
        import litdata
        from streaming import MDSWriter

        with MDSWriter(out=str(folder / "mds"), columns={"jpg": "bytes", "cls": "int"}) as writer:
            for number in range(num_samples):
                jpg, cls = picture(number, num_bytes)
                writer.write({"jpg": jpg, "cls": cls})
        litdata.optimize(
            fn=Optimized(num_bytes),
            inputs=list(range(num_samples)),
            output_dir=str(folder / "litdata"),
            chunk_bytes="64MB",
            num_workers=1,
        )


class Optimized:
    """A sample of litdata; it is pickled."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def __call__(self, number: int) -> dict[str, Any]:
        jpg, cls = picture(number, self.num_bytes)
        return {"jpg": jpg, "cls": cls}


def files(folder: Path, num_samples: int, num_bytes: int) -> None:
    folder.mkdir(parents=True)
    for number in range(num_samples):
        jpg, cls = picture(number, num_bytes)
        (folder / f"{number:06}.{cls}.jpg").write_bytes(jpg)  # one object, as s3torchconnector has one for each sample


def tars(folder: Path, num_samples: int, num_bytes: int) -> None:
    folder.mkdir(parents=True)
    for shard in range(NUM_SHARDS):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as file:
            for number in range(shard * num_samples // NUM_SHARDS, (shard + 1) * num_samples // NUM_SHARDS):
                jpg, cls = picture(number, num_bytes)
                for extension, data in (("jpg", jpg), ("cls", str(cls).encode())):
                    info = tarfile.TarInfo(f"{number:06}.{extension}")
                    info.size = len(data)
                    file.addfile(info, io.BytesIO(data))


# -- the ways ---------------------------------------------------------------------------------------------------------

Loader = tuple[Callable[[], Iterator[list[int]]], Callable[[], Any], Callable[[Any], None]]
"""What iterates over an epoch, as the numbers of the samples of each batch; gives its position; and takes one."""


def checked(jpg: Any, cls: Any) -> int:
    assert len(jpg) > 0
    return int(cls)


def windlass_sample(sample: dict[str, Any]) -> int:
    return checked(sample["jpg"], sample["cls"])


def windlass_file(sample: dict[str, Any]) -> int:
    return checked(sample["jpg"], sample["__key__"].split(".")[1])


class LocalFiles:
    """Files of a folder, as a script reads them."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(Path(folder).iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> int:
        path = self.paths[number]
        return checked(path.read_bytes(), path.name.split(".")[1])


def s3_sample(reader: Any) -> int:
    return checked(reader.read(), reader.key.rpartition("/")[2].split(".")[1])


def by_sampler(dataset: Any, num_workers: int) -> Loader:
    """A map-style dataset under the sampler of Windlass."""
    from torch.utils.data import DataLoader

    from windlass.train.sampler import BatchSampler

    sampler = BatchSampler(len(dataset), BATCH, seed=SEED)
    loader: Any = DataLoader(dataset, batch_sampler=sampler, num_workers=num_workers, collate_fn=list)
    epoch = 0

    def batches() -> Iterator[list[int]]:
        nonlocal epoch
        sampler.set_epoch(epoch)
        for batch in loader:
            sampler.advance()
            yield batch
        epoch += 1

    return batches, sampler.state_dict, sampler.load_state_dict


def local(address: str, cache: str, num_workers: int) -> Loader:
    return by_sampler(LocalFiles(address), num_workers)


def windlass(address: str, cache: str, num_workers: int) -> Loader:
    from windlass.train import stream

    is_tar = "/tar" in address
    transform = windlass_sample if is_tar else windlass_file
    return by_sampler(stream(address, cache=cache, transform=transform, group=is_tar), num_workers)


def s3torchconnector(address: str, cache: str, num_workers: int) -> Loader:
    from s3torchconnector import S3ClientConfig, S3MapDataset

    config = S3ClientConfig(force_path_style=True)
    dataset = S3MapDataset.from_prefix(
        address,
        region=os.environ["AWS_REGION"],
        endpoint=os.environ["AWS_ENDPOINT_URL_S3"],
        transform=s3_sample,
        s3client_config=config,
    )
    return by_sampler(dataset, num_workers)


def litdata(address: str, cache: str, num_workers: int) -> Loader:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no setting for a server without TLS
    dataset = StreamingDataset(address, cache_dir=cache, shuffle=True, seed=SEED, max_cache_size="100GB")
    loader: Any = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=by_field)
    return _by_dicts(loader), loader.state_dict, loader.load_state_dict


def mosaicml(address: str, cache: str, num_workers: int) -> Loader:
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(remote=address, local=cache, shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
    loader: Any = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=num_workers, collate_fn=by_field)
    return _by_dicts(loader), loader.state_dict, loader.load_state_dict


def _by_dicts(loader: Any) -> Callable[[], Iterator[list[int]]]:
    return lambda: (list(map(checked, batch["jpg"], batch["cls"])) for batch in loader)


def by_field(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The form in which the loaders of peers count the samples of a batch."""
    import torch

    return {"cls": torch.tensor([one["cls"] for one in samples]), "jpg": [one["jpg"] for one in samples]}


WAYS: dict[str, Callable[[str, str, int], Loader]] = {
    "local": local,
    "windlass": windlass,
    "s3torchconnector": s3torchconnector,
    "litdata": litdata,
    "mosaicml": mosaicml,
}
IMPORTS = {
    "s3torchconnector": "s3torchconnector",
    "litdata": "litdata",
    "mosaicml": "streaming",
    "windlass": "windlass.stores.s3.store",
    "local": "torch.utils.data",
}


def epochs(open_loader: Callable[[], Loader], num_samples: int) -> dict[str, float]:
    """Two epochs in one process: each sample is in each once."""
    began = time.perf_counter()
    batches, _, _ = open_loader()
    found: dict[str, float] = {}
    for name in ("cold", "warm"):
        numbers: list[int] = []
        for batch in batches():
            if not found:
                found["first"] = time.perf_counter() - began
            numbers += batch
        assert sorted(numbers) == list(range(num_samples)), (
            f"{name}: {len(numbers)} samples, {len(set(numbers))} differ"
        )
        found[name] = time.perf_counter() - began
        began = time.perf_counter()
    return found


def half(open_loader: Callable[[], Loader], num_samples: int, position: Path) -> None:
    """Killed after half of an epoch."""
    batches, state, _ = open_loader()
    seen: list[int] = []
    for batch in batches():
        seen += batch
        if len(seen) >= num_samples // 2:
            position.write_bytes(pickle.dumps((state(), seen)))
            sys.stdout.flush()
            os.killpg(0, signal.SIGKILL)


def rest(open_loader: Callable[[], Loader], num_samples: int, position: Path) -> dict[str, float]:
    """From there on: how long until the next batch, and how many samples are left out or seen twice."""
    state, seen = pickle.loads(position.read_bytes())
    began = time.perf_counter()
    batches, _, load = open_loader()
    load(state)
    found: dict[str, float] = {}
    for batch in batches():
        if not found:
            found["first"] = time.perf_counter() - began
            found["from start"] = time.time() - float(os.environ["STARTED"])
            if os.environ["NODE"] == "new":
                return found
        seen += batch
    return {**found, "twice": len(seen) - len(set(seen)), "never": num_samples - len(set(seen))}


def main(argv: list[str]) -> None:
    mode, *words = argv
    if mode == "prepare":
        prepare(Path(words[0]), int(words[1]), int(words[2]), "--peers" in words)
        return
    way, address, cache, num_workers, num_samples, position = words
    for module in ("torch.utils.data", "windlass.train.stream.dataset", "windlass.train.sampler", IMPORTS[way]):
        __import__(module)

    def open_loader() -> Loader:
        return WAYS[way](address, cache, int(num_workers))

    if mode == "half":
        half(open_loader, int(num_samples), Path(position))
    found = (
        epochs(open_loader, int(num_samples))
        if mode == "epochs"
        else rest(open_loader, int(num_samples), Path(position))
    )
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found["cpu"] = sum(one.ru_utime + one.ru_stime for one in used)
    print("FOUND " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
