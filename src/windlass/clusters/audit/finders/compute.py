"""Finders for EC2: instances, autoscaling groups, volumes, snapshots, images, templates, placement groups, and more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, hourly, row, stored
from windlass.clusters.audit.report import FoundObject, PriceKey
from windlass.clusters.audit.scope import Owner, Scope, better
from windlass.clusters.tags import flat

ENDED: Final = ("terminated", "shutting-down")
OF_IMAGE: Final = re.compile(r"CreateImage\((i-[0-9a-f]+)\)")
"""Matches the description of a snapshot that EC2 creates for an image of an instance."""
FREE_IOPS, FREE_MIBPS = 3000, 125
"""IOPS and MiB/s that the price per GiB of a gp3 volume includes."""


def reservations(calls: FinderCalls) -> Iterator[dict[str, Any]]:
    """Yields all instances of the region that are not terminated."""
    for reservation in calls.items("ec2", "describe_instances", "Reservations"):
        for one in reservation["Instances"]:
            if one["State"]["Name"] not in ENDED:
                yield one


def _instances(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in reservations(calls):
        tags = flat(one.get("Tags"))
        owner = instance_owner(scope, one)
        if owner is None:
            continue
        state, id = one["State"]["Name"], one["InstanceId"]
        by = "made by Karpenter, " if any(tag.startswith("karpenter.") for tag in tags) else ""
        yield row(
            INSTANCE,
            scope,
            owner,
            id,
            tags=tags,
            prices=_instance_prices(one, state),
            detail=f"{by}{state}, {one['InstanceType']}{_lifecycle(one)}",
            remedy=command(scope, "ec2 terminate-instances --instance-ids", id),
        )


def instance_owner(scope: Scope, one: dict[str, Any]) -> Owner | None:
    """Returns why an instance belongs to the cluster: its tags, VPC, subnet or instance profile. None if it
    does not.
    """
    tags, profile = flat(one.get("Tags")), str((one.get("IamInstanceProfile") or {}).get("Arn", ""))
    return better(
        scope.owner(tags, vpc_id=one.get("VpcId", ""), name=tags.get("Name", "")),
        scope.user(tags, profile=profile, subnets=[one.get("SubnetId", "")]),
    )


def _instance_prices(one: dict[str, Any], state: str) -> Iterator[PriceKey]:
    if state not in ("running", "pending"):
        return  # a stopped instance is free; its volumes have separate rows
    lifecycle = one.get("InstanceLifecycle", "")
    if lifecycle != "capacity-block":
        yield hourly("ec2-spot" if lifecycle == "spot" else "ec2", one["InstanceType"])
    for interface in one.get("NetworkInterfaces") or ():
        if interface.get("Association", {}).get("IpOwnerId") == "amazon":  # Elastic IPs have separate rows
            yield hourly("public-ipv4")


def _lifecycle(one: dict[str, Any]) -> str:
    kind = one.get("InstanceLifecycle", "")
    return {"": "", "capacity-block": ", capacity block, paid in advance"}.get(kind, f", {kind}")


def _groups(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups"):
        tags, name = flat(one.get("Tags")), one["AutoScalingGroupName"]
        subnets = str(one.get("VPCZoneIdentifier") or "").split(",")
        if owner := better(scope.owner(tags, name=name), scope.user(tags, subnets=subnets)):
            yield row(
                GROUP,
                scope,
                owner,
                name,
                tags=tags,
                detail=f"wants {one.get('DesiredCapacity', 0)} instances, which bill as rows of their own",
                remedy=command(
                    scope, "autoscaling delete-auto-scaling-group --force-delete --auto-scaling-group-name", name
                ),
            )


def _volumes(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_volumes", "Volumes"):
        tags, id = flat(one.get("Tags")), one["VolumeId"]
        owner = volume_owner(scope, one)
        if owner is None or one["State"] in ("deleting", "deleted"):
            continue
        users = ", ".join(at.get("InstanceId", "") for at in one.get("Attachments") or ())
        yield row(
            VOLUME,
            scope,
            owner,
            id,
            tags=tags,
            prices=_volume_prices(one),
            detail=f"{one['State']}{f' by {users}' if users else ''}, {one['Size']} GiB {one.get('VolumeType', '')}",
            remedy=command(scope, "ec2 delete-volume --volume-id", id),
        )


def volume_owner(scope: Scope, one: dict[str, Any]) -> Owner | None:
    """Returns why a volume belongs to the cluster: its tags, its recorded id, or its instance. None if it does not."""
    tags, users = flat(one.get("Tags")), {at.get("InstanceId", "") for at in one.get("Attachments") or ()}
    owner = scope.owner(tags, name=tags.get("Name", ""))
    if owner is not None and owner.is_certain:
        return owner
    if users & scope.instance_ids and not scope.is_of_another(tags):
        return Owner(f"attached to {min(users & scope.instance_ids)}, an instance of the cluster")
    if one["VolumeId"] in scope.volume_ids and not scope.is_of_another(tags):
        return Owner("a volume that the cluster is known to have had")
    return None if users & scope.other_instance_ids else owner


def _volume_prices(one: dict[str, Any]) -> Iterator[PriceKey]:
    kind = one.get("VolumeType", "standard")
    yield stored("ebs", kind, one["Size"])
    iops = float(one.get("Iops") or 0) - (FREE_IOPS if kind == "gp3" else 0)
    if kind in ("gp3", "io1", "io2") and iops > 0:
        yield PriceKey("ebs", "IOPS-month", kind, iops)
    mibps = float(one.get("Throughput") or 0) - FREE_MIBPS
    if kind == "gp3" and mibps > 0:
        yield PriceKey("ebs", "MiBps-month", kind, mibps)


def _snapshots(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_snapshots", "Snapshots", OwnerIds=["self"]):
        tags, id = flat(one.get("Tags")), one["SnapshotId"]
        if owner := better(scope.owner(tags, name=tags.get("Name", "")), _origin(scope, one, tags)):
            yield row(
                SNAPSHOT,
                scope,
                owner,
                id,
                tags=tags,
                prices=[stored("ebs-snapshot", one.get("StorageTier", "standard"), one["VolumeSize"])],
                detail=f"of {one.get('VolumeId', '?')}, at most {one['VolumeSize']} GiB",
                remedy=command(scope, "ec2 delete-snapshot --snapshot-id", id),
            )


def _origin(scope: Scope, one: dict[str, Any], tags: dict[str, str]) -> Owner | None:
    """Returns why a snapshot without cluster tags belongs to the cluster: the volume or instance that it was created
    from. None if it does not.
    """
    if scope.is_of_another(tags):
        return None
    if one.get("VolumeId") in scope.volume_ids:
        return Owner(f"of {one['VolumeId']}, a volume of the cluster")
    made_by = OF_IMAGE.search(one.get("Description") or "")
    if made_by and made_by[1] in scope.instance_ids:
        return Owner(f"made for an image of {made_by[1]}, an instance of the cluster")
    return None


def _images(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_images", "Images", Owners=["self"]):
        tags, id = flat(one.get("Tags")), one["ImageId"]
        source = one.get("SourceInstanceId", "")
        origin = Owner(f"made of {source}, an instance of the cluster") if source in scope.instance_ids else None
        owner = better(scope.owner(tags, name=one.get("Name", "")), None if scope.is_of_another(tags) else origin)
        if owner:
            yield row(
                IMAGE,
                scope,
                owner,
                id,
                name=one.get("Name", ""),
                tags=tags,
                detail="its snapshots bill as rows of their own",
                remedy=command(scope, "ec2 deregister-image --image-id", id),
            )


def _templates(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_launch_templates", "LaunchTemplates"):
        tags, name = flat(one.get("Tags")), one["LaunchTemplateName"]
        if owner := scope.owner(tags, name=name):
            yield row(
                TEMPLATE,
                scope,
                owner,
                one["LaunchTemplateId"],
                name=name,
                tags=tags,
                remedy=command(scope, "ec2 delete-launch-template --launch-template-id", one["LaunchTemplateId"]),
            )


def _placements(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_placement_groups", "PlacementGroups"):
        tags, name = flat(one.get("Tags")), one["GroupName"]
        owner = scope.owner(tags, name=name)
        if owner and one.get("State") not in ("deleting", "deleted"):
            yield row(
                PLACEMENT,
                scope,
                owner,
                one.get("GroupId") or name,
                name=name,
                tags=tags,
                remedy=command(scope, "ec2 delete-placement-group --group-name", name),
            )


def _capacity(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_capacity_reservations", "CapacityReservations"):
        tags, id = flat(one.get("Tags")), one["CapacityReservationId"]
        owner = scope.owner(tags, name=tags.get("Name", ""))
        if owner is None or one["State"] in ("cancelled", "expired", "failed", "payment-failed", "unsupported"):
            continue
        is_block, unused = one.get("ReservationType") == "capacity-block", one.get("AvailableInstanceCount", 0)
        prices = [] if is_block or not unused else [hourly("ec2-reservation", one["InstanceType"], unused)]
        ends: datetime | None = one.get("EndDate")
        until = f" until {ends:%Y-%m-%d %H:%M} UTC" if ends else ""
        yield row(
            RESERVATION,
            scope,
            owner,
            id,
            tags=tags,
            prices=prices,
            detail=f"{one.get('TotalInstanceCount', '?')} x {one['InstanceType']}, {unused} unused"
            + (f", capacity block, paid in advance{until}" if is_block else until),
            remedy="ends by itself; it cannot be cancelled"
            if is_block
            else command(scope, "ec2 cancel-capacity-reservation --capacity-reservation-id", id),
        )


INSTANCE: Final = ("ec2", "instance")
GROUP: Final = ("autoscaling", "autoscaling group")
VOLUME: Final = ("ec2", "volume")
SNAPSHOT: Final = ("ec2", "snapshot")
IMAGE: Final = ("ec2", "image")
TEMPLATE: Final = ("ec2", "launch template")
PLACEMENT: Final = ("ec2", "placement group")
RESERVATION: Final = ("ec2", "capacity reservation")

FINDERS: Final = (
    Finder(*INSTANCE, ("ec2:DescribeInstances",), _instances),
    Finder(*GROUP, ("autoscaling:DescribeAutoScalingGroups",), _groups),
    Finder(*VOLUME, ("ec2:DescribeVolumes",), _volumes),
    Finder(*SNAPSHOT, ("ec2:DescribeSnapshots",), _snapshots),
    Finder(*IMAGE, ("ec2:DescribeImages",), _images),
    Finder(*TEMPLATE, ("ec2:DescribeLaunchTemplates",), _templates),
    Finder(*PLACEMENT, ("ec2:DescribePlacementGroups",), _placements),
    Finder(*RESERVATION, ("ec2:DescribeCapacityReservations",), _capacity),
)
