"""Pods read each sample of a store once per epoch with `windlass.train.stream`, in spite of killed ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cluster.bed.cluster import Bed
from tests.cluster.harnesses import harness_on, opened
from tests.cluster.stores import BUCKET, pod_store
from tests.train.stream.sources import assert_each_once, shards

from windlass.actions import exec_copy
from windlass.engines.kubernetes.objects import layout
from windlass.runs.phase import Phase

SCRIPT = Path(__file__).parents[1] / "storage" / "scripts" / "seen.py"
NUM_SAMPLES = 118
KILLS = ("4:0:2",)
"""Kills as step, rank and world size; `tests/storage/test_s3_streams.py` has more."""
pytestmark = pytest.mark.timeout(900)


def test_each_sample_is_trained_on_once_per_epoch_by_pods_that_are_killed(
    bed: Bed, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    shutil.copy(SCRIPT, tmp_path / "code")
    with (
        pod_store(bed, namespace, tmp_path / "buckets") as store,
        opened(harness_on(bed, namespace, tmp_path / "home")) as harness,
    ):
        for name, data in shards(2, NUM_SAMPLES // 2).items():
            store.server.client().put_object(Bucket=BUCKET, Key=f"pictures/{name}", Body=data)
        run = harness.start(
            SCRIPT.name,
            layout.OUTPUT,
            "--kill",
            *KILLS,
            base=tmp_path / "code",
            nodes=2,
            restarts={"max": 2, "on": ["failure", "node-loss"]},
            **store.fields,
            data=[{"name": "pictures", "source": f"s3://{BUCKET}/pictures", "via": "stream"}],
            kubernetes={"results": {"size": "1GiB", "storage_class": "bed"}, "via": "job"},
        )
        status = run.wait()
        assert status.phase is Phase.SUCCEEDED, run.text()
        assert len(status.attempts) == len(KILLS) + 1
        exec_copy.copy(f"{run.id}:output", str(tmp_path / "seen"), harness.store, tmp_path)
        assert_each_once(tmp_path / "seen", NUM_SAMPLES, {2})
