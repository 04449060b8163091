"""The transfers of files of one run: by Jobs of its plan, and from its pods to where its supervisor is."""

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
    """Gives the transfer by the Job of a step of a plan; None where the plan has no such step."""

    def __call__(self, kind: type[ManifestStep], step: int | None = None) -> JobTransfer | None:
        """`step` is that of a checkpoint, for a Job that is created several times."""


@dataclass(frozen=True, slots=True)
class RunTransfers:
    """What is transferred before, during and after the attempts of a run."""

    staging: DataStaging
    check: OutputsCheck
    checkpoints: CheckpointUploads
    outputs: OutputsUpload
    collection: OutputsCollection

    @classmethod
    def of(cls, plan: Plan, job: JobOf, collection: OutputsCollection) -> RunTransfers:
        """Those of a plan; `job` gives the transfers by its Jobs."""
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
        """End those that are active. Raises EngineError."""
        self.staging.end()
        self.check.end()
        self.checkpoints.end()
        self.outputs.end()
        self.collection.end()
