"""`python windlass/engines/local HOME RUN_ID LOCK_FD`: the detached supervisor, started without the site packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).absolute().parents[3]))

from windlass.engines.local.backend import LocalBackend
from windlass.runs.store import Store
from windlass.supervise.process import main


def look(store: Store, run_id: str) -> None:
    """Update the record of a run that this one waits for."""
    from windlass.engines.local.engine import LocalEngine  # few runs wait for others

    LocalEngine(store).status(run_id)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], lambda plan, run_dir: LocalBackend(plan, run_dir, look)))
