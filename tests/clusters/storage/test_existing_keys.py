"""Keys of a cluster file that cannot encrypt are refused before anything is created."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakeaws.emulator import ACCOUNT, Emulator
from tests.fakeaws.emulator.fixtures import shared_aws

from windlass.clusters.aws import Aws
from windlass.clusters.storage.existing_keys import require_keys
from windlass.errors import UsageError
from windlass.spec.parse import parse_cluster

__all__ = ["shared_aws"]
pytestmark = pytest.mark.slow


def checked(aws: Emulator, arn: str, environ: dict[str, str] | None = None) -> list[str]:
    cluster = parse_cluster(f"name: vision\nregion: us-east-1\nencryption: {{logs: {arn}}}\n")
    with Aws("us-east-1", environ=environ or aws.environ) as client:
        return require_keys(cluster, client)


def test_enabled_symmetric_key_is_accepted_emulated(shared_aws: Emulator) -> None:
    assert checked(shared_aws, shared_aws.client("kms").create_key()["KeyMetadata"]["Arn"]) == []


def test_unusable_keys_are_refused_with_the_field_and_the_reason_emulated(shared_aws: Emulator) -> None:
    kms = shared_aws.client("kms")

    def made(**options: Any) -> str:
        return str(kms.create_key(**options)["KeyMetadata"]["Arn"])

    disabled, ending, signing = made(), made(), made(KeySpec="HMAC_256", KeyUsage="GENERATE_VERIFY_MAC")
    kms.disable_key(KeyId=disabled)
    kms.schedule_key_deletion(KeyId=ending)
    wrong = {
        disabled: "the key is Disabled",
        ending: "the key is PendingDeletion",
        signing: "the key is of the kind HMAC_256",
        f"arn:aws:kms:us-east-1:{ACCOUNT}:key/00000000-0000-0000-0000-000000000000": "the key does not exist",
    }
    for arn, why in wrong.items():
        with pytest.raises(UsageError) as refused:
            checked(shared_aws, arn)
        assert refused.value.message == f"encryption: {{logs: {arn}}}: {why}"
