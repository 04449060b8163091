"""The emulation copies channels and checkpoints to containers, and uploads checkpoints and artifacts."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

from tests.engines.sagemaker.twin.jobs import ML, ended, output, request, says, steps
from tests.helpers.disk import small_disk
from tests.helpers.until import until

from windlass.engines.sagemaker.twin.service import Twin


def channel(name: str, uri: str) -> dict[str, Any]:
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}}


def write(folder: Path, *names: str) -> str:
    """Writes files whose content is their name; returns the URI of their folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return f"file://{folder}"


LISTS = f"cd {ML}/input/data; find . -type f | sort; cat {ML}/input/config/inputdataconfig.json"


def test_each_host_gets_whole_channel(twin: Twin, home: Path) -> None:
    names = ["a", "b/c", "b/d", "e"]
    uri = write(home / "data", *names)
    channels = [channel("all", uri), channel("one", f"{uri}/b/c")]
    twin.create(request(home, "data", LISTS, count=2, InputDataConfig=channels))
    assert ended(twin, "data")["TrainingJobStatus"] == "Completed"
    for host in ("algo-1", "algo-2"):
        *files, config = output(twin, "data", host)
        assert files == [*(f"./all/{name}" for name in names), "./one/c"]
        assert '"one": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"' in config


def test_a_channel_without_data_fails_the_job_before_a_container_starts(home: Path) -> None:
    twin = Twin(home, os.environ)
    twin.create(request(home, "empty", "echo up", InputDataConfig=[channel("training", f"file://{home}/none")]))
    found = ended(twin, "empty")
    assert found["FailureReason"].startswith("ClientError: Data download failed: ")
    assert str(home / "none") in found["FailureReason"]
    assert "Training" not in steps(found)
    assert twin.log_streams("empty") == []


def test_checkpoints_are_fetched_at_start_and_uploaded_while_container_runs(twin: Twin, home: Path) -> None:
    uri = write(home / "saved", "step-1")
    script = (
        f"cd {ML}/ck; ls; echo two > step-2; while [ ! -e {home}/go ]; do sleep 0.05; done; echo 3 > step-2; rm step-1"
    )
    twin.create(request(home, "ck", script, CheckpointConfig={"S3Uri": uri, "LocalPath": "/opt/ml/ck"}))
    says(twin, "ck", "step-1")
    until(lambda: (home / "saved/step-2").exists())
    (home / "go").touch()
    assert ended(twin, "ck")["TrainingJobStatus"] == "Completed"
    assert {one.name: one.read_text() for one in (home / "saved").iterdir()} == {"step-1": "step-1", "step-2": "3\n"}


def test_interrupted_spot_job_restarts_from_checkpoints(twin: Twin, home: Path) -> None:
    script = f"""trap 'echo saved > {ML}/checkpoints/step; exit 0' TERM
                 if [ -e {ML}/checkpoints/step ]; then ls {ML}/model; echo resumed; exit 0; fi
                 touch {ML}/model/of-the-first-start; echo up; while :; do sleep 0.05; done"""
    config = {"S3Uri": f"file://{home}/saved", "LocalPath": "/opt/ml/checkpoints"}
    twin.create(
        request(
            home,
            "spot",
            script,
            EnableManagedSpotTraining=True,
            CheckpointConfig=config,
            StoppingCondition={"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 3600},
        )
    )
    says(twin, "spot", "up")
    twin.interrupt("spot")
    found = ended(twin, "spot")
    assert found["TrainingJobStatus"] == "Completed"
    assert steps(found) == [
        "Starting",
        "Downloading",
        "Training",
        "Interrupted",
        "Restarting",
        "Downloading",
        "Training",
        "Uploading",
        "Completed",
    ]
    first, second = twin.log_streams("spot")
    assert [[text for _, text in twin.read_log(one).lines] for one in (first, second)] == [["up"], ["resumed"]]


def test_models_of_all_hosts_are_merged_without_files_from_outside(twin: Twin, home: Path) -> None:
    (home / "secret").mkdir()
    (home / "secret/key").write_text("secret")
    config = f"{ML}/input/config/resourceconfig.json"
    script = f"""cd {ML}/model; me=$(grep -o '"current_host": "[^"]*"' {config} | cut -d '"' -f 4)
                 echo $me | tee same of-$me; echo {{}} > equal; ln -s of-$me link-$me; ln of-$me hard-$me
                 ln -s {home}/secret out-$me; mkfifo pipe-$me
                 rmdir {ML}/output/data; ln -s {home}/secret {ML}/output/data"""
    twin.create(request(home, "model", script, count=2))
    found = ended(twin, "model")
    assert found["TrainingJobStatus"] == "Completed", (found, output(twin, "model"))
    one, two = twin.describe("model")["WindlassHosts"]["names"]
    with tarfile.open(home / "store/model/output/model.tar.gz") as tar:
        regular = {member.name for member in tar if member.isreg()}
        assert regular == {"same", "equal", f"of-{one}", f"of-{two}", f"hard-{one}", f"hard-{two}"}
        assert {member.name: member.linkname for member in tar if not member.isreg()} == {
            f"link-{one}": f"of-{one}",
            f"link-{two}": f"of-{two}",
        }
        same = tar.extractfile("same")
        assert same is not None
        assert same.read().decode() == f"{one}\n"
    assert sorted(found["WindlassSkipped"]) == sorted(
        [
            *(f"model/out-{name}: it is a link that leads out" for name in (one, two)),
            *(f"model/pipe-{name}: it is neither file, folder nor link" for name in (one, two)),
            "model/same: another host has a file of that name",
            *(f"output/data of {name}: it is no longer a folder" for name in ("algo-1", "algo-2")),
        ]
    )
    assert {one.name for one in (home / "store/model/output").iterdir()} == {"model.tar.gz"}


def test_file_and_folder_of_same_name_do_not_damage_archive(twin: Twin, home: Path) -> None:
    config = f"{ML}/input/config/resourceconfig.json"
    script = f"""cd {ML}/model; me=$(grep -o '"current_host": "[^"]*"' {config} | cut -d '"' -f 4)
                 case $me in *-1|*.2) echo one > odd; mkdir even;;
                             *) mkdir odd; touch odd/a z even;; esac"""
    twin.create(request(home, "clash", script, count=2))
    found = ended(twin, "clash")
    assert found["TrainingJobStatus"] == "Completed", (found, output(twin, "clash"))
    with tarfile.open(home / "store/clash/output/model.tar.gz") as tar:
        assert {member.name: member.isreg() for member in tar} == {"even": False, "odd": True, "z": True}
    names = ("model/even", "model/odd", "model/odd/a")
    assert found["WindlassSkipped"] == [f"{name}: another host has a file of that name" for name in names]


def test_an_output_that_cannot_be_written_fails_the_job(home: Path) -> None:
    twin = Twin(home, os.environ)
    (home / "store").write_text("a file")
    twin.create(request(home, "full", f"echo w > {ML}/model/w"))
    assert ended(twin, "full")["FailureReason"].startswith("ClientError: Artifact upload failed: ")


def test_a_full_store_fails_the_job_with_its_reason(home: Path) -> None:
    twin = Twin(home, os.environ)
    with small_disk(home / "store", 64):
        twin.create(request(home, "full", f"head -c 1000000 /dev/urandom > {ML}/model/w"))
        reason = ended(twin, "full")["FailureReason"]
    assert reason.startswith("ClientError: Artifact upload failed: "), reason
    assert reason.endswith("No space left on device"), reason
