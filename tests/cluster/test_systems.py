"""Examples of the reference systems run on a cluster, with the job file that a user would use and a tiny data set."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, home, windlass
from tests.cluster.bed.cluster import Bed
from tests.cluster.harnesses import harness_on, opened
from tests.cluster.stores import BUCKET, pod_store
from tests.examples.heads import PIXELS, write_archives
from tests.examples.test_systems import HEADS, MADE, val_losses

from windlass.runs.phase import Phase
from windlass.spec.parse import parse_job
from windlass.train.checkpoint.export import read_tensors

__all__ = ["home", "windlass"]
EPOCHS = 4
pytestmark = pytest.mark.timeout(900)


def test_example_stages_heads_from_a_bucket_and_uploads_the_best_weights(
    bed: Bed, namespace: str, tmp_path: Path, windlass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(HEADS, tmp_path / "job", ignore=MADE)
    write_archives(tmp_path / "archives")
    with (
        pod_store(bed, namespace, tmp_path / "buckets") as store,
        opened(harness_on(bed, namespace, tmp_path / "home")) as harness,
    ):
        for name, value in store.server.environ().items():
            monkeypatch.setenv(name, value)
        places = {"--folder": "heads", "--archives": "archives"}
        words = [word for option, name in places.items() for word in (option, str(tmp_path / name))]
        prepare = [sys.executable, "prepare.py", *words, "--to", f"s3://{BUCKET}/scut-head/"]
        subprocess.run(prepare, cwd=tmp_path / "job", check=True)
        run = harness.start(
            "train.py",
            "--epochs",
            str(EPOCHS),
            "--size",
            str(PIXELS),
            base=tmp_path / "job",
            **fields_of(HEADS / "cluster.yaml"),
            **store.fields,
        )
        status = run.wait()
        assert status.phase is Phase.SUCCEEDED, run.text()
        assert len(val_losses(run.text())) == EPOCHS
        copied = windlass("data", "copy", f"s3://{BUCKET}/runs/{run.id}/", str(tmp_path / "weights"))
        assert copied.code == 0, copied.err
        assert read_tensors(str(tmp_path / "weights" / "best.safetensors"))["0.weight"].shape == (16, 3, 3, 3)


def fields_of(path: Path) -> dict[str, Any]:
    """Returns the job file's fields for a cluster without GPUs, whose storage class is `bed` and bucket the test's."""
    job = parse_job(path.read_text(), str(path)).model_dump(mode="json", exclude_unset=True)
    of_class = {name: {**claim, "storage_class": "bed"} for name, claim in job.pop("kubernetes").items()}
    [data] = job["data"]
    return {
        **{name: job[name] for name in ("nodes", "checkpoint", "restarts")},
        "data": [{**data, "source": data["source"].replace("//bucket/", f"//{BUCKET}/")}],
        "outputs": job["outputs"]["to"].replace("//bucket/", f"//{BUCKET}/"),
        "kubernetes": of_class,
    }
