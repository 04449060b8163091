"""From a command to a training job that SageMaker has accepted, and to the first line of a script in a host here.

    .venv/bin/python bench/sagemaker.py [RUNS] [--smoke]

The peer of the first part is the SageMaker SDK for Python, version 3, whose ModelTrainer starts the same job by a
script. Both reach the same emulated control plane and the same S3 server, on loopback; the plane has no capacity, so
that the job ends there. The SDK may not ask which rights the role has, as an account may have it, and sends no
telemetry. `accepted` ends with the call of CreateTrainingJob, which for Windlass is made by the run's supervisor;
`command` is the whole process. The peak of Windlass is that of its larger process.

The peer of the second part is AWS's training toolkit, which runs in its containers, started by hand in a folder that is
laid out beforehand: by itself, and as the images of PyTorch start it. Windlass makes the host and the folder first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import (
    BIN,
    CACHE,
    ROOT,
    fresh_home,
    in_turn,
    machine,
    measure,
    peers,
    report,
    report_columns,
    start,
    table,
)
from tests.fakeaws.control_plane import CAPACITY, ControlPlane
from tests.servers.s3 import s3_server
from tools import size

WINDLASS, SDK = "windlass run", "ModelTrainer.train"
TOOLKIT, TOOLKIT_OF_PYTORCH = "train alone", "train of the PyTorch images"
PACKAGE = "sagemaker-train==1.27.0"
PEER_ENV = "bench-sagemaker-env"
BUCKET = "training"
ROLE = "arn:aws:iam::123456789012:role/training"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1"
INSTANCE = "ml.m5.xlarge"
MARK = "first line of the script"
PATIENCE_SECONDS = 120.0
HOST = "127.0.0.1"
"""The toolkit waits for a name that cannot be resolved."""
BY_SDK = f"""
from sagemaker.core.helper.session_helper import Session
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, OutputDataConfig, SourceCode

