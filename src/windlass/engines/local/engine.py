"""The local engine's second door: runs on this machine, kept by detached supervisors."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.engines.keeping.engine import KeptEngine
from windlass.engines.local import waiting
from windlass.engines.local.ground import LocalGround
from windlass.errors import StoreError
from windlass.plan.plan import Plan
from windlass.runs.store import RunWriter

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations

KEEPER = Path(__file__).with_name("__main__.py")
TRAVELLING = ("__init__.py", "worker", "train")
"""What of the package goes with a job to interpreters that do not have it."""


class LocalEngine(KeptEngine):
    """Runs on this machine."""

    def observe(self, run_id: str) -> Observations:
        """All that can be seen of a run. Raises NoSuchRun."""
        from windlass.engines.local.observe import observe

        return observe(self.store, self.status(run_id))

    def _keeper_command(self, run_id: str, lock: int) -> Sequence[str]:
        # -I -S: it needs nothing but the standard library and this package, and starts in half the time.
        return [sys.executable, "-I", "-S", str(KEEPER), str(self.store.home), run_id, str(lock)]

    def _ground(self, plan: Plan, run_dir: Path) -> LocalGround:
        return LocalGround(plan, run_dir)

    def _hand_over(self, run_id: str, lock: int, log: int) -> bool:
        return waiting.hand_over(self.store.home, run_id, lock, log)

    def _prepare(self, plan: Plan, writer: RunWriter) -> None:
        """Lay out the folder that is put on PYTHONPATH for interpreters that do not have this package."""
        package = Path(__file__).parents[2]
        folder = self.store.home / "travel" / "windlass"
        try:
            if folder.is_symlink() or not all((folder / part).exists() for part in TRAVELLING):
                shutil.rmtree(folder, ignore_errors=True)
                folder.parent.mkdir(mode=0o700, exist_ok=True)  # it is on the path from which ranks import
                folder.mkdir(mode=0o700, exist_ok=True)
                for part in TRAVELLING:
                    with contextlib.suppress(FileExistsError):
                        (folder / part).symlink_to(package / part)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made ({error.strerror})", "see: windlass doctor") from error
