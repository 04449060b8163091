"""Checks before an `up` that the KMS keys in a cluster file can encrypt. Reads only."""

from __future__ import annotations

from windlass.clusters.aws import AccessDenied, Aws, NotThere, aws_errors
from windlass.errors import UsageError
from windlass.spec.cluster import Cluster


def require_keys(cluster: Cluster, aws: Aws) -> list[str]:
    """Returns a note for each key that the credentials may not describe. Raises UsageError for a key that does not
    exist, is not enabled, or is not a symmetric key for encryption; AwsError.
    """
    notes = []
    for purpose, arn in cluster.encryption.keys.items():
        what = f"encryption: {{{purpose}: {arn}}}"
        try:
            with aws_errors(f"describe the key of {purpose}", action="kms:DescribeKey"):
                key = aws.client("kms").describe_key(KeyId=arn)["KeyMetadata"]
        except AccessDenied as error:
            notes.append(f"{what} was not checked: {error.message}")
            continue
        except NotThere as error:
            raise UsageError(
                f"{what}: the key does not exist", "aws kms list-keys lists those of an account"
            ) from error
        if key["KeyState"] != "Enabled":
            raise UsageError(f"{what}: the key is {key['KeyState']}", "it must be Enabled: aws kms enable-key")
        if (spec := key.get("KeySpec", "SYMMETRIC_DEFAULT")) != "SYMMETRIC_DEFAULT":
            raise UsageError(
                f"{what}: the key is of the kind {spec}", "AWS services encrypt with SYMMETRIC_DEFAULT alone"
            )
    return notes
