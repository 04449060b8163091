"""Drives the terraform program in the working folder of a cluster."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from windlass.clusters.terraform import command as commands
from windlass.clusters.terraform import process
from windlass.clusters.terraform.changes import Change, PlanSummary, summary_of
from windlass.clusters.terraform.errors import Interrupted, StalePlan, TerraformError, TerraformFailed, failure
from windlass.clusters.terraform.events import COLOR, OnEvent, ignore, text_diagnostics
from windlass.clusters.terraform.folder import ClusterFolder, write_private
from windlass.clusters.terraform.interrupts import StopRequests
from windlass.clusters.terraform.logs import new_log
from windlass.clusters.terraform.program import Program, environment
from windlass.clusters.terraform.state import StateResource, state_resources
from windlass.runs.machine import this_machine

RECOVERY: Final = "windlass-recovery.tf"
"""Import blocks of a recovery in progress; not part of the configuration."""
RECOVERY_OVERRIDE: Final = "windlass_recovery_override.tf"
"""Override that keeps Terraform from changing imported resources during a recovery. Terraform merges files named
`_override` into the blocks that they repeat."""
ADOPTION_IMPORTS: Final = "windlass-adopting.tf"
"""Import blocks of resources kept by an earlier cluster, present while a plan is created; not part of the
configuration."""
UNFINISHED: Final = "unfinished.json"
"""File that exists from the start of an apply until its regular end."""
INITIALIZED: Final = Path(".terraform") / "windlass-init"
ERRORED_STATE: Final = "errored.tfstate"
"""File in which Terraform saves a state that it could not send to its backend."""
KEPT_PLANS: Final = 5
QUERY_SECONDS: Final = 600
"""Time limit in seconds for read-only commands such as `terraform show`."""
_LOST_PROVIDER: Final = ("Plugin did not respond", "Failed to save state", "Failed to persist state", "plugin crashed")


@dataclass(frozen=True, slots=True)
class Plan:
    """A saved plan file and its summary."""

    path: Path
    summary: PlanSummary
    is_destroy: bool
    sha256: str = field(repr=False)
    """Digest of the plan file: only exactly this file is applied."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a finished apply."""

    added: int = 0
    changed: int = 0
    destroyed: int = 0


