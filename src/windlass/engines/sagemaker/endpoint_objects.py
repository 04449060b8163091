"""Finds all existing objects of a deployment on SageMaker, and removes them completely."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from windlass.engines.aws_codes import DENIED_CODES
from windlass.engines.deployments import OnProgress
from windlass.engines.sagemaker import endpoint_requests, objects
from windlass.engines.sagemaker.endpoint_access import ANSWER_SECONDS, EndpointAccess
from windlass.engines.sagemaker.endpoint_requests import (
    DIGEST,
    PART_NAME,
    PREFIX,
    Names,
    archive_deleted_by,
    archive_of,
    archives,
    endpoint_name,
    schedule_name,
)
from windlass.engines.sagemaker.hosting import CONFIG, ENDPOINT, MODEL, Kind
from windlass.engines.sagemaker.service import Refused
from windlass.errors import EngineError, LoginFailed

REMOVE_SECONDS: Final = 20 * 60.0
"""Maximum seconds in which refused deletions are repeated."""
PROGRESS_SECONDS: Final = 60.0
ARCHIVE, SCHEDULE = "archive", "schedule"
ARCHIVE_FOLDER: Final = re.compile(rf"/deployments/(?P<name>[^/]+)/(?P<digest>{DIGEST})/$")
"""End of the address of a folder with an archive."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An existing object of a deployment."""

    word: str
    """Kind of the object for messages."""
    name: str
    digest: str
    """First digits of the digest of the request that created the object."""
    kind: Kind | None = None
    """None for archives and schedules."""
    status: str = ""
    """Status of an endpoint."""

    def __str__(self) -> str:
        return f"{self.word} {self.name}"


def listed(found: Sequence[FoundObject]) -> str:
    """Returns the kinds and names of objects."""
    return ", ".join(map(str, found))


