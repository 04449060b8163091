"""Operations of engines on the objects of a service, such as a notebook: its files and its load balancer."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from windlass.compat import override
from windlass.engines.base import Engine
from windlass.engines.kubernetes.objects import layout

if TYPE_CHECKING:
    from contextlib import closing

    from windlass.engines.kubernetes.access.client import Client
    from windlass.plan.exposure import Exposure


class ServiceObjects(Engine):
    """Part of the engines of a cluster: those of runs with a record on this machine, and without one."""

    @abstractmethod
    def _client_of(self, run_id: str) -> closing[Client]:
        """Returns a client for the namespace of a run."""

    @override
    def service_files(self, run_id: str) -> Mapping[str, bytes]:
        with self._client_of(run_id) as client:
            data = client.get("v1", "Secret", layout.key_name(run_id)).get("data", {})
        return {name: base64.b64decode(text) for name, text in data.items() if name != layout.KEY_FILE}

    @override
    def expose(self, run_id: str, exposure: Exposure, seconds: float) -> None:
        from windlass.engines.kubernetes.running.exposed import expose

        with self._client_of(run_id) as client:
            expose(client, run_id, exposure, seconds)

    @override
    def conceal(self, run_id: str) -> bool:
        from windlass.engines.kubernetes.running.exposed import conceal_and_wait

        with self._client_of(run_id) as client:
            return conceal_and_wait(client, run_id)
