"""Driver of the terraform program: plans as data, progress as events, errors with hints, stops without loss."""

from windlass.infra.terraform.changes import Action, Change, PlanSummary
from windlass.infra.terraform.driver import Plan, Result, Terraform
from windlass.infra.terraform.errors import (
    Interrupted,
    LockInfo,
    StalePlan,
    TerraformError,
    TerraformFailed,
)
from windlass.infra.terraform.events import Event, Note, OnEvent, ResourceProgress
from windlass.infra.terraform.interrupts import StopRequests
from windlass.infra.terraform.program import Program, find_program

__all__ = [
    "Action", "Change", "Event", "Interrupted",
    "LockInfo", "Note", "OnEvent", "Plan", "PlanSummary", "Program", "ResourceProgress", "Result", "StalePlan",
    "StopRequests", "Terraform", "TerraformError", "TerraformFailed", "find_program",
]  # fmt: skip
