"""Which files written by torch count as verified checkpoints, and which one is chosen."""

from __future__ import annotations

import errno
import json
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.deep import deep_tree
from tests.helpers.failing_disk import failing_reads
from torch.distributed.checkpoint.state_dict_saver import save

from windlass.worker.protocol import NodeSpec, RankSpec, ResumeSpec
from windlass.worker.resume import PAUSES, add_resume_arguments, candidates, choose, problem_of, step_of

STATE = {"model": {"weight": torch.arange(24.0).reshape(4, 6)}, "step": 7}


def spec_of(folder: Path, find: str = "model-*.pt", **more: Any) -> ResumeSpec:
    code = folder.parent / "code"
    code.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    return ResumeSpec(find, ("--resume", "{path}"), str(folder), str(code), own=(str(folder),), **more)


def saved(path: Path, at: float | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(STATE, path)
    if at is not None:
        os.utime(path, (at, at))
    return path


def safetensors(path: Path, tensor: bytes = bytes(96)) -> Path:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [24], "data_offsets": [0, 96]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + tensor)
    return path


def of_trainer(folder: Path, step: int = 40) -> Path:
    """Creates a checkpoint folder of transformers' Trainer, with its files in their order."""
    folder.mkdir()
    safetensors(folder / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        saved(folder / name)
    (folder / "config.json").write_text("{}")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


# -- files ------------------------------------------------------------------------------------------------------------


def test_file_of_torch_save_is_verified_and_no_part_of_it_is(tmp_path: Path) -> None:
    whole = saved(tmp_path / "model.pt")
    assert problem_of(str(whole)) == ""
    data, part = whole.read_bytes(), tmp_path / "part.pt"
    for length in range(0, len(data), 7):
        part.write_bytes(data[:length])
        assert problem_of(str(part)), length


def test_file_that_torch_saved_without_checksums_is_verified_by_its_sizes(tmp_path: Path) -> None:
    whole, part = tmp_path / "model.pt", tmp_path / "part.pt"
    torch.serialization.set_crc32_options(False)
    try:
        saved(whole)
    finally:
        torch.serialization.set_crc32_options(True)
    assert problem_of(str(whole)) == ""
    data = whole.read_bytes()
    for length in range(0, len(data), 7):
        part.write_bytes(data[:length])
        assert problem_of(str(part)), length
    part.write_bytes(data[:128] + data[192:])
    assert problem_of(str(part))


def test_a_flipped_bit_is_found_wherever_it_would_change_what_is_loaded(tmp_path: Path) -> None:
    flipped, weight, refused = tmp_path / "flipped.pt", torch.arange(1024.0), 0
    torch.save({"weight": weight}, flipped)
    data = flipped.read_bytes()
    places = range(0, len(data), 19)
    for place in places:
        flipped.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        if problem_of(str(flipped)):
            refused += 1
            continue
        try:
            loaded = torch.load(flipped, weights_only=True)
        except Exception:  # loading fails, so no wrong weights are trained
            continue
        assert torch.equal(loaded["weight"], weight)
    assert refused > len(places) // 2


def test_old_pickles_and_other_files_cannot_be_verified(tmp_path: Path) -> None:
    old, other = tmp_path / "old.pt", tmp_path / "weights.h5"
    torch.save(STATE, old, _use_new_zipfile_serialization=False)
    other.write_bytes(b"\x89HDF\r\n\x1a\n")
    assert "torch.save writes zip files since torch 1.6" in problem_of(str(old))
    assert "neither a torch.save nor a safetensors file" in problem_of(str(other))
    assert problem_of(str(tmp_path / "nowhere.pt")) == "it does not exist"


def test_safetensors_file_must_have_the_length_in_its_header(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "model.safetensors")
    assert problem_of(str(path)) == ""
    data = path.read_bytes()
    for other in (*(data[:length] for length in range(len(data))), data + b"x"):
        path.write_bytes(other)
        assert problem_of(str(path)), len(other)


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    assert "ends within its header" in problem_of(str(path))


# -- folders ----------------------------------------------------------------------------------------------------------


def test_folder_of_the_trainer_is_verified_once_its_state_is_written(tmp_path: Path) -> None:
    folder = of_trainer(tmp_path / "checkpoint-40")
    assert problem_of(str(folder)) == ""
    assert step_of(str(folder)) == 40
    (folder / "trainer_state.json").unlink()
    assert "there is no trainer_state.json" in problem_of(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state_1.pth", "trainer_state.json"])
def test_folder_with_a_truncated_file_is_refused_with_the_file_name(tmp_path: Path, name: str) -> None:
    folder = of_trainer(tmp_path / "checkpoint-40")
    os.truncate(folder / name, (folder / name).stat().st_size // 2)
    assert problem_of(str(folder)).startswith(f"{name}: ")


def test_missing_weights_are_reported(tmp_path: Path) -> None:
    folder = of_trainer(tmp_path / "checkpoint-40")
    (folder / "model.safetensors").unlink()
    assert problem_of(str(folder)) == "there are no weights"
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ab", shards, strict=True))})
    )
    safetensors(folder / shards[0])
    assert f"it names {shards[1]}, which does not exist" in problem_of(str(folder))
    safetensors(folder / shards[1])
    assert problem_of(str(folder)) == ""


@pytest.mark.parametrize("name", ["zero_pp_rank_0_mp_rank_00_model_states.pt", "mp_rank_00_model_states.pt"])
def test_weights_of_the_trainer_may_be_in_a_folder_of_deepspeed(tmp_path: Path, name: str) -> None:
    folder = of_trainer(tmp_path / "checkpoint-40")
    (folder / "model.safetensors").unlink()
    saved(folder / "global_step40" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    assert problem_of(str(folder)) == "there are no weights"
    weights = saved(folder / "global_step40" / name)
    assert problem_of(str(folder)) == ""
    os.truncate(weights, weights.stat().st_size // 2)
    assert problem_of(str(folder)).startswith(f"global_step40/{name}: ")


def test_folder_of_distributed_checkpoint_needs_its_metadata(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="single process"):
        save({"weight": torch.arange(24.0)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert problem_of(str(tmp_path / "dcp")) == ""
    (tmp_path / "dcp" / ".metadata").unlink()
    assert problem_of(str(tmp_path / "dcp"))


# -- which one --------------------------------------------------------------------------------------------------------


def test_newest_verified_checkpoint_is_chosen_and_refused_ones_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step, at in ((900, 3.0), (1000, 3.0), (1100, 1.0), (50, 4.0)):
        saved(folder / f"model-{step}.pt", at)
    torn = folder / "model-50.pt"
    os.truncate(torn, 300)
    os.utime(torn, (4.0, 4.0))
    choice = choose(spec_of(folder), since=0.0)
    assert choice.words == ("--resume", str(folder / "model-1000.pt"))
    assert [(event["action"], event["name"]) for event in choice.events] == [
        ("refused", "model-50.pt"),
        ("restored", "model-1000.pt"),
    ]
    assert choice.events[1]["bytes"] == (folder / "model-1000.pt").stat().st_size


def test_no_arguments_are_added_without_a_verified_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert choose(spec_of(folder), since=0.0) == (None, (), ())
    saved(folder / "model-1.pt")
    os.truncate(folder / "model-1.pt", 100)
    assert choose(spec_of(folder), since=0.0).words == ()


def test_link_to_a_checkpoint_is_not_a_second_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved(folder / "epoch=1-step=20.ckpt")
    (folder / "last.ckpt").symlink_to("epoch=1-step=20.ckpt")
    (folder / "gone.ckpt").symlink_to("nowhere.ckpt")
    assert len(candidates(spec_of(folder, "*.ckpt"), since=0.0)) == 1


def test_pattern_with_a_folder_is_also_searched_in_the_code_folder(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    request = spec_of(folder, "saved/model-*.pt")
    own = saved(folder / "saved" / "model-1.pt", at=50.0)
    old = saved(tmp_path / "code" / "saved" / "model-2.pt", at=90.0)
    assert candidates(request, since=100.0) == [str(own)]
    os.utime(old, (110.0, 110.0))
    assert candidates(request, since=100.0) == [str(old), str(own)]
    saved(tmp_path / "code" / "model-3.pt")
    assert candidates(spec_of(folder, "model-*.pt"), since=0.0) == []


def test_folders_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "[a] {path} *"
    saved(folder / "model-1.pt")
    assert choose(spec_of(folder), since=0.0).words == ("--resume", str(folder / "model-1.pt"))


def test_an_option_without_a_path_is_added_once_there_is_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    request = spec_of(folder).replace(words=("--init_from=resume",))
    assert choose(request, 0.0).words == ()
    saved(folder / "model-1.pt")
    assert choose(request, 0.0).words == ("--init_from=resume",)
    with pytest.raises(ValueError, match=r"cannot resume from model-1.pt: checkpoint.resume has no \{path\}"):
        choose(request.replace(named="model-1.pt", named_at=0.0), 0.0)


@pytest.mark.parametrize("named", ["model-1.pt", "{folder}/model-1.pt"])
def test_requested_checkpoint_is_chosen_over_a_newer_one(tmp_path: Path, named: str) -> None:
    folder = tmp_path / "checkpoints"
    saved(folder / "model-1.pt", at=1.0)
    saved(folder / "model-2.pt", at=2.0)
    request = spec_of(folder, named=named.replace("{folder}", str(folder)), named_at=10.0)
    assert choose(request, 0.0).path == str(folder / "model-1.pt")


def test_checkpoint_saved_after_the_request_is_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step, at in ((1, 1.0), (9, 9.0), (2, 12.0)):
        saved(folder / f"model-{step}.pt", at)
    request = spec_of(folder, named="model-1.pt", named_at=10.0)
    assert choose(request, 0.0).path == str(folder / "model-2.pt")
    os.truncate(folder / "model-2.pt", 100)
    os.utime(folder / "model-2.pt", (12.0, 12.0))
    choice = choose(request, 0.0)
    assert (choice.path, choice.events[0]["name"]) == (str(folder / "model-1.pt"), "model-2.pt")


def test_requested_checkpoint_must_be_verified(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved(folder / "model-2.pt")
    with pytest.raises(ValueError, match=r"cannot resume from model-1\.pt: it does not exist"):
        choose(spec_of(folder, named="model-1.pt", named_at=float("inf")), 0.0)


# -- nothing matches --------------------------------------------------------------------------------------------------


def events_of(request: ResumeSpec, attempt: int, since: float = 0.0) -> list[Mapping[str, Any]]:
    ranks = (RankSpec(0, 0, ("python", "train.py"), {}),)
    spec = NodeSpec(0, "train.py", "python", "/", {}, ranks, 1.0, resume=request, attempt=attempt, since=since)
    return list(add_resume_arguments([spec])[0].found)


def test_pattern_without_a_match_is_reported_from_the_second_attempt_on(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    request = spec_of(folder, "checkpoint-*")
    for name in ("chkpt-900", "chkpt-1000", "logs", "a.txt", "b.txt", "c.txt", "checkpoints-1"):
        (folder / name).mkdir()
    assert events_of(request, attempt=1) == []
    assert events_of(request, attempt=2) == [
        {
            "action": "missing",
            "find": "checkpoint-*",
            "folder": str(folder),
            "entries": 7,
            "near": ["checkpoints-1", "chkpt-900", "chkpt-1000", "c.txt", "logs"],
        },
    ]


@pytest.mark.parametrize(
    ("find", "where"),
    [("model-*.pt", "checkpoints"), ("runs/v_*/model-*.pt", "code/runs"), ("{tmp}/other/**/model-*.pt", "other")],
)
def test_missing_event_names_the_searched_folder(find: str, where: str, tmp_path: Path) -> None:
    request = spec_of(tmp_path / "checkpoints", find.replace("{tmp}", str(tmp_path)))
    [event] = events_of(request, attempt=2)
    assert (event["folder"], event["near"], event["entries"]) == (str(tmp_path / where), [], 0)


def test_pattern_may_start_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "a[d]a"))
    request = spec_of(tmp_path / "checkpoints", "~/saved/model-*.pt")
    [event] = events_of(request, attempt=2)
    assert (event["action"], event["find"]) == ("missing", request.find)
    path = saved(tmp_path / "a[d]a" / "saved" / "model-2.pt")
    assert choose(request, since=0.0).path == str(path)


def test_checkpoints_of_an_earlier_run_are_counted_as_older(tmp_path: Path) -> None:
    request = spec_of(tmp_path / "checkpoints", "saved/model-*.pt")
    saved(tmp_path / "code" / "saved" / "model-2.pt", at=90.0)
    [event] = events_of(request, attempt=2, since=100.0)
    assert (event["folder"], event["near"], event["older"]) == (str(tmp_path / "code/saved"), ["model-2.pt"], 1)


def test_damaged_checkpoint_is_refused_and_not_missing(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    request = spec_of(folder)
    (folder / "model-1.pt").write_bytes(b"")
    assert [event["action"] for event in events_of(request, attempt=2)] == ["refused", "none-verified"]


def test_unrelated_zip_file_in_the_folder_is_accepted(tmp_path: Path) -> None:
    folder = of_trainer(tmp_path / "checkpoint-40")
    with zipfile.ZipFile(folder / "extra.tar", "w") as file:
        file.writestr("note", "kept")
    assert problem_of(str(folder)) == ""


# -- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
def test_unreadable_folder_is_read_again(tmp_path: Path, number: int) -> None:
    request, pauses = spec_of(tmp_path / "checkpoints"), list[float]()
    newest = saved(tmp_path / "checkpoints" / "model-2.pt")
    with failing_reads(tmp_path / "checkpoints", number) as disk:

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                disk.end()

        assert choose(request, 0.0, sleep).path == str(newest)
    assert pauses == list(PAUSES[:3])


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def test_unreadable_folder_within_a_checkpoint_is_read_again(tmp_path: Path, number: int) -> None:
    request, pauses = spec_of(tmp_path / "checkpoints", "checkpoint-*"), list[float]()
    folder = of_trainer(tmp_path / "checkpoints" / "checkpoint-40")
    (folder / "model.safetensors").unlink()
    saved(folder / "global_step40" / "mp_rank_00_model_states.pt")
    with failing_reads(folder / "global_step40", number) as disk:

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                disk.end()

        assert choose(request, 0.0, sleep).path == str(folder)
    assert pauses == list(PAUSES[:2])


def test_folder_without_permission_is_no_checkpoint(tmp_path: Path) -> None:
    """A pattern may match `lost+found`, which only root can read."""
    request, pauses = spec_of(tmp_path / "checkpoints", "*"), list[float]()
    (tmp_path / "checkpoints" / "lost+found" / "inner").mkdir(parents=True)
    with failing_reads(tmp_path / "checkpoints" / "lost+found" / "inner", errno.EACCES):
        assert choose(request, 0.0, pauses.append).path is None
    assert not pauses


def test_permanently_unreadable_checkpoint_is_an_error_with_its_path(tmp_path: Path) -> None:
    request, pauses = spec_of(tmp_path / "checkpoints", "*/trainer_state.json"), list[float]()
    of_trainer(tmp_path / "checkpoints" / "checkpoint-40")
    with failing_reads(tmp_path / "checkpoints", errno.EIO), pytest.raises(OSError, match="checkpoints") as raised:
        choose(request, 0.0, pauses.append)
    assert raised.value.errno == errno.EIO
    assert pauses == list(PAUSES)


def test_matching_folder_may_contain_any_tree(tmp_path: Path) -> None:
    """A broad pattern matches folders that are not checkpoints, which must not end the supervisor."""
    folder = tmp_path / "checkpoints"
    request = spec_of(folder, "*")
    (folder / "tree").mkdir()
    (folder / "tree" / "loop").symlink_to("loop")
    (folder / "tree" / "up").symlink_to("..")
    saved(folder / "model-1.pt", at=2e9)
    with deep_tree(folder / "tree"):
        assert choose(request, 0).path == str(folder / "model-1.pt")
