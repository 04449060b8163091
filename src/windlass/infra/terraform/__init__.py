"""Driver of the terraform program: plans as data, progress as events, errors with hints, stops without loss."""

from windlass.infra.terraform.changes import Action, Change, PlanSummary
from windlass.infra.terraform.driver import Plan, Result, Terraform
from windlass.infra.terraform.errors import (
    Interrupted,
    LockInfo,
    StalePlan,
    StateLocked,
    TerraformError,
    TerraformFailed,
)
from windlass.infra.terraform.events import (
    CommandEnded,
    CommandStarted,
    Counted,
    Diagnostic,
    Event,
    Note,
    OnEvent,
    ResourceDone,
    ResourceFailed,
    ResourceProgress,
    ResourceStarted,
)
from windlass.infra.terraform.interrupts import StopRequests
from windlass.infra.terraform.process import RunningCommand
from windlass.infra.terraform.program import Program, TerraformMissing, TerraformTooOld, find_program
from windlass.infra.terraform.state import StateResource

__all__ = [
    "Action", "Change", "CommandEnded", "CommandStarted", "Counted", "Diagnostic", "Event", "Interrupted",
    "LockInfo", "Note", "OnEvent", "Plan", "PlanSummary", "Program", "ResourceDone",
    "ResourceFailed", "ResourceProgress", "ResourceStarted", "Result", "RunningCommand", "StalePlan", "StateLocked",
    "StateResource", "StopRequests", "Terraform", "TerraformError", "TerraformFailed", "TerraformMissing",
    "TerraformTooOld", "find_program",
]  # fmt: skip
