"""Azure Blob Storage, emulated by Azurite, serves data sets, streams, outputs and checkpoints with obstore in the
image.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import obstore
import pytest
from obstore.store import AzureStore
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.images import VENV
from tests.cluster.harnesses import harness_on, opened, set_up
from tests.cluster.test_transfers import FILES, KUBERNETES, READS, RESULTS, SIZE, SUM, staged, succeeded
from tests.servers.azurite import Azurite, azurite

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
CONTAINER = "sets"
SECRET = "azure-key"
CERTIFICATES = f"{VENV}/{Path(certifi.where()).relative_to(sys.prefix)}"
"""CA certificates: obstore requires some even if unused, and the test image has none."""

STREAMS = """
from torch import nn
from torch.utils.data import DataLoader
from windlass.train import stream
from windlass.train.checkpoint import Checkpoint
found = stream("streamed")
sizes = [sum(len(value) for value in one.values() if isinstance(value, bytes))
         for batch in DataLoader(found, batch_size=8, num_workers=2, collate_fn=list) for one in batch]
print("streamed", len(sizes), sum(sizes), flush=True)
with_model = Checkpoint(model=nn.Linear(2, 2), every=1, when_busy="wait")
print("restored", with_model.restore(), flush=True)
with_model.step()
with_model.close()
"""
"""Program of a rank that reads and writes the container itself, also in forks."""


@pytest.fixture
def server(bed: Bed, namespace: str, tmp_path: Path) -> Iterator[Azurite]:
    """Server with the data set in a container, and its key in a Secret of the namespace."""
    with azurite(tmp_path / "blobs", bed.layout.outside) as found:
        found.make_container(CONTAINER)
        for name, data in FILES.items():
            obstore.put(store_of(found), f"digits/{name}", data)
        words = [f"--from-literal={name}={value}" for name, value in found.environ().items() if name.endswith("KEY")]
        bed.kubectl("create", "secret", "generic", SECRET, "-n", namespace, *words)
        yield found


def store_of(server: Azurite) -> Any:
    """Returns the container as an obstore store."""
    env = server.environ()
    return AzureStore(
        CONTAINER,
        account_name=env["AZURE_STORAGE_ACCOUNT_NAME"],
        account_key=env["AZURE_STORAGE_ACCOUNT_KEY"],
        endpoint=env["AZURE_ENDPOINT"],
        client_options={"allow_http": True},
    )


def listed(server: Azurite, prefix: str) -> list[str]:
    return [str(one["path"]) for batch in obstore.list(store_of(server), prefix) for one in batch]


def test_azure_container_serves_data_sets_streams_outputs_and_checkpoints(
    bed: Bed, namespace: str, tmp_path: Path, server: Azurite
) -> None:
    set_up(bed, namespace)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "reads.py").write_text(READS + STREAMS)
    fields = {
        "base": tmp_path / "code",
        "launcher": "plain",
        "secrets": [SECRET],
        "env": {
            **{name: value for name, value in server.environ().items() if not name.endswith("KEY")},
            "SSL_CERT_FILE": CERTIFICATES,
        },
        "data": [
            {"name": "digits", "source": f"az://{CONTAINER}/digits"},
            {"name": "streamed", "source": f"az://{CONTAINER}/digits", "via": "stream"},
        ],
        "checkpoint": {"folder": f"az://{CONTAINER}/saved"},
        "outputs": f"az://{CONTAINER}/out",
        "kubernetes": {**KUBERNETES, "results": RESULTS},
    }
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness:
        run = harness.start("reads.py", **fields)
        succeeded(run)
        assert f"read {len(FILES)} {SUM}\n" in run.text()
        found = staged(run)
        assert (found["files"], found["bytes"], found["moved"]) == (len(FILES), SIZE, SIZE)
        assert f"streamed {len(FILES)} {SIZE}\nrestored 0\n" in run.text()
        [whole] = [one for one in listed(server, f"saved/{run.id}") if one.endswith("/manifest.json")]
        assert whole.startswith(f"saved/{run.id}/step-00000001-")
        assert bytes(obstore.get(store_of(server), f"out/{run.id}/model.txt").bytes()).decode() == SUM
