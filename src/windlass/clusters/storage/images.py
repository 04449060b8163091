"""Counts the images in the repositories of a cluster, which `down` deletes only on request. Reads only."""

from __future__ import annotations

from windlass.clusters.aws import Aws, NotThere, aws_errors
from windlass.clusters.eks.contents import Contents
from windlass.errors import UsageError


def images(found: Contents, aws: Aws) -> tuple[str, ...]:
    """Returns each repository that has images, with their number and size. Raises AwsError.

    The size counts layers that images share once for each image.
    """
    listed = []
    for name in found.repositories:
        try:
            with aws_errors(f"list images of {name}", action="ecr:DescribeImages"):
                pages = aws.client("ecr").get_paginator("describe_images").paginate(repositoryName=name)
                sizes = [int(one.get("imageSizeInBytes") or 0) for page in pages for one in page["imageDetails"]]
        except NotThere:  # an earlier `down` has deleted the repository
            continue
        if sizes:
            listed.append(f"the repository {name} has {len(sizes)} images of {sum(sizes) / 1e9:,.2f} GB")
    return tuple(listed)


def require_no_images(listed: tuple[str, ...]) -> None:
    """Raises UsageError if repositories have images, which would be deleted."""
    if listed:
        raise UsageError(
            f"{'; '.join(listed)}, which would be deleted",
            "copy the images to keep to another registry: docker pull, docker push; --force deletes all of them",
        )
