"""Code in a store is written once, fetched by a program that any Python runs, and refused if its digest differs."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.kubernetes.planning.test_export import DATA, SMALL
from tests.engines.kubernetes.planning.test_plan import LARGE, TARGET, planned
from tests.servers.s3 import S3Server, s3_server

from windlass.code.pack import pack
from windlass.engines.kubernetes.objects.package import FILE
from windlass.engines.kubernetes.objects.transfer_manifests import filled
from windlass.engines.kubernetes.planning.export import manifests
from windlass.engines.kubernetes.planning.facts import boot_program
from windlass.engines.kubernetes.running import code_store
from windlass.errors import EngineError, UsageError


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path / "buckets") as found:
        found.client().create_bucket(Bucket="code")
        for name, value in found.environ().items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def booted(tmp_path: Path) -> list[str]:
    """Arguments of a pod's first program, with folders below a local one."""
    root = tmp_path / "pod"
    (root / "work").mkdir(parents=True)
    (root / "transfer").mkdir()
    packed = filled({})["binaryData"][FILE]
    (root / "transfer" / FILE).write_bytes(base64.b64decode(packed))
    (root / "boot.py").write_text(boot_program().replace('"/windlass/', f'"{root}/'))
    return [sys.executable, "-I", "-S", str(root / "boot.py")]


def archive(tmp_path: Path) -> tuple[bytes, str]:
    """Archive of code whose `pod.py` prints that it was reached."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    travel = tmp_path / "worker"
    travel.mkdir()
    (travel / "pod.py").write_text("import os; print('in', os.path.basename(os.getcwd()))")
    packed = pack(tmp_path / "code", 1 << 20, {}, {"travel/windlass/worker": travel})
    return packed.data, packed.digest


def boot(booted: list[str], digest: str, source: str) -> tuple[int, str]:
    environ = {**os.environ, "WINDLASS_CODE_DIGEST": digest, "WINDLASS_CODE_SOURCE": source}
    done = subprocess.run(booted, env=environ, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_code_is_stored_once_and_fetched_by_the_pod(server: S3Server, tmp_path: Path, booted: list[str]) -> None:
    data, digest = archive(tmp_path)
    source = f"s3://code/windlass/code/{digest}.tar.gz"
    code_store.send(source, len(data), lambda: data)
    code_store.send(source, len(data), pytest.fail)
    assert boot(booted, digest, source) == (0, "in code\n")


@pytest.mark.slow
def test_pod_reports_why_it_has_no_code(server: S3Server, tmp_path: Path, booted: list[str]) -> None:
    source = "s3://code/windlass/code/other.tar.gz"
    code, said = boot(booted, "0" * 64, source)
    assert code == 1
    assert said.startswith(f"[w] the code could not be fetched: {source}: the store answered 404")
    server.client().put_object(Bucket="code", Key="windlass/code/other.tar.gz", Body=b"other")
    (tmp_path / "pod" / "work" / "begun").unlink()
    digest = hashlib.sha256(b"other").hexdigest()
    assert boot(booted, "0" * 64, source) == (1, f"[w] the code is damaged: its digest is {digest}\n")


@pytest.mark.slow
def test_a_store_that_refuses_is_an_error_of_the_submission(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"the code could not be stored: .*no bucket missing"):
        code_store.send("s3://missing/code/a.tar.gz", 3, lambda: b"abc")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(EngineError, match="check the credentials"):
        code_store.send("s3://code/code/a.tar.gz", 3, lambda: b"abc")


def test_exported_objects_need_no_code_from_a_store() -> None:
    stored = TARGET.model_copy(update={"storage": "s3://bucket/windlass"})
    with pytest.raises(UsageError, match="where only windlass run puts it"):
        manifests(planned(LARGE, stored), DATA, 0.0)
    assert manifests(planned(SMALL, stored), DATA, 0.0).objects