class Terraform:
    """Terraform for one cluster; use it inside `ClusterFolder.locked`.

    Failing methods raise a TerraformError: StateLocked if another command holds the state, Interrupted after a
    requested stop, else TerraformFailed. A Terraform process that a killed Windlass process left running is awaited
    before the next one starts.
    """

    def __init__(
        self,
        program: Program,
        folder: ClusterFolder,
        environ: Mapping[str, str],
        *,
        on_event: OnEvent = ignore,
        stop: StopRequests | None = None,
    ) -> None:
        """`environ` holds the credentials and $PATH."""
        self.program, self.folder, self.on_event = program, folder, on_event
        self.machine_id = this_machine(environ).id
        self._environ = environment(environ)
        self.stop = stop or StopRequests()

    # Commands that may change resources or files

    def init(self) -> bool:
        """Initializes providers and backend; returns False, without running Terraform, if they are ready."""
        digest = self._initialization()
        marker = self.folder.path / INITIALIZED
        with contextlib.suppress(FileNotFoundError):
            if marker.read_text() == digest:
                return False
        self._run("init", ["-json"])
        write_private(marker, digest.encode())
        return True

    def _initialization(self) -> str:
        """Returns a digest of everything whose change requires another `terraform init`."""
        found = hashlib.sha256(self.program.text.encode())
        for path in sorted(self.folder.path.glob("*.tf")) + sorted(self.folder.path.glob("*.tf.json")):
            if path.name not in (RECOVERY, RECOVERY_OVERRIDE, ADOPTION_IMPORTS):
                found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return found.hexdigest()

    def plan(
        self,
        *,
        destroy: bool = False,
        targets: Sequence[str] = (),
        refresh: bool = True,
        adopt: Mapping[str, str] | None = None,
        is_locked: bool = True,
    ) -> Plan:
        """Creates a plan and saves it in the folder; changes nothing in AWS.

        `adopt` maps addresses to ids of existing resources that the apply adds to the state. `is_locked`: whether the
        state is locked meanwhile; for a remote state, the lock is a write to its bucket.
        """
        path = self._new_plan("down" if destroy else "up")
        flags = ["-destroy"] * destroy + ["-refresh=false"] * (not refresh)
        targeted = [f"-target={address}" for address in targets]
        unlocked = [] if is_locked else ["-lock=false"]
        adopting = self.folder.path / ADOPTION_IMPORTS
        adopting.unlink(missing_ok=True)  # left by a killed plan
        if adopt:
            adopting.write_text("\n".join(import_block(*one) for one in sorted(adopt.items())), encoding="utf-8")
        try:
            finished = self._run("plan", ["-json", "-detailed-exitcode", f"-out={path}", *flags, *targeted, *unlocked])
        finally:
            adopting.unlink(missing_ok=True)
        is_empty = finished.exit_code == 0  # an empty plan is not parsed, which saves seconds
        shown = {} if is_empty else json.loads(self._query("show", ["-json", str(path)]))
        return Plan(path, summary_of(shown), destroy, hashlib.sha256(path.read_bytes()).hexdigest())

    def _new_plan(self, kind: str) -> Path:
        folder = self.folder.plans
        folder.mkdir(mode=0o700, exist_ok=True)
        for old in sorted(folder.glob("*.tfplan"), key=lambda one: one.stat().st_mtime_ns)[: -(KEPT_PLANS - 1)]:
            old.unlink(missing_ok=True)
        return folder / f"{time.time_ns()}-{kind}.tfplan"

    def apply(self, plan: Plan) -> Result:
        """Applies exactly this saved plan, then deletes it. Raises StalePlan if the state or the file has changed
        since.
        """
        self._refuse_changed(plan)
        self._mark_unfinished(plan)
        is_orderly = False
        try:
            finished = self._run("apply", ["-json", str(plan.path)])
            is_orderly = True
        except TerraformError as error:
            is_orderly = not isinstance(error, _Killed | Interrupted) and not _is_lost(error)
            raise
        finally:
            if is_orderly:
                self.mark_finished()
        plan.path.unlink(missing_ok=True)
        return _result(finished)

    def _refuse_changed(self, plan: Plan) -> None:
        try:
            digest = hashlib.sha256(plan.path.read_bytes()).hexdigest()
        except FileNotFoundError:
            raise StalePlan(f"the saved plan {plan.path.name} does not exist any more", "plan again") from None
        if digest != plan.sha256:
            raise StalePlan(f"the saved plan {plan.path.name} has changed since it was shown", "plan again")

    def untaint(self, address: str) -> None:
        """Keeps a resource that Terraform would replace because its creation was interrupted."""
        self._run("untaint", ["-no-color", address], is_json=False)

    def forget(self, addresses: Sequence[str]) -> None:
        """Removes resources from the state; they continue to exist, and no destroy deletes them."""
        self._run("state-rm", addresses, is_json=False)

    def taint(self, address: str) -> None:
        """Marks a resource for replacement by the next apply."""
        self._run("taint", ["-no-color", address], is_json=False)

    def force_unlock(self, lock_id: str) -> None:
        """Releases the state lock after its holder has exited."""
        self._run("force-unlock", ["-force", "-no-color", lock_id], is_json=False)

    def push_errored_state(self) -> None:
        """Pushes a state that Terraform could not write to its backend, if there is one."""
        path = self.folder.path / ERRORED_STATE
        if path.exists():
            self._run("state-push", [path.name], is_json=False)
            path.rename(path.with_name(f"{ERRORED_STATE}.pushed"))

    # Read-only commands

    def outputs(self) -> dict[str, Any]:
        """Returns the output values by name, including sensitive ones, which must not be printed."""
        found = json.loads(self._query("output", ["-json"]))
        return {name: one["value"] for name, one in found.items()}

    def state(self) -> list[StateResource]:
        """Returns the resources in the state."""
        return state_resources(self._query("state pull", []))

    def drift(self) -> tuple[Change, ...]:
        """Returns changes and deletions made outside Terraform since the last apply, which another apply would
        revert.
        """
        plan = self.plan()
        plan.path.unlink(missing_ok=True)
        return plan.summary.drift_to_undo

    # Terraform process of an earlier Windlass process

    def follow(self) -> Result | None:
        """Waits for a Terraform process that an earlier Windlass process left running; None if there is none, or it was
        killed.

        Raises TerraformError if it fails.
        """
        finished = self._followed()
        if finished is None or finished.was_killed:
            return None
        self._mark_followed(finished)
        if finished.seen.errors:
            raise _error(finished, finished.command)
        return _result(finished)

    def _followed(self) -> commands.Finished | None:
        """Returns the result of the last process, if no Windlass process observed its end."""
        while True:
            if (record := process.record_of(self.folder.path)) is not None:
                return commands.follow(self.folder.path, record, self._environ, self.on_event, self.stop)
            if not process.is_held(self.folder.path):
                return None
            for killed in process.killed_in(self.folder.path):
                process.end_orphans(killed)
            time.sleep(process.POLL_SECONDS)

    def _mark_followed(self, finished: commands.Finished) -> None:
        if finished.command == "apply" and not finished.was_killed and not finished.was_stopped:
            self.mark_finished()

    # Markers of an unfinished apply

    def _mark_unfinished(self, plan: Plan) -> None:
        found = {"is_destroy": plan.is_destroy, "started_at": time.time(), "machine_id": self.machine_id}
        write_private(self.folder.path / UNFINISHED, json.dumps(found).encode())

    def mark_finished(self) -> None:
        """Records that the last apply finished, so that no recovery is needed."""
        (self.folder.path / UNFINISHED).unlink(missing_ok=True)

    def mark_recovered(self) -> None:
        """Records that all earlier commands have been recovered."""
        self.mark_finished()
        process.forget(self.folder.path)
        process.forget_killed(self.folder.path)

    # Processes

    def _run(self, name: str, flags: Sequence[str], *, is_json: bool = True) -> commands.Finished:
        """Runs a command that writes a log and may hold the state lock. Raises TerraformError."""
        if name == "apply" and self.stop.count:
            raise Interrupted(f"stopped before terraform {name} started", "run the command again")
        if (earlier := self._followed()) is not None:
            self._mark_followed(earlier)
        words = name.split("-") if name.startswith("state-") else [name]
        inputs = ["-input=false"] if name in ("init", "plan", "apply") else []
        finished = commands.run(
            [str(self.program.path), *words, *inputs, *flags],
            self.folder.path,
            self._environ,
            command=name,
            log=new_log(self.folder.logs, name),
            machine_id=self.machine_id,
            on_event=self.on_event,
            stop=self.stop,
            is_json=is_json,
        )
        if finished.exit_code == 0 or (name == "plan" and finished.exit_code == 2):
            return finished
        raise _error(finished, name)

    def _query(self, name: str, flags: Sequence[str]) -> str:
        """Returns the output of a command that takes no lock and changes nothing. Raises TerraformError."""
        argv = [str(self.program.path), *name.split(), *flags]
        try:
            done = subprocess.run(
                argv,
                cwd=self.folder.path,
                env=self._environ,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                timeout=QUERY_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TerraformFailed(f"terraform {name} did not end within {QUERY_SECONDS} s", "run it again") from error
        if done.returncode:
            text = COLOR.sub("", done.stderr.decode("utf-8", "replace"))
            last = ([line for line in text.splitlines() if line.strip()] or [""])[-1]
            raise failure(name, text_diagnostics(text), self.folder.logs, last)
        return done.stdout.decode("utf-8", "replace")


def import_block(address: str, id: str) -> str:
    """Returns an HCL import block that adds an existing resource to the state."""
    quoted = json.dumps(id, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")
    return f"import {{\n  to = {address}\n  id = {quoted}\n}}\n"


class _Killed(TerraformFailed):
    """Terraform was killed by a signal that it cannot handle."""


def _error(finished: commands.Finished, name: str) -> TerraformError:
    if finished.was_killed:
        number = -(finished.exit_code or 0)
        return _Killed(
            f"terraform {name} was killed by signal {number}; resources that it created may be missing in the state",
            "run the command again: it recovers first",
            diagnostics=finished.seen.errors,
            log=finished.log,
        )
    if finished.was_stopped:
        return Interrupted(
            f"terraform {name} was stopped after {finished.seen.num_done} resources; the state is complete",
            "run the same command again to continue",
            diagnostics=finished.seen.errors,
            log=finished.log,
        )
    return failure(name, finished.seen.diagnostics, finished.log, finished.seen.last_line)


def _is_lost(error: TerraformError) -> bool:
    """Whether an error means that the state may lack an existing resource."""
    return any(text in f"{one.summary} {one.detail}" for one in error.diagnostics for text in _LOST_PROVIDER)


def _result(finished: commands.Finished) -> Result:
    counted = finished.seen.counted
    return Result(counted.add, counted.change, counted.destroy) if counted else Result()