ModelTrainer(
    sagemaker_session=Session(default_bucket={BUCKET!r}), base_job_name="bench", training_image={IMAGE!r},
    role={ROLE!r},
    source_code=SourceCode(source_dir="code", entry_script="train.py"), hyperparameters={{"lr": 0.1}},
    compute=Compute(instance_type={INSTANCE!r}, instance_count=1, volume_size_in_gb=30),
    output_data_config=OutputDataConfig(s3_output_path="s3://{BUCKET}/sdk"),
).train(wait=False, logs=False)
"""
OPT_OUT = "SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n"
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.M)


class Bench:
    """A folder with a job and its targets, and the services that both sides reach."""

    def __init__(self, home: Path, plane: ControlPlane, environ: Mapping[str, str]) -> None:
        self.home, self.plane = home, plane
        self.environ = {**environ, "AWS_ENDPOINT_URL_IAM": plane.environ["AWS_ENDPOINT_URL_STS"]}
        for operation in ("SimulatePrincipalPolicy", "GetRole"):
            plane.refuse(operation, "AccessDenied", f"not authorized to perform: iam:{operation}", 1000, 403)
        plane.fails_with = CAPACITY
        plane.on_call = self._note
        self._accepted = threading.Event()
        self._at = 0.0
        target = {
            "kind": "sagemaker",
            "region": "us-east-1",
            "role": ROLE,
            "image": IMAGE,
            "instance": INSTANCE,
            "storage": f"s3://{BUCKET}/windlass",
        }
        (home / "targets.yaml").write_text(json.dumps({"aws": target, "here": {"kind": "sagemaker-local"}}))
        (home / "code").mkdir()
        (home / "by_sdk.py").write_text(BY_SDK)
        (home / "sdk.yaml").write_text(OPT_OUT)
        self.write("")

    def write(self, imports: str) -> None:
        """The script and its job."""
        (self.home / "code/train.py").write_text(f"{imports}\nprint({MARK!r}, flush=True)\n")
        told = {"name": "bench", "run": "train.py --lr 0.1", "code": "code"}
        (self.home / "job.yaml").write_text(json.dumps(told))

    def _note(self, operation: str) -> None:
        if operation == "CreateTrainingJob" and not self._accepted.is_set():
            self._at = time.monotonic()
            self._accepted.set()

    # -- a training job -----------------------------------------------------------------------------------------------

    def by_windlass(self) -> dict[str, float]:
        found = self._submitted([BIN / "windlass", "run", "job.yaml", "--on", "aws", "--detach"])
        self.clear()
        return found

    def by_sdk(self) -> dict[str, float]:
        """See the module; its environment is made by the first call."""
        return self._submitted([peers(PACKAGE, env=PEER_ENV) / "python", "by_sdk.py"])

    def _submitted(self, command: list[str | Path]) -> dict[str, float]:
        self._accepted.clear()
        environ = {**self.environ, "SAGEMAKER_USER_CONFIG_OVERRIDE": str(self.home / "sdk.yaml")}
        with self._peaks_of_supervisors() as peaks:
            began = time.monotonic()
            cost = measure(command, cwd=self.home, env=environ)
            assert self._accepted.wait(PATIENCE_SECONDS), "no training job was created"
        return {"accepted": self._at - began, "s": cost.wall_seconds, "mb": max(cost.peak_mb, *peaks)}

    @contextmanager
    def _peaks_of_supervisors(self) -> Iterator[list[float]]:
        """Peak sizes in MiB of the supervisors that are there when the block ends, for the runs of this home."""
        peaks = [0.0]
        yield peaks
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                is_ours = str(self.home).encode() in path.read_bytes()
                found = PEAK.search((path.parent / "status").read_text()) if is_ours else None
            except OSError:
                continue
            if found is not None:
                peaks.append(int(found[1]) / 1024)

    def clear(self) -> None:
        """Between two trials nothing of the last one goes on."""
        for run in json.loads(self._windlass("ps", "-a", "-o", "json")):
            self._windlass("logs", "-f", run["id"])
            self._windlass("rm", "--force", run["id"])

    def _windlass(self, *words: str) -> str:
        done = subprocess.run(
            [BIN / "windlass", *words],
            cwd=self.home,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    # -- a host on this machine ---------------------------------------------------------------------------------------

    def line_by_windlass(self) -> float:
        seconds = self._first_line([BIN / "windlass", "run", "job.yaml", "--on", "here"], {})
        self.clear()
        return seconds

    def line_by_toolkit(self, module: str = "") -> float:
        environment = CACHE / "sagemaker-env"
        with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder:
            self._lay_out(Path(folder))
            path = f"{environment / 'bin'}:{os.environ['PATH']}"
            own = {"SAGEMAKER_BASE_DIR": folder, "PATH": path, "SAGEMAKER_TRAINING_MODULE": module}
            return self._first_line([environment / "bin/train"], {name: one for name, one in own.items() if one})

    def line_by_toolkit_of_pytorch(self) -> float:
        return self.line_by_toolkit("sagemaker_pytorch_container.training:main")

    def _lay_out(self, base: Path) -> None:
        """/opt/ml as the host of a training job has it."""
        for name in ("input/config", "input/data", "model", "output/data", "code"):
            (base / name).mkdir(parents=True)
        hyperparameters = {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": str(self.home / "code"),
            "lr": 0.1,
        }
        group = {"instance_group_name": "homogeneousCluster", "instance_type": INSTANCE, "hosts": [HOST]}
        for name, value in {
            "hyperparameters": {name: json.dumps(one) for name, one in hyperparameters.items()},
            "inputdataconfig": {},
            "resourceconfig": {
                "current_host": HOST,
                "hosts": [HOST],
                "network_interface_name": "lo",
                "current_instance_type": INSTANCE,
                "current_group_name": "homogeneousCluster",
                "instance_groups": [group],
            },
        }.items():
            (base / "input/config" / f"{name}.json").write_text(json.dumps(value))

    def _first_line(self, command: list[str | Path], own: Mapping[str, str]) -> float:
        """Seconds until a command shows the script's line; it is let end."""
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        at, began = None, time.monotonic()
        with subprocess.Popen(
            command,
            cwd=self.home,
            env={**environ, **self.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as one:
            assert one.stdout is not None
            written = []
            for line in one.stdout:
                written.append(line)
                if MARK in line:
                    at = at or time.monotonic()
        assert at is not None, "".join(written)
        return at - began


@contextmanager
def prepared() -> Iterator[Bench]:
    """The services, and a folder of records."""
    with (
        fresh_home() as home,
        tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder,
        s3_server(Path(folder) / "s3") as server,
    ):
        server.client().create_bucket(Bucket=BUCKET)
        plane = ControlPlane(Path(folder), {**os.environ, **server.environ()})
        plane.start()
        try:
            yield Bench(home, plane, {**server.environ(), **plane.environ})
        finally:
            plane.stop()


def main(runs: int, smoke: bool) -> None:
    """Print seconds, memory and sizes, and their ratios to the peers."""
    runs = 0 if smoke else runs
    with prepared() as bench:
        ways = {WINDLASS: bench.by_windlass} if smoke else {SDK: bench.by_sdk, WINDLASS: bench.by_windlass}
        submitted = in_turn(ways, runs)
        report_columns(
            submitted,
            peer=SDK,
            title=f"from the command to a training job ({machine()})",
            columns={"accepted": "accepted, s", "s": "command, s", "mb": "peak MB"},
        )
        report_lines(bench, runs, smoke=smoke)
    if not smoke:
        print_sizes()


def report_lines(bench: Bench, runs: int, *, smoke: bool) -> None:
    """The figures of a host on this machine."""
    lines: dict[str, Any] = {WINDLASS: bench.line_by_windlass}
    if not smoke:
        subprocess.run(["bash", ROOT / "tools/sagemaker-env.sh"], check=True)
        lines = {TOOLKIT_OF_PYTORCH: bench.line_by_toolkit_of_pytorch, TOOLKIT: bench.line_by_toolkit, **lines}
    for imports in ("", "import torch"):
        bench.write(imports)
        of = f"a script with {imports}" if imports else "a script that imports nothing"
        report(
            in_turn(lines, runs),
            peer=TOOLKIT_OF_PYTORCH,
            figure="s",
            title=f"from the command to the first line of {of}, in a host on this machine",
        )


def print_sizes() -> None:
    """What each takes on the disk, without byte code."""
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder:
        size.install(Path(folder), f"{ROOT}[aws]")
        # Versions of the SDK's libraries are not those of our lock.
        found = {SDK: size.measure(peers(PACKAGE, env=PEER_ENV).parent), WINDLASS: size.measure(Path(folder))}
    totals = {name: sum(one.values()) / 1e6 for name, one in found.items()}
    rows = [(name, f"{mb:.1f}", f"{mb / totals[SDK]:.3f}", len(found[name])) for name, mb in totals.items()]
    table("installed, each in an environment of its own", ["", "MB", "÷", "packages"], rows)


if __name__ == "__main__":
    start(main, runs=5)
