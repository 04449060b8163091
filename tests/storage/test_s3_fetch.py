"""`data fetch --to`: a public set goes from a mirror through its recipe to a bucket, as the tutorials do it by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.recipes import tiny
from tests.servers.http_files import file_host
from tests.servers.s3 import S3Server
from tests.storage.sets import Data

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "layout", "prefix", "keys"),
    [
        ("cifar10", "tfrecord", "cifar10-dataset",
         {"train/train.tfrecords", "validation/validation.tfrecords", "eval/eval.tfrecords"}),
        ("cifar10", "torchvision", "datasets/cifar10-dataset",
         {"cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/batches.meta"}),
        ("coco2017", "coco", "ml-platform/data/coco2017",
         {"train2017/000000000001.jpg", "val2017/000000000002.jpg", "annotations/instances_train2017.json"}),
        ("scut-head", "yolo", "scut-head",
         {"images/train/PartA_00001.jpg", "labels/train/PartA_00001.txt", "data.yaml"}),
    ],
)  # fmt: skip
def test_a_set_is_laid_out_in_a_bucket_and_proven_there(
    name: str, layout: str, prefix: str, keys: set[str], server: S3Server, bucket: str, tmp_path: Path
) -> None:
    data = Data(tmp_path / "home", server)
    to = f"s3://{bucket}/{prefix}/"
    with file_host(tiny.SETS[name]()) as host:
        words = ["data", "fetch", name, str(tmp_path / "set"), "--layout", layout, "--from", host.address, "--to", to]
        command = [sys.executable, "-m", "tests.recipes.harness", "main", *words, "-o", "json"]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **data.environ}, capture_output=True, text=True, check=True
        )
    uploaded = json.loads(done.stdout)["uploaded"]
    assert (uploaded["destination"], uploaded["refused"]) == (to, [])
    verified = data.json("verify", to)
    assert (verified["ok"], verified["digest"]) == (True, json.loads(done.stdout)["digest"])
    found = {one["Key"] for one in server.client().list_objects_v2(Bucket=bucket)["Contents"]}
    assert {f"{prefix}/{key}" for key in keys} <= found
    assert not [key for key in found if "downloads" in key or ".partial" in key]
