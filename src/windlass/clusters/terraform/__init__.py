"""Driver for the terraform program: plans as data, progress as events, errors with hints, safe interruption."""

from windlass.clusters.terraform.changes import Action, Change, PlanSummary
from windlass.clusters.terraform.driver import Plan, Result, Terraform
from windlass.clusters.terraform.errors import Interrupted, LockInfo, StalePlan, TerraformError, TerraformFailed
from windlass.clusters.terraform.events import Event, OnEvent, ResourceProgress, TerraformNote
from windlass.clusters.terraform.interrupts import StopRequests
from windlass.clusters.terraform.program import Program, find_program

__all__ = [
    "Action",
    "Change",
    "Event",
    "Interrupted",
    "LockInfo",
    "OnEvent",
    "Plan",
    "PlanSummary",
    "Program",
    "ResourceProgress",
    "Result",
    "StalePlan",
    "StopRequests",
    "Terraform",
    "TerraformError",
    "TerraformFailed",
    "TerraformNote",
    "find_program",
]  # fmt: skip
