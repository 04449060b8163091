"""`cluster down` handles a bucket whose owner AWS does not report."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest

from windlass.clusters.aws import AwsError
from windlass.clusters.down import down
from windlass.clusters.find import ManagedCluster
from windlass.clusters.storage.bucket import Bucket
from windlass.clusters.working_folder import write_folder
from windlass.runs.context import Context


def test_bucket_with_unknown_owner_is_not_deleted(
    named: ManagedCluster, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **_more: Any) -> Bucket:
        raise AwsError("its tags cannot be read")

    class Prepared(Exception):
        """Raised when Terraform would be prepared."""

    def prepared(*_: Any) -> None:
        raise Prepared

    write_folder(named, context, bucket=Bucket("b", exists=True, owner="vision"))
    monkeypatch.setattr(ManagedCluster, "aws", lambda *_: nullcontext())
    monkeypatch.setattr(ManagedCluster, "terraform", prepared)
    monkeypatch.setattr("windlass.clusters.storage.bucket.find_bucket", refuse)
    for is_to_delete, error in ((True, AwsError), (False, Prepared)):
        with pytest.raises(error):
            down(named, context, lambda _event: None, lambda *_: True, cast("Any", None), delete_bucket=is_to_delete)