class EndpointObjects:
    """The objects of all deployments of a target."""

    def __init__(self, access: EndpointAccess) -> None:
        self._access = access

    def found(self, deployment: str, digest: str = "") -> list[FoundObject]:
        """Returns the existing objects of a deployment; with a `digest`, only those of that request."""
        found: list[FoundObject] = []
        named_archives: set[str] = set()
        endpoint = self._access.hosting.describe(ENDPOINT, endpoint_name(deployment))
        parts = {f"{PREFIX}{deployment}-{digest}"} if digest else set()
        if endpoint is not None and (own := PART_NAME.fullmatch(endpoint["EndpointConfigName"])) is not None:
            status = str(endpoint["EndpointStatus"])
            found.append(FoundObject("endpoint", endpoint_name(deployment), own["digest"], ENDPOINT, status))
            parts.add(own[0])
        for kind in (CONFIG, MODEL):
            # Lists of AWS may lag; descriptions do not.
            for part in sorted({*parts, *self._access.hosting.names(kind, f"{PREFIX}{deployment}-")}):
                named = PART_NAME.fullmatch(part)
                if named is None or named["name"] != deployment:
                    continue
                if (one := self._access.hosting.describe(kind, part)) is not None:
                    found.append(FoundObject(kind.word, part, named["digest"], kind))
                    named_archives.add(archive_of(one))
        schedules = []
        for name in self._access.hosting.schedules(schedule_name(deployment, "")):
            if (schedule := self._access.hosting.schedule(name)) is not None:
                schedules.append(FoundObject(SCHEDULE, name, str(schedule.get("Description", ""))))
                named_archives.add(archive_deleted_by(schedule))
        found += [*self._archives(deployment, named_archives), *schedules]
        return [one for one in found if not digest or one.digest == digest]

    def _archives(self, deployment: str, named: Collection[str]) -> Iterator[FoundObject]:
        """Yields the archives of a deployment in the store of this target, and those that models and schedules name,
        which are in the store of another target.
        """
        folder = archives(self._access.target.storage, deployment)
        stored = (name.partition("/") for name in objects.names(folder, self._access.home))
        own = {f"{folder}{digest}/" for digest, is_folder, _ in stored if is_folder}
        for address in sorted({*own, *named}):
            part = ARCHIVE_FOLDER.search(address)
            if part is None or part["name"] != deployment:
                continue
            if address in own or (not address.startswith(folder) and self._may_exist(address)):
                yield FoundObject(ARCHIVE, address, part["digest"])

    def _may_exist(self, address: str) -> bool:
        """Whether an archive of another target exists, or its store does not answer this user."""
        with contextlib.suppress(EngineError):
            return objects.has_any(address, self._access.home)
        return True

    def remove(self, deployment: str, digest: str, on_progress: OnProgress) -> tuple[str, ...]:
        """Removes the objects that `found` returns, waits until they are gone, and returns what was removed.

        AWS refuses to delete an endpoint that is Creating, so deletions are repeated. Schedules are deleted last: if
        this process is killed, they still end the rest. Raises EngineError with what is left.
        """
        removed: dict[str, None] = {}
        left: list[FoundObject] | None = None
        why, began = "", self._access.clock.time()
        heard_at = said_at = began
        while True:
            before, waits = left, True
            try:
                left = self.found(deployment, digest)
                heard_at = self._access.clock.time()
                if not left:
                    return tuple(removed)
                removed.update(dict.fromkeys(map(str, left)))
                self._delete_stage(left)
                # Only endpoints are deleted later than AWS answers.
                waits = left == before or any(one.kind is ENDPOINT for one in left)
            except EngineError as error:
                why = error.message
                if isinstance(error, LoginFailed) or (isinstance(error, Refused) and error.code in DENIED_CODES):
                    break
            now = self._access.clock.time()
            if now - began >= REMOVE_SECONDS or now - heard_at >= ANSWER_SECONDS:
                break
            if left and now - said_at >= PROGRESS_SECONDS:
                said_at = now
                on_progress(f"waiting until {listed(left)} is gone{f': {why}' if why else ''}")
            if waits:
                self._access.pause(now - began)
        what = "it is unknown what is left" if left is None else f"left: {listed(left)}"
        raise EngineError(f"{what}: {why}" if why else what, self._hand_over(deployment, left or []))

    def _delete_stage(self, left: Sequence[FoundObject]) -> None:
        """Deletes the endpoint; without one, what it uses; and the schedules last. Raises the last EngineError.

        The model is deleted after its archive, because it may be the only object that names the archive's address.
        """
        endpoints = [one for one in left if one.kind is ENDPOINT]
        parts = [one for one in left if one.word != SCHEDULE]
        stage = endpoints or [one for one in parts if one.kind is not MODEL] or parts or left
        refused: EngineError | None = None
        for one in stage:
            try:
                if one.word == ARCHIVE:
                    objects.remove(one.name, self._access.home)
                elif one.kind is None:
                    self._access.hosting.delete_schedule(one.name)
                elif one.status != "Deleting":
                    self._access.hosting.delete(one.kind, one.name)
            except EngineError as error:  # other objects may still be deleted
                refused = error
        if refused is not None:
            raise refused

    def _hand_over(self, deployment: str, left: Sequence[FoundObject]) -> str:
        """Schedules the deletion of an endpoint by EventBridge Scheduler, which repeats it. Returns a hint on how the
        rest of the deployment ends.
        """
        again = f"repeat later: windlass undeploy {deployment} --on {self._access.target.name}"
        digest = next((one.digest for one in left if one.kind is ENDPOINT), "")
        if not digest or not self._access.target.schedule_role:
            return again
        soon, names = self._access.clock.time() + PROGRESS_SECONDS, Names(deployment, digest)
        found = (one.name for one in left if one.word == ARCHIVE and one.digest == digest)
        archive = next(found, names.archive(self._access.target.storage))
        try:
            role = self._access.schedule_role
            for body in endpoint_requests.schedules(names, self._access.target.region, archive, role, soon):
                if not self._access.hosting.create_schedule(body):
                    self._access.hosting.update_schedule(body)
        except EngineError:
            return again
        return f"EventBridge Scheduler repeats the deletion for 24 hours, also while this machine is off; or {again}"
