"""Whole fetches to a folder: what scripts see of them, at any moment, and what a second one does."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.disk import small_disk
from tests.helpers.until import until
from tests.recipes import harness, tiny
from tests.servers.http_files import FileHost, file_host

from windlass.errors import StorageError, UsageError
from windlass.recipes.fetch import Fetch
from windlass.recipes.recipe import Convert, Layout, LeaveOut, NewFile, Recipe
from windlass.recipes.registry import RECIPES
from windlass.storage.address import Address
from windlass.storage.files import version
from windlass.storage.folder import Folder
from windlass.storage.manifest import Manifest
from windlass.storage.opening import locked
from windlass.storage.progress import Progress
from windlass.storage.verify import verify

ROOT = Path(__file__).resolve().parents[2]
LARGE_BYTES = 60 << 20


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def host() -> Iterator[FileHost]:
    with file_host({}) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data/set"


def set_of(name: str, host: FileHost) -> Recipe:
    """The recipe of a small set, whose files the host gets."""
    host.files = tiny.SETS[name]()
    return tiny.recipe_for(name, host.files)


def seen(folder: Path) -> dict[str, bytes]:
    """What scripts see."""
    found = (one for one in sorted(folder.rglob("*")) if one.is_file())
    found = (one for one in found if not one.relative_to(folder).parts[0].startswith(".windlass"))
    return {one.relative_to(folder).as_posix(): one.read_bytes() for one in found}


def left(folder: Path) -> set[str]:
    """What is beside it."""
    own = folder / ".windlass"
    return {one.relative_to(own).as_posix() for one in own.rglob("*") if one.is_file()}


def test_a_second_fetch_has_nothing_to_do_and_asks_for_nothing(host: FileHost, folder: Path) -> None:
    recipe = set_of("cifar10", host)
    first = Fetch(recipe, recipe.default, folder, host.address).run()
    before = seen(folder)
    assert (first.made, first.num_files, first.num_bytes_fetched) == (
        recipe.default,
        10,
        sum(map(len, host.files.values())),
    )
    assert left(folder) == {"lock", "fetch/cifar10.json", "fetch/cifar10-raw.jsonl", "fetch/cifar10-tfrecord.jsonl"}
    second = Fetch(recipe, recipe.default, folder, host.address).run()
    assert second == dataclasses.replace(first, made=(), num_bytes_fetched=0)
    assert (len(host.gets), seen(folder)) == (1, before)


def test_licence_citation_and_sources_are_beside_the_data(host: FileHost, folder: Path) -> None:
    recipe = set_of("coco2017", host)
    Fetch(recipe, recipe.default, folder, host.address).run()
    notice = (folder / "LICENCE-coco2017.txt").read_text()
    for words in (recipe.licence, recipe.citation, recipe.homepage, "http://images.cocodataset.org/zips/train2017.zip"):
        assert words in notice


def test_two_recipes_share_a_folder_and_its_manifest(host: FileHost, folder: Path) -> None:
    for name in ("coco2017", "imagenet-r50"):
        recipe = set_of(name, host)
        done = Fetch(recipe, recipe.default, folder, host.address).run()
    assert {name.split("/")[0] for name in seen(folder)} == {
        "LICENCE-coco2017.txt",
        "LICENCE-imagenet-r50.txt",
        "annotations",
        "pretrained-models",
        "train2017",
        "val2017",
    }
    place = Folder(Address("folder", "", str(folder)))
    verified = asyncio.run(verify(place, Progress()))
    assert (verified.digest, verified.num_files) == (done.digest, len(seen(folder)))
    assert (verified.problems, verified.extra) == ((), ())


def test_another_layout_is_added_to_what_is_there(host: FileHost, folder: Path) -> None:
    recipe = set_of("cifar10", host)
    Fetch(recipe, ["raw"], folder, host.address).run()
    done = Fetch(recipe, ["raw", "torchvision"], folder, host.address).run()
    assert (done.made, done.layouts) == (("torchvision",), ("raw", "torchvision"))
    assert {"cifar-10-batches-bin/test_batch.bin", "cifar-10-batches-py/test_batch"} <= set(seen(folder))


def test_what_is_in_the_way_is_left_as_it_is(host: FileHost, folder: Path) -> None:
    recipe = set_of("coco2017", host)
    (folder / "val2017").mkdir(parents=True)
    with pytest.raises(StorageError, match="val2017 is in the way"):
        Fetch(recipe, recipe.default, folder, host.address).run()
    assert (seen(folder), host.gets) == ({}, [])


def test_files_that_were_changed_are_named_and_kept(host: FileHost, folder: Path) -> None:
    recipe = set_of("scut-head", host)
    Fetch(recipe, recipe.default, folder, host.address).run()
    (folder / "labels/val/PartA_00003.txt").write_text("mine")
    (folder / "labels/val/PartB_00003.txt").unlink()
    with pytest.raises(StorageError, match=r"labels/val/PartA_00003.txt and 1 more was changed or removed") as refused:
        Fetch(recipe, recipe.default, folder, host.address).run()
    assert refused.value.hint.endswith("remove images, labels, data.yaml")
    assert (folder / "labels/val/PartA_00003.txt").read_text() == "mine"
    for entry in ("images", "labels"):
        shutil.rmtree(folder / entry)
    (folder / "data.yaml").unlink()
    assert Fetch(recipe, recipe.default, folder, host.address).run().made == ("yolo",)


def test_a_folder_that_was_moved_to_another_disk_is_read_again_once(host: FileHost, folder: Path) -> None:
    recipe = set_of("mnist", host)
    first = Fetch(recipe, recipe.default, folder, host.address).run()
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    for _ in range(2):
        assert Fetch(recipe, recipe.default, other, host.address).run() == dataclasses.replace(
            first, made=(), num_bytes_fetched=0
        )
    verified = Manifest.from_bytes((other / ".windlass-manifest.jsonl").read_bytes())
    assert verified.files["t10k-labels-idx1-ubyte"].version == version((other / "t10k-labels-idx1-ubyte").stat())


def test_an_unknown_layout_is_refused_with_those_that_are_known(host: FileHost, folder: Path) -> None:
    with pytest.raises(UsageError, match="mnist has no layout 'csv'\n  known are idx, torchvision"):
        Fetch(set_of("mnist", host), ["csv"], folder)
    assert not folder.exists()


def test_a_fetch_that_does_not_fit_on_the_disk_is_refused_before_it_begins(host: FileHost, folder: Path) -> None:
    recipe = set_of("mnist", host)
    layout = dataclasses.replace(recipe.layouts["idx"], num_bytes=1 << 60)
    huge = dataclasses.replace(recipe, layouts={"idx": layout})
    with pytest.raises(StorageError, match=r"needs about 0.0 GB .* and 1,152,921,504.6 GB for .* has [\d,.]+ GB free"):
        Fetch(huge, ["idx"], folder, host.address).run()
    assert host.gets == []


# -- interrupted ------------------------------------------------------------------------------------------------------


def test_two_fetches_to_one_folder_do_not_meet(host: FileHost, folder: Path) -> None:
    recipe = set_of("mnist", host)
    with (
        locked(folder / ".windlass", str(folder)),
        pytest.raises(StorageError, match=r"another copy to .* is under way"),
    ):
        Fetch(recipe, recipe.default, folder, host.address).run()
    assert host.gets == []


def test_a_full_disk_ends_a_conversion_and_costs_no_second_download(host: FileHost, tmp_path: Path) -> None:
    def convert(_files: object, _leave_out: LeaveOut) -> Iterator[NewFile]:
        yield NewFile("one", [bytes(1 << 16)] * 100)

    recipe = with_convert(set_of("mnist", host), convert)
    with small_disk(tmp_path / "disk", 4096) as disk:
        with pytest.raises(StorageError, match="No space left on device"):
            Fetch(recipe, ["both"], disk / "set", host.address).run()
        assert seen(disk / "set") == {}
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        assert Fetch(recipe, ["both"], disk / "set", host.address).run().made == ("both",)
    assert len(host.gets) == 4


def with_convert(recipe: Recipe, convert: Convert) -> Recipe:
    layout = Layout("", ("one", "two"), 100, convert)
    return dataclasses.replace(recipe, layouts={"both": layout})


def test_nothing_is_seen_of_a_conversion_that_fails_or_is_killed(host: FileHost, folder: Path) -> None:
    def convert(_files: object, _leave_out: LeaveOut) -> Iterator[NewFile]:
        yield NewFile("one", [b"1"])
        if errors:
            raise errors.pop()
        yield NewFile("two", [b"2"])

    errors: list[BaseException] = [Killed(), StorageError("the set is damaged")]
    recipe = with_convert(set_of("mnist", host), convert)
    for error in (StorageError, Killed):
        with pytest.raises(error):
            Fetch(recipe, ["both"], folder, host.address).run()
        assert seen(folder) == {}
    assert list(Fetch(recipe, ["both"], folder, host.address).run().made) == ["both"]
    assert {"one", "two"} < set(seen(folder))
    assert len(host.gets) == 4, "each file was fetched once"


@pytest.mark.parametrize("name", ["../x", "/x", "one/../../../x", "three", "one", "one\n"])
def test_a_converter_cannot_write_elsewhere(host: FileHost, folder: Path, name: str) -> None:
    def convert(_files: object, _leave_out: LeaveOut) -> Iterator[NewFile]:
        yield NewFile("one", [b"1"])
        yield NewFile(name, [b"2"])

    recipe = with_convert(set_of("mnist", host), convert)
    with pytest.raises(StorageError, match="is refused"):
        Fetch(recipe, ["both"], folder, host.address).run()
    assert seen(folder) == {}


def run_harness(*words: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.recipes.harness", *words],
        cwd=ROOT,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_fetch_that_is_killed_at_any_step_shows_whole_layouts_alone_and_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tiny.cifar10()
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for name, data in files.items():
        (mirror / name).write_bytes(data)
    monkeypatch.setitem(RECIPES, harness.NAME, tiny.recipe_for(harness.NAME, files))
    whole = harness.fetch(tmp_path / "whole", str(mirror))
    digest = whole.run().digest
    expected = seen(tmp_path / "whole")
    killed = tmp_path / "killed"
    killed.mkdir()
    out, err = run_harness("steps", str(killed), str(mirror)).communicate()
    assert int(out) > 40, err
    for step in range(int(out)):
        folder = killed / str(step)
        found = seen(folder) if folder.exists() else {}
        for entry in ("cifar-10-batches-bin", "cifar-10-batches-py"):
            there = {name for name in found if name.startswith(f"{entry}/")}
            assert there in (set(), {name for name in expected if name.startswith(f"{entry}/")}), step
        assert {**expected, **found} == expected, step
        assert harness.fetch(folder, str(mirror)).run().digest == digest, step
        assert seen(folder) == expected, step


@pytest.mark.slow
def test_a_fetch_that_is_killed_or_interrupted_inside_a_file_goes_on_there(
    host: FileHost, folder: Path, tmp_path: Path
) -> None:
    host.files = {**tiny.coco2017(), "val2017.zip": tiny.large_zip(LARGE_BYTES)}
    size = sum(map(len, host.files.values()))
    partial = folder / ".windlass/fetch/coco2017/downloads/val2017.zip.partial"
    words = ("main", "data", "fetch", "coco2017", str(folder), "--from", host.address)
    environ = {"TINY_LARGE": str(LARGE_BYTES), "WINDLASS_HOME": str(tmp_path / "home")}
    for number, (part, with_) in enumerate(((0.3, signal.SIGKILL), (0.7, signal.SIGINT)), 1):
        process = run_harness(*words, **environ)
        struck: list[int] = []  # of this process alone: a thread of the server may still send to the one before

        def strike(
            num_bytes: int,
            at: float = part * size,
            lost: int = number << 19,
            pid: int = process.pid,
            with_: signal.Signals = with_,
            struck: list[int] = struck,
        ) -> None:
            if num_bytes < at or struck:
                return
            struck.append(num_bytes)
            # What waits in the kernel was sent, and not received: it is let through before the kill.
            until(lambda: partial.exists() and partial.stat().st_size > num_bytes - lost)
            os.kill(pid, with_)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until then the kernel takes more for it

        host.sent = strike
        _, err = process.communicate()
        assert struck, err
        assert process.returncode == (-signal.SIGKILL if with_ is signal.SIGKILL else 130), err
        assert with_ is signal.SIGKILL or "interrupted: what was fetched is kept" in err
        assert seen(folder) == {}
    host.sent = lambda _num_bytes: None
    done = run_harness(*words, "-o", "json", **environ)
    out, err = done.communicate()
    assert done.returncode == 0, err
    assert host.num_bytes <= 1.02 * size
    assert '"made": ["coco"]' in out
    assert (folder / "val2017/1.jpg").stat().st_size == LARGE_BYTES
