"""`data fetch` of each recipe, with small files of the same formats at a mirror on loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import Call, loaded_by
from tests.cli.test_json import hold
from tests.recipes import tiny
from tests.servers.http_files import FileHost, Reply, file_host

from windlass.recipes.registry import RECIPES
from windlass.storage.manifest import IN_FOLDER

SEEN = {
    "mnist": {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
    "cifar10": {"cifar-10-batches-bin", "train", "validation", "eval"},
    "coco2017": {"train2017", "val2017", "annotations"},
    "imagenet-r50": {"pretrained-models"},
    "scut-head": {"images", "labels", "data.yaml"},
}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileHost]:
    """A mirror of all sets, and recipes that have the checksums of its files."""
    files: dict[str, bytes] = {}
    for name, make in tiny.SETS.items():
        found = make()
        files |= found
        monkeypatch.setitem(RECIPES, name, tiny.recipe_for(name, found))
    with file_host(files) as made:
        yield made


@pytest.mark.parametrize("name", tiny.SETS)
def test_each_set_is_fetched_verified_and_laid_out(name: str, windlass: Call, host: FileHost) -> None:
    first = windlass("data", "fetch", name, "--from", host.address, "-o", "json")
    assert first.code == 0, first.err
    hold("data-fetch", first.json)
    folder = Path("data", name)
    assert first.json["folder"] == str(folder.resolve())
    assert {one.name for one in folder.iterdir()} == {*SEEN[name], f"LICENCE-{name}.txt", ".windlass", IN_FOLDER}
    assert first.json["made"] == first.json["layouts"] == list(RECIPES[name].default)
    for one in first.json["sources"]:
        assert one["sha256"] == hashlib.sha256(host.files[one["name"]]).hexdigest()
        assert bool(one["verified_by"]) == (name not in ("imagenet-r50", "scut-head"))
    num_gets = len(host.gets)
    second = windlass("data", "fetch", name, "--from", host.address, "-o", "json").json
    assert (second["made"], second["fetched_bytes"], len(host.gets)) == ([], 0, num_gets)
    assert second["digest"] == first.json["digest"]
    verified = windlass("data", "verify", str(folder), "-o", "json").json
    assert (verified["ok"], verified["digest"], verified["extra"]) == (True, first.json["digest"], [])


def test_licence_and_citation_come_first_and_checksums_at_the_end(windlass: Call, host: FileHost) -> None:
    said = windlass("data", "fetch", "cifar10", "data/c", "--from", host.address, "--layout", "tfrecord")
    recipe = RECIPES["cifar10"]
    lines = said.out.splitlines()
    assert lines[0] == recipe.title
    assert lines[1:4] == [f"licence   {recipe.licence}", f"citation  {recipe.citation}", f"homepage  {recipe.homepage}"]
    [sha256, _] = recipe.downloads[0].checksums
    assert f"sha256 {sha256.removeprefix('sha256:')}  as published by the authors (md5) and Keras (sha256)" in lines[5]
    assert lines[6].startswith(f"{Path('data/c').resolve()}: tfrecord: 3 files, ")
    assert "nothing to fetch" in windlass("data", "fetch", "cifar10", "data/c", "--layout", "tfrecord").out


def test_a_set_without_a_known_checksum_says_so(windlass: Call, host: FileHost) -> None:
    out = windlass("data", "fetch", "imagenet-r50", "--from", host.address).out
    sha256 = hashlib.sha256(host.files["ImageNet-R50-AlignPadding.npz"]).hexdigest()
    assert f"sha256 {sha256}  compare it: no checksum is known" in out


def test_checksums_hold_for_a_mirror_too(windlass: Call, host: FileHost) -> None:
    name = "train-labels-idx1-ubyte.gz"
    host.files[name] = host.files[name][:-1] + b"x"
    refused = windlass("data", "fetch", "mnist", "--from", host.address)
    assert refused.code == 1
    assert "is damaged, or not the file of the recipe: its sha256 is" in refused.err
    assert [one.name for one in Path("data/mnist").iterdir()] == [".windlass"]


def test_a_mirror_may_be_a_folder(windlass: Call, host: FileHost) -> None:
    Path("downloads").mkdir()
    for name, data in tiny.scut_head().items():
        Path("downloads", name).write_bytes(data)
    assert windlass("data", "fetch", "scut-head", "--from", "downloads").code == 0
    assert len(list(Path("data/scut-head/labels").rglob("*.txt"))) == 10
    assert host.gets == []


def test_what_the_set_lacks_is_named(windlass: Call, host: FileHost) -> None:
    host.files["val2017.zip"] = tiny.zipped({"val2017/1.jpg": b"1", "other/2.jpg": b"2"})
    RECIPES["coco2017"] = tiny.recipe_for("coco2017", host.files)
    said = windlass("data", "fetch", "coco2017", "--from", host.address)
    assert said.code == 0
    assert "1 file left out:\n  other/2.jpg  it is not below val2017/\n" in said.out


def test_to_copies_the_folder_on(windlass: Call, host: FileHost) -> None:
    words = ("data", "fetch", "mnist", "--from", host.address, "--to", "bucket")
    done = windlass(*words, "-o", "json").json
    hold("data-fetch", done)
    assert done["uploaded"]["copied_files"] == 5
    assert done["uploaded"]["digest"] == done["digest"]
    said = windlass(*words)
    assert "nothing to copy; 5 files unchanged" in said.out


def test_without_a_name_all_are_listed(windlass: Call) -> None:
    listed = windlass("data", "fetch", "-o", "json").json
    hold("data-fetch", listed)
    assert [one["name"] for one in listed["recipes"]] == list(RECIPES)
    assert [one["download_bytes"] for one in listed["recipes"]] == [11594722, 170498071, 20405354669, None, None]
    out = windlass("data", "fetch").out
    for one in RECIPES.values():
        assert one.name in out
        assert one.licence in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mnits",), "there is no recipe 'mnits'\n  did you mean mnist?"),
        (("zzz",), "known are mnist, cifar10"),
        (("mnist", "--layout", "csv"), "mnist has no layout 'csv'\n  known are idx, torchvision"),
        (("mnist", "s3://bucket/x"), "is no folder of this machine"),
        (("mnist", "--to", "ftp://x"), "ftp:// is no known kind of store"),
        (("mnist", "--from", "ftp://x"), "ftp:// is no address of a mirror"),
        (("--to", "s3://x"), "the name of a set is missing"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_2_and_leaves_nothing(
    windlass: Call, words: tuple[str, ...], said: str
) -> None:
    done = windlass("data", "fetch", *words)
    assert done.code == 2
    assert said in done.err
    assert not Path("data").exists()


def test_a_host_that_refuses_is_one_message(windlass: Call, host: FileHost) -> None:
    host.reply = lambda _get: Reply(403)
    failed = windlass("data", "fetch", "mnist", "--from", host.address, "-o", "json")
    error = json.loads(failed.err)["error"]
    assert (failed.code, error["code"]) == (1, 1)
    assert error["message"] == f"{host.address}/train-images-idx3-ubyte.gz: the host answers 403 Forbidden"


@pytest.mark.parametrize(
    ("words", "index", "found"),
    [
        ("windlass data fetch c", 3, {"cifar10", "coco2017"}),
        ("windlass data fetch cifar10 --layout t", 5, {"tfrecord", "torchvision"}),
    ],
)
def test_names_and_layouts_are_completed(
    windlass: Call, monkeypatch: pytest.MonkeyPatch, words: str, index: int, found: set[str]
) -> None:
    monkeypatch.setenv("_WINDLASS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(index))
    assert {line.partition(",")[2] for line in windlass().out.split()} == found


def test_recipes_are_not_imported_by_other_commands(environ: Mapping[str, str]) -> None:
    assert not [one for one in loaded_by("data", "ls", environ=environ) if one.startswith("windlass.recipes")]
