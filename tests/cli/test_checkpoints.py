"""`checkpoints` and `rm` on hand-made folders in the format of `windlass.train.checkpoint`."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click.testing
import pytest
from click.shell_completion import ShellComplete
from tests.cli.conftest import Call
from tests.cli.test_json import hold
from tests.helpers.failing_disk import failing_reads

from windlass.actions.checkpoints import _by_torch
from windlass.cli.checkpoints import checkpoints
from windlass.cli.formatting import size
from windlass.cli.main import cli
from windlass.errors import WindlassError
from windlass.plan.compose import NO_NODES
from windlass.plan.plan import NO_PLAN
from windlass.plan.steps import FolderStep
from windlass.spec.job import Job
from windlass.train.checkpoint.chunks import export_safetensors
from windlass.train.checkpoint.files import list_checkpoints, seal


def tensors(**values: list[float]) -> bytes:
    """Returns a safetensors file of float32 vectors."""
    header, data = {}, b""
    for name, numbers in values.items():
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
        header[name] = {"dtype": "F32", "shape": [len(numbers)], "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def run_of(folder: Path) -> str:
    """Returns the run id of a `checkpoints` folder."""
    return folder.parent.name


def write(folder: Path, step: int, attempt: int = 1, **manifest: Any) -> Path:
    """Writes a checkpoint of one rank."""
    place = folder / f"step-{step:08d}-a{attempt}f3c1"
    place.mkdir(parents=True)
    data = tensors(**{"model.weight": [1.0, float(step)]})
    index = {
        "name": "model.weight",
        "dtype": "float32",
        "shape": [2],
        "offsets": [0],
        "sizes": [2],
        "begin": len(data) - 8,
    }
    contents = {"rank-0.safetensors": data, "rank-0.json": json.dumps({"tensors": {"model.weight": index}}).encode()}
    for name, data in contents.items():
        (place / name).write_bytes(data)
    facts = {name: {"bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"} for name, data in contents.items()}
    said = {
        "format": 1,
        "step": step,
        "epoch": 1,
        "world_size": 1,
        "created_at": 1_700_000_000.0 + step,
        "run_id": run_of(folder),
        "attempt": attempt,
        "files": facts,
        **manifest,
    }
    (place / "manifest.json").write_bytes(seal(said))
    return place


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


Failed = Callable[..., tuple[str, Path]]


@pytest.fixture
def failed(recorded: Callable[..., str], home: Path) -> Failed:
    """Provides a function that records an ended run (failed by default) and returns it with its checkpoint folder."""

    def record(exit_code: int = 1, **fields: Any) -> tuple[str, Path]:
        run_id = recorded(Job(name="failed", command=["false"], python=sys.executable, **fields), exit_code)
        return run_id, home / "runs" / run_id / "checkpoints"

    return record


def test_checkpoints_are_listed_newest_first_with_their_state(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    for step in (10, 20):
        write(folder, step)
    (folder / "step-00000030-a1f3c1").mkdir()
    (write(folder, 5) / "manifest.json").write_text("{")
    (folder / "my-own").mkdir()
    result = windlass("checkpoints", run_id, "-o", "json")
    hold("checkpoints", result.json)
    listed = [(one["step"], one["complete"]) for one in result.json["checkpoints"]]
    assert [step for step, is_whole in listed if is_whole] == [20, 10]
    assert sorted(step for step, is_whole in listed if not is_whole) == [5, 30]
    shown = windlass("checkpoints")
    assert "not finished" in shown.out
    assert "damaged: its manifest cannot be parsed" in shown.out
    assert {one["step"]: one["state"] for one in result.json["checkpoints"]} == {
        30: "unfinished",
        20: "complete",
        10: "complete",
        5: "damaged",
    }
    assert "and 1 other entry" in shown.err


def test_checkpoints_saved_by_the_script_are_pointed_to(windlass: Call, failed: Failed) -> None:
    run_id, _ = failed(checkpoint={"find": "checkpoint-*", "resume": "--resume {path}"})
    result = windlass("checkpoints", run_id)
    assert "find: checkpoint-* are not listed" in result.err
    assert f"windlass events {run_id}" in result.err


def test_list_without_checkpoints_succeeds(windlass: Call, failed: Failed) -> None:
    run_id, _ = failed()
    result = windlass("checkpoints", run_id)
    assert (result.code, f"{run_id} has no checkpoint" in result.out) == (0, True)
    assert windlass("checkpoints", run_id, "verify").code == 0
    assert windlass("checkpoints", run_id, "prune").code == 0
    refused = windlass("checkpoints", run_id, "export", "model.safetensors")
    assert (refused.code, "has no verified checkpoint" in refused.err) == (1, True)


@pytest.mark.parametrize("words", [(), ("list",), ("verify",), ("prune",), ("export", "m.pt")])
def test_missing_run_exits_with_102(windlass: Call, words: tuple[str, ...]) -> None:
    assert windlass("checkpoints", "nope", *words).code == 102


def test_damaged_checkpoint_is_listed_with_the_reason(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 10)
    flip(write(folder, 20) / "rank-0.safetensors")
    (write(folder, 30) / "rank-0.json").unlink()
    result = windlass("checkpoints", run_id, "verify")
    assert result.code == 1
    assert "rank-0.safetensors is damaged" in result.out
    assert "rank-0.json is missing" in result.out
    data = windlass("checkpoints", run_id, "verify", "-o", "json").json
    hold("checkpoints-verify", data)
    assert data["ok"] is False
    assert [one["name"] for one in data["checkpoints"] if not one["problems"]] == ["step-00000010-a1f3c1"]
    assert windlass("checkpoints", run_id, "verify", "10").code == 0
    assert windlass("checkpoints", run_id, "verify", "step-00000020-a1f3c1").code == 1


def test_unfinished_checkpoint_fails_verify_only_if_named(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 10)
    (folder / "step-00000030-a1f3c1").mkdir()
    assert windlass("checkpoints", run_id, "verify").code == 0
    result = windlass("checkpoints", run_id, "verify", "step-00000030-a1f3c1")
    assert (result.code, "its save was not finished" in result.out) == (1, True)


def test_unknown_or_ambiguous_checkpoint_name_is_refused(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 10)
    write(folder, 10, attempt=2)
    assert windlass("checkpoints", run_id, "verify", "99").code == 2
    several = windlass("checkpoints", run_id, "verify", "10")
    assert (several.code, "several" in several.err) == (2, True)


def test_prune_keeps_the_newest_verified_checkpoints(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    for step in (10, 20, 30):
        write(folder, step)
    flip(write(folder, 25) / "rank-0.safetensors")
    result = windlass("checkpoints", run_id, "prune", "--keep", "1", "-o", "json")
    hold("checkpoints-prune", result.json)
    assert sorted(result.json["removed"]) == ["step-00000010-a1f3c1", "step-00000020-a1f3c1", "step-00000025-a1f3c1"]
    assert [path.name for path in folder.iterdir()] == ["step-00000030-a1f3c1"]
    assert result.json["freed_bytes"] > 0


def test_prune_renames_a_damaged_checkpoint_until_a_newer_one_is_verified(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    for step in (10, 20):
        write(folder, step)
    flip(write(folder, 40) / "rank-0.safetensors")
    result = windlass("checkpoints", run_id, "prune", "--keep", "2", "-o", "json")
    assert (result.json["removed"], result.json["set_aside"]) == ([], ["step-00000040-a1f3c1"])
    shown = windlass("checkpoints", run_id).out
    assert "step-00000040-a1f3c1.damaged" in shown
    assert "damaged: set aside" in shown
    write(folder, 50)
    assert windlass("checkpoints", run_id, "prune", "--keep", "2").code == 0
    assert "step-00000040-a1f3c1.damaged" in {path.name for path in folder.iterdir()}, "one newer, two are kept"
    write(folder, 60)
    windlass("checkpoints", run_id, "prune", "--keep", "2")
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000050-a1f3c1", "step-00000060-a1f3c1"]


def test_prune_keeps_unreadable_checkpoints_and_those_of_other_runs(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    for step in (20, 30):
        write(folder, step)
    write(folder, 5, run_id="another-run")
    write(folder, 6, format=2)
    make_unreadable(write(folder, 7))
    make_unreadable(write(folder, 40))
    result = windlass("checkpoints", run_id, "prune", "--keep", "1", "--older-than", "1s", "-o", "json")
    assert result.json["removed"] == ["step-00000020-a1f3c1"]
    assert {int(path.name[5:13]) for path in folder.iterdir()} == {5, 6, 7, 30, 40}
    shown = windlass("checkpoints", run_id, "prune").out
    assert "step-00000006-a1f3c1 is unknown-format: not removed" in shown
    assert "step-00000040-a1f3c1 is unreadable: not removed" in shown


def test_size_and_age_of_an_unreadable_checkpoint_are_not_shown(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 20)
    with failing_reads(write(folder, 30), errno.EIO):
        (row,) = [line for line in windlass("checkpoints", run_id).out.splitlines() if "unreadable" in line]
    assert row.split()[:7] == ["step-00000030-a1f3c1", "30", "–", "–", "–", "–", "unreadable:"]


def make_unreadable(place: Path) -> None:
    """Makes reading the manifest fail, even for root: a socket cannot be opened (ENXIO)."""
    (place / "manifest.json").unlink()
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(place):  # the path of a socket must be short
        listener.bind("manifest.json")


def test_verify_distinguishes_unreadable_from_damaged(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 10)
    make_unreadable(write(folder, 20))
    result = windlass("checkpoints", run_id, "verify", "-o", "json")
    hold("checkpoints-verify", result.json)
    assert result.code == 1
    assert [one["state"] for one in result.json["checkpoints"]] == ["unreadable", "verified"]
    assert "ENXIO" in result.json["checkpoints"][0]["problems"][0]
    exported = windlass("checkpoints", run_id, "export", "m.safetensors")
    assert "warning: step-00000020-a1f3c1 is newer and unreadable" in exported.err


@pytest.mark.parametrize("kind", ["unreadable", "unknown"])
def test_a_run_whose_checkpoints_cannot_be_read_is_not_removed(windlass: Call, failed: Failed, kind: str) -> None:
    run_id, folder = failed()
    if kind == "unknown":
        write(folder, 10, format=2)
    else:
        make_unreadable(write(folder, 10))
    result = windlass("rm", run_id)
    assert (result.code, "1 checkpoint that cannot be read" in result.err) == (2, True)
    assert folder.exists()


def test_prune_never_removes_the_last_verified_checkpoint(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 10)
    flip(write(folder, 20) / "rank-0.safetensors")
    assert windlass("checkpoints", run_id, "prune", "--older-than", "1s").code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010-a1f3c1", "step-00000020-a1f3c1.damaged"]


def test_prune_of_only_damaged_checkpoints_removes_nothing(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    flip(write(folder, 20) / "rank-0.safetensors")
    assert windlass("checkpoints", run_id, "prune", "--keep", "1").code == 0
    assert (folder / "step-00000020-a1f3c1").exists()


def test_prune_keeps_the_number_set_by_the_job(windlass: Call, failed: Failed) -> None:
    _, folder = failed(checkpoint={"keep": 2})
    for step in (10, 20, 30):
        write(folder, step)
    assert windlass("checkpoints", "prune", "-o", "json").json["removed"] == ["step-00000010-a1f3c1"]


def test_invalid_age_is_refused(windlass: Call, failed: Failed) -> None:
    failed()
    result = windlass("checkpoints", "prune", "--older-than", "old")
    assert (result.code, "--older-than old" in result.err) == (2, True)


def test_export_writes_the_newest_verified_checkpoint(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 10)
    flip(write(folder, 20) / "rank-0.safetensors")
    result = windlass("checkpoints", run_id, "export", "m.safetensors", "-o", "json")
    assert result.code == 0, result.err
    hold("checkpoints-export", result.json)
    assert result.json["name"] == "step-00000010-a1f3c1"
    assert "warning: step-00000020-a1f3c1 is newer and damaged" in result.err
    data = Path("m.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert set(header) - {"__metadata__"} == {"weight"}
    assert struct.unpack("<2f", data[-8:]) == (1.0, 10.0)


def test_export_refuses_a_damaged_checkpoint(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    flip(write(folder, 20) / "rank-0.safetensors")
    result = windlass("checkpoints", run_id, "export", "20", "m.safetensors")
    assert (result.code, "step-00000020-a1f3c1 is damaged" in result.err) == (2, True)
    assert not Path("m.safetensors").exists()


@pytest.mark.parametrize(("path", "said"), [("m.bin", "ending"), ("no/m.pt", "not a folder")])
def test_export_to_an_invalid_path_is_refused(windlass: Call, failed: Failed, path: str, said: str) -> None:
    run_id, folder = failed()
    write(folder, 10)
    result = windlass("checkpoints", run_id, "export", path)
    assert (result.code, said in result.err) == (2, True)


def test_export_of_a_missing_part_lists_the_existing_ones(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 10)
    result = windlass("checkpoints", run_id, "export", "m.safetensors", "--part", "optim")
    assert (result.code, "no tensors of a part named 'optim', only of model" in result.err) == (2, True)


@pytest.mark.slow
def test_export_for_torch_uses_the_interpreter_of_the_job(windlass: Call, failed: Failed) -> None:
    import torch

    _, folder = failed()
    write(folder, 10)
    result = windlass("checkpoints", "export", "m.pt")
    assert result.code == 0, result.err
    state = torch.load("m.pt", weights_only=True)
    assert torch.equal(state["weight"], torch.tensor([1.0, 10.0]))
    assert [path.name for path in Path().iterdir()] == ["m.pt"]


def test_export_for_torch_without_the_jobs_interpreter_suggests_safetensors(tmp_path: Path) -> None:
    steps = (FolderStep("make /out", "/out", "/checkpoints"),)
    plan = replace(NO_PLAN, steps=steps, nodes=NO_NODES.replace(worker_python="/removed/python"))
    with pytest.raises(WindlassError) as raised:
        _by_torch(tmp_path / "t.safetensors", tmp_path / "m.pt", plan)
    assert (raised.value.message.endswith("is not on this machine"), raised.value.hint) == (
        True,
        "export to a file ending in .safetensors",
    )


def test_export_for_torch_runs_no_interpreter_named_by_another_machines_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user of the namespace may have written the plan of a run in a cluster."""
    for name in ("theirs", "bin/python"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$PYTHONPATH" > {tmp_path / name}.ran\n')
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/mine")
    nodes = NO_NODES.replace(worker_python=str(tmp_path / "theirs"), defaults={"PYTHONPATH": "/theirs"})
    plan = replace(NO_PLAN, engine="kubernetes", nodes=nodes)
    _by_torch(tmp_path / "t.safetensors", tmp_path / "m.pt", plan)
    assert not (tmp_path / "theirs.ran").exists()
    assert (tmp_path / "bin/python.ran").read_text() == "/mine\n", "the active environment's"


@pytest.mark.slow
def test_export_for_torch_of_a_cluster_run_needs_only_torch(tmp_path: Path) -> None:
    import torch

    write(tmp_path, 10)
    [found] = list_checkpoints(str(tmp_path))
    export_safetensors(found, tmp_path / "t.safetensors", part="model")
    _by_torch(tmp_path / "t.safetensors", tmp_path / "m.pt", replace(NO_PLAN, engine="kubernetes"))
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    assert torch.equal(state["weight"], torch.tensor([1.0, 10.0]))


# -- rm ---------------------------------------------------------------------------------------------------------------


def test_only_verified_checkpoint_of_an_unfinished_run_is_kept(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 1234)
    result = windlass("rm", run_id)
    assert (result.code, "the only checkpoint of step 1,234" in result.err) == (2, True)
    assert f"windlass rm --force {run_id}" in result.err
    assert folder.exists()
    assert windlass("rm", "--force", run_id).code == 0
    assert not folder.exists()


def test_nothing_is_removed_if_one_of_several_is_refused(windlass: Call, failed: Failed) -> None:
    first, _ = failed()
    second, folder = failed()
    write(folder, 10)
    assert windlass("rm", first, second).code == 2
    assert windlass("status", first).code == 0


def test_a_run_that_succeeded_is_removed_with_its_checkpoints(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed(exit_code=0)
    write(folder, 10)
    assert windlass("rm", run_id).code == 0


def test_run_with_only_damaged_checkpoints_is_removed(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    flip(write(folder, 10) / "rank-0.safetensors")
    assert windlass("rm", run_id).code == 0


def test_run_with_checkpoints_saved_by_its_script_is_kept(windlass: Call, failed: Failed) -> None:
    run_id, folder = failed()
    (folder / "last.ckpt").write_text("weights")
    result = windlass("rm", run_id)
    assert (result.code, "1 entry in its checkpoint folder" in result.err) == (2, True)


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("RUN",),
        ("RUN", "list"),
        ("-o", "json", "RUN"),
        ("RUN", "-o", "json"),
        ("list", "-o", "json"),
        ("-o", "yaml"),
        ("RUN", "verify", "NAME"),
        ("verify", "NAME"),
    ],
)
def test_run_argument_may_come_first_or_be_omitted(words: tuple[str, ...]) -> None:
    context = checkpoints.make_context("checkpoints", list(words))
    assert context.params["run"] == ("RUN" if "RUN" in words else "")


@pytest.mark.parametrize("words", [["--help"], ["RUN", "--help"], ["verify", "--help"]])
def test_every_help_option_prints_help(words: list[str]) -> None:
    result = click.testing.CliRunner().invoke(checkpoints, words)
    assert (result.exit_code, "Usage:" in result.output) == (0, True)


@pytest.mark.parametrize(
    ("words", "begun", "offered"),
    [
        (["checkpoints"], "", {"RUN", "export", "list", "prune", "verify"}),
        (["checkpoints"], "ver", {"verify"}),
        (["checkpoints", "RUN"], "", {"export", "list", "prune", "verify"}),
        (["checkpoints", "RUN", "verify"], "", {"step-00000010-a1f3c1"}),
        (["checkpoints", "verify"], "step", {"step-00000010-a1f3c1"}),
        (["resume", "RUN", "--from"], "", {"step-00000010-a1f3c1"}),
        (["cost"], "", {"RUN"}),
        (["resume"], "", {"RUN"}),
        (["stop"], "", set()),
    ],
)
def test_completion_offers_runs_commands_and_checkpoints(
    failed: Failed, words: list[str], begun: str, offered: set[str]
) -> None:
    run_id, folder = failed()
    write(folder, 10)
    typed = [run_id if word == "RUN" else word for word in words]
    found = ShellComplete(cli, {}, "windlass", "_WINDLASS_COMPLETE").get_completions(typed, begun)
    assert {item.value for item in found} == {run_id if word == "RUN" else word for word in offered}


def test_completion_offers_checkpoints_of_the_named_run(failed: Failed) -> None:
    run_id, folder = failed()
    write(folder, 10)
    failed()  # the newest run, which has no checkpoint
    found = ShellComplete(cli, {}, "windlass", "_WINDLASS_COMPLETE").get_completions(["resume", run_id, "--from"], "")
    assert [item.value for item in found] == ["step-00000010-a1f3c1"]


def test_unknown_subcommand_is_refused(windlass: Call, failed: Failed) -> None:
    run_id, _ = failed()
    assert windlass("checkpoints", run_id, "verfy").code == 2


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (500 << 20, "500 MiB"),
        (20 << 30, "20 GiB"),
        (3 << 50, "3,072 TiB"),
    ],
)
def test_sizes_are_short(num_bytes: int, said: str) -> None:
    assert size(num_bytes) == said
