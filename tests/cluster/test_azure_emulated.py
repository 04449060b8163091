"""A set in blobs of Azure, emulated by Azurite, is staged by a pod, and outputs go there, by obstore of the image."""

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

pytestmark = pytest.mark.timeout(900)
CONTAINER = "sets"
SECRET = "azure-key"
CERTIFICATES = f"{VENV}/{Path(certifi.where()).relative_to(sys.prefix)}"
"""obstore needs some, whether they are used or not, and the image of the bed has none of its own."""


@pytest.fixture
def server(bed: Bed, namespace: str, tmp_path: Path) -> Iterator[Azurite]:
    """With the set in a container, and its key in a Secret of the namespace."""
    with azurite(tmp_path / "blobs", bed.layout.outside) as found:
        found.make_container(CONTAINER)
        for name, data in FILES.items():
            obstore.put(store_of(found), f"digits/{name}", data)
        words = [f"--from-literal={name}={value}" for name, value in found.environ().items() if name.endswith("KEY")]
        bed.kubectl("create", "secret", "generic", SECRET, "-n", namespace, *words)
        yield found


def store_of(server: Azurite) -> Any:
    """The container for obstore."""
    env = server.environ()
    return AzureStore(
        CONTAINER, account_name=env["AZURE_STORAGE_ACCOUNT_NAME"], account_key=env["AZURE_STORAGE_ACCOUNT_KEY"],
        endpoint=env["AZURE_ENDPOINT"], client_options={"allow_http": True},
    )  # fmt: skip


def test_a_set_is_staged_from_a_container_and_the_outputs_are_uploaded_to_it(
    bed: Bed, namespace: str, tmp_path: Path, server: Azurite
) -> None:
    set_up(bed, namespace)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "reads.py").write_text(READS)
    fields = {
        "base": tmp_path / "code", "launcher": "plain", "secrets": [SECRET],
        "env": {
            **{name: value for name, value in server.environ().items() if not name.endswith("KEY")},
            "SSL_CERT_FILE": CERTIFICATES,
        },
        "data": [{"name": "digits", "source": f"az://{CONTAINER}/digits"}], "outputs": f"az://{CONTAINER}/out",
        "kubernetes": {**KUBERNETES, "results": RESULTS},
    }  # fmt: skip
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness:
        run = harness.start("reads.py", **fields)
        succeeded(run)
        assert f"read {len(FILES)} {SUM}\n" in run.text()
        found = staged(run)
        assert (found["files"], found["bytes"], found["moved"]) == (len(FILES), SIZE, SIZE)
        assert bytes(obstore.get(store_of(server), f"out/{run.id}/model.txt").bytes()).decode() == SUM
