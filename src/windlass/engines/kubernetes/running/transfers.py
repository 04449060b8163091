"""The file transfers of one run: by Jobs of its plan, and from its pods to the supervisor's machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from windlass.engines.kubernetes.running.collection import OutputsCollection
from windlass.engines.kubernetes.running.job_transfer import JobTransfer
from windlass.plan.plan import Plan
from windlass.plan.steps import CheckJobStep, ManifestStep, StageJobStep, StageStep, UploadJobStep, UploadStep
from windlass.supervise.transfers import CheckpointUploads, DataStaging, OutputsCheck, OutputsUpload


class JobOf(Protocol):
    """Function that creates the transfer for a Job step of a plan; returns None if the plan has no such step."""

    def __call__(self, kind: type[ManifestStep], step: int | None = None) -> JobTransfer | None:
        """`step` is the step of a checkpoint, for a Job that runs at several checkpoints."""


@dataclass(frozen=True, slots=True)
class RunTransfers:
    """The transfers before, during and after the attempts of a run."""

    staging: DataStaging
    check: OutputsCheck
    checkpoints: CheckpointUploads
    outputs: OutputsUpload
    collection: OutputsCollection

    @classmethod
    def of(cls, plan: Plan, job: JobOf, collection: OutputsCollection) -> RunTransfers:
        """Creates the transfers of a plan; `job` creates the transfers that run as Jobs."""
        sources = {one.name: one.source for one in plan.every(StageStep)}
        upload = plan.first(UploadStep)
        destination = "" if upload is None else upload.destination
        is_early = upload is not None and upload.at == "checkpoint"
        return cls(
            DataStaging(job(StageJobStep), sources),
            OutputsCheck(job(CheckJobStep)),
            CheckpointUploads(partial(job, UploadJobStep) if is_early else None, destination),
            OutputsUpload(job(UploadJobStep), destination),
            collection,
        )

    def end(self) -> None:
        """Ends all active transfers. Raises EngineError."""
        self.staging.end()
        self.check.end()
        self.checkpoints.end()
        self.outputs.end()
        self.collection.end()
