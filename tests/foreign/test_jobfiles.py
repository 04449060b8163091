"""Small equivalents of the shapes of public manifests: each is imported right, or refused with a reason.

The shapes are those of the examples of training-operator, trainer, mpi-operator, JobSet and
awsome-distributed-training; `test_jobfiles_sky.py` has those of SkyPilot and TorchX.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windlass.errors import JobFileError
from windlass.importers.convert import Imported, import_text
from windlass.spec.parse import parse_job

FOLDER = Path(__file__).parent / "jobfiles"
KINDS = ("pytorchjob", "tfjob", "jaxjob", "xgboostjob", "mpijob", "trainjob", "jobset", "job", "other")


def imported(name: str, document: str | None = None) -> Imported:
    path = FOLDER / f"{name}.yaml"
    return import_text(path.read_text(), path.name, document=document)


FIT, GPU = "/opt/fit.py", {"gpus": 2}
IMPORTED: dict[str, dict[str, Any]] = {
    "pytorchjob-torchrun": {
        "run": "/opt/digits/fit.py --epochs 2", "launcher": "torchrun", "nodes": 2, "procs": 4, "gpus": 4,
        "left": ["OnFailure"],
    },
    "pytorchjob-python-once-a-pod": {
        "run": "/opt/digits/fit.py --epochs=1", "launcher": "pytorch", "nodes": 3, "gpus": 1, "left": ["OnFailure"],
    },
    "pytorchjob-shell-script": {
        "launcher": "pytorch", "nodes": 2, "left": ["digits-worker-0", "OnFailure", "torchrun stays"],
    },
    "pytorchjob-fetch-then-torchrun": {
        "run": "/opt/fit.py --lr=0.1", "launcher": "torchrun", "nodes": 3, "gpus": 1,
        "setup": "(wget https://code.example/fit.py -O /opt/fit.py) || true\n",
        "left": ["--nnodes 3 in a manifest for 1:6"],
    },
    "pytorchjob-login-then-accelerate": {
        "run": "/opt/distil.py --epochs 2", "launcher": "torchrun", "nodes": 2, "procs": 2, "gpus": 2,
        "left": ["--nnodes 2 in a manifest for 1:64", "OnFailure", "`huggingface-cli login --token …` with a token"],
    },
    "pytorchjob-elastic-run": {
        "run": "./echo.py", "launcher": "torchrun", "nodes": (1, 2),
        "left": ["a rank for each core", "it begins with 2 nodes, and may be given up to 3", "was found in the image"],
    },
    "pytorchjob-profiled": {
        "launcher": "pytorch", "nodes": 2, "gpus": 2, "left": ["--nnodes 2 in a manifest for 1:64", "torchrun stays"],
    },
    "tfjob-workers": {"run": FIT, "launcher": "tensorflow", "nodes": 3},
    "tfjob-one-worker": {"run": FIT, "launcher": "plain", "nodes": 1},
    "jaxjob-workers": {"run": FIT, "launcher": "jax", "nodes": 2, "left": ["PROCESS_ID, which its operator sets"]},
    "xgboostjob-python": {
        "run": FIT, "launcher": "pytorch", "nodes": 3, "left": ["WORKER_ADDRS and WORKER_PORT, which its operator"],
    },
    "mpijob-program": {"run": "/home/pi/pi", "launcher": "mpi", "nodes": 2, "procs": 2, **GPU},
    "mpijob-python": {"run": FIT, "launcher": "mpi", "nodes": 2, "procs": 2, **GPU},
    "mpijob-elastic-horovod": {
        "run": FIT, "launcher": "mpi", "nodes": 2, "procs": 2, **GPU, "left": ["--min-np", "--host-discovery-script"],
    },
    "mpijob-written-path": {
        "run": "/home/pi/pi", "launcher": "mpi", "nodes": 2, "procs": 2, **GPU, "left": ["$PATH in it"],
    },
    "trainjob-torchrun": {"run": FIT, "launcher": "torchrun", "nodes": 3, "procs": 2, **GPU},
    "trainjob-torchrun-program": {
        "run": "python3 -c 'print(1)'", "launcher": "torchrun", "nodes": 3, "procs": 2, **GPU,
    },
    "trainjob-python-once-a-pod": {"run": FIT, "launcher": "plain", "nodes": 3, **GPU, "left": ["in each of 3 pods"]},
    "trainjob-reads-pet": {"launcher": "plain", "nodes": 3, **GPU},
    "trainjob-initializer": {
        "run": FIT, "launcher": "torchrun", "nodes": 3, "procs": "auto", **GPU, "left": ["brings data or a model"],
    },
    "trainjob-jax": {"run": "/opt/fit_jax.py", "launcher": "jax", "nodes": 3, **GPU},
    "trainjob-unknown-runtime": {
        "run": FIT, "launcher": "torchrun", "nodes": 3, "procs": "auto", **GPU, "left": ["runtime team-runtime"],
    },
    "jobset-rank-from-index": {"run": "/opt/fit.py --epochs=1", "launcher": "pytorch", "nodes": 4},
    "jobset-torchrun-in-shell": {"run": "/opt/fit.py --backend=gloo", "launcher": "torchrun", "nodes": 4},
    "jobset-python-once-a-pod": {
        "run": "/opt/fit_tf.py --epochs=1", "launcher": "plain", "nodes": 4, "left": ["in each of 4 pods"],
    },
    "jobset-tpu": {"run": "/opt/fit_jax.py", "launcher": "plain", "nodes": 8, "left": ["in each of 8 pods"]},
    "jobset-index-in-shell": {"launcher": "plain", "nodes": 4},
    "job-torchrun-and-its-service": {"run": FIT, "launcher": "torchrun", "nodes": 2, "gpus": 1},
    "job-rank-from-hostname": {
        "launcher": "plain", "nodes": 2, "gpus": 1,
        "left": ["fit.team.svc.cluster.local: names", "a number extracted from the name of a pod", "torchrun stays"],
    },
    "jobset-pod-names": {"launcher": "plain", "nodes": 4, "left": ["ring-leader-0-0", "job leader of the set"]},
    "jobset-policies": {"launcher": "plain", "nodes": 4, "left": ["the reaction to each failure", "which pods decide"]},
    "job-python-once-a-pod": {"run": FIT, "launcher": "plain", "nodes": 2, "gpus": 1, "left": ["in each of 2 pods"]},
    "job-one-pod": {"run": FIT, "launcher": "plain", "nodes": 1, "gpus": 1},
}  # fmt: skip
"""Name of the file, and what the expected fields; `left` are parts of the reports that need action by the user."""
REFUSED = {
    "pytorchjob-refused-arguments-alone": ["'--backend' is an argument of the image's own program"],
    "pytorchjob-refused-no-command": ["has neither command nor args"],
    "pytorchjob-refused-envsubst": [f"${{{name}}} is a" for name in ("NODES", "IMAGE_URI", "CACHE", "GPUS")],
    "pytorchjob-refused-envsubst-flow": [f"${{{name}}} is a" for name in ("NAMESPACE", "NODES")],
    "pytorchjob-refused-envsubst-key": ["${GPU_RESOURCE} is a"],
    "pytorchjob-refused-script-alone": ["'/app/tune.py' is an argument of the image's own program"],
    "pytorchjob-refused-blanks": ["<your team> is a placeholder"],
    "pytorchjob-refused-helm": ["{{ .Release.Name }} is a placeholder", "{{ .Values.workers }} is a placeholder"],
    "pytorchjob-refused-two-jobs": ["holds several jobs: PyTorchJob/first (line 1), PyTorchJob/second (line 25)"],
    "mpijob-refused-mpich": ["is MPICH, but Windlass starts ranks with Open MPI"],
    "mpijob-refused-script": ["is no line of mpirun that Windlass can start by itself"],
    "trainjob-refused-unknown-runtime": ["runtime team-runtime is not in this file: it may start the ranks"],
    "trainjob-refused-flux": ["has the policy flux"],
    "trainjob-refused-mpi-without-mpirun": ["is started only on the first node"],
    "jobset-refused-gpu-count": ["is half, and not a whole number"],
    "jobset-refused-no-command": ["has neither command nor args"],
    **{f"other-refused-{kind.lower()}": [f"found {kind}, which"] for kind in ("RayCluster", "Workflow", "Workload")},
    "tfjob-refused-parameter-servers": ["has tasks of their own in TF_CONFIG"],
    "xgboostjob-refused-arguments-alone": ["'--job_type=Train' is an argument of the image's own program"],
    "other-refused-paddlejob": ["found PaddleJob, whose framework"],
    "other-refused-hyperpod": ["found HyperPodPyTorchJob, which"],
}


@pytest.mark.parametrize("name", IMPORTED)
def test_a_manifest_of_this_shape_is_imported_right(name: str) -> None:
    made, expected = imported(name), IMPORTED[name]
    job, nodes = made.job, expected["nodes"]
    assert (job.run, job.launcher, job.setup) == (expected.get("run"), expected["launcher"], expected.get("setup"))
    assert (job.nodes.min, job.nodes.max) == (nodes if isinstance(nodes, tuple) else (nodes, nodes))
    assert (job.procs_per_node, job.resources.gpus) == (expected.get("procs", 1), expected.get("gpus", 0))
    left, parts = [one.meaning for one in made.actionable], expected.get("left", [])
    assert len(left) == len(parts), left
    assert all(part in one for part, one in zip(parts, left, strict=True)), left
    assert parse_job(made.text) == job


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_the_same_job_is_refused_with_each_reason(name: str) -> None:
    with pytest.raises(JobFileError) as refused:
        imported(name)
    problems = refused.value.problems
    assert [part in one.message for part, one in zip(REFUSED[name], problems, strict=True)] == [True] * len(problems)
    assert problems[0].hint


def test_there_is_an_outcome_for_each_file() -> None:
    assert {path.stem for kind in KINDS for path in FOLDER.glob(f"{kind}-*.yaml")} == {*IMPORTED, *REFUSED}


def test_the_hint_on_placeholders_of_envsubst_is_the_command_that_fills_them_in() -> None:
    with pytest.raises(JobFileError) as refused:
        imported("pytorchjob-refused-envsubst")
    assert refused.value.problems[0].hint == (
        "fill them in first: export NODES=… IMAGE_URI=… CACHE=… GPUS=…; "
        "envsubst '${NODES} ${IMAGE_URI} ${CACHE} ${GPUS}' < pytorchjob-refused-envsubst.yaml | windlass import -"
    )


@pytest.mark.parametrize("document", ["second", "PyTorchJob/second", "2"])
def test_one_of_several_jobs_is_imported_by_its_name_or_number(document: str) -> None:
    assert imported("pytorchjob-refused-two-jobs", document).job.run == "/opt/b.py"


def test_a_name_that_no_job_of_the_file_has_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(JobFileError, match="no jobs of the name 'third': it has PyTorchJob/first, PyTorchJob/second"):
        imported("pytorchjob-refused-two-jobs", "third")
