"""The definition of KServe's InferenceService, from the Go module of one version, without its controller."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from tests.helpers.golang import CACHE, go, locked

MODULE = "github.com/kserve/kserve"
VERSION = "v0.16.0"
SUM = "h1:kDkcAU5VMiZf4zhdDXH+UdAIgzXhs10GMv0d9r4qvTs="
DEFINITION = "inferenceservices.serving.kserve.io"


def definition() -> Path:
    """Returns the file of the definition, which is downloaded once. Raises BuildError."""
    path = CACHE / f"kserve-{VERSION}.yaml"
    with locked(CACHE / "kserve.lock", "download KServe"):
        if not path.exists():
            with tempfile.TemporaryDirectory() as folder:
                found = json.loads(go(Path(folder), "mod", "download", "-json", f"{MODULE}@{VERSION}"))
            assert found["Sum"] == SUM
            shutil.copy(Path(found["Dir"], "config/crd/full/serving.kserve.io_inferenceservices.yaml"), path)
    return path
