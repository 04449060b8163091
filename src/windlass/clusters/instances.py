"""What Terraform and the checks of an account need to know of an instance type; 0 where that is not known. Pure."""

from __future__ import annotations

from windlass.pricing.instances import instance_type


def vcpus_of(name: str) -> int:
    """How many vCPUs an instance type has."""
    found = instance_type(name)
    return found.vcpus if found is not None else 0


def cores_of(name: str) -> int:
    """How many processor cores it has."""
    found = instance_type(name)
    return found.cores if found is not None else 0


def efa_of(name: str) -> int:
    """How many Elastic Fabric Adapters it has."""
    found = instance_type(name)
    return found.efa_interfaces if found is not None else 0
