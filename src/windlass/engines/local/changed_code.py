"""Warns if an attempt on this machine runs other code than the one that was kept when the run was submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from windlass.code.kept import FILE, PROGRAM_TEXT
from windlass.engines.sources import own_folders
from windlass.plan.plan import Plan
from windlass.runs.events import Warned
from windlass.runs.warnings import CODE_CHANGED

SHOWN: Final = 5
"""Maximum number of changed files that the warning names."""


def changed_code(plan: Plan, run_dir: Path, environ: Mapping[str, str]) -> Iterator[Warned]:
    """Yields a warning with the program files of the code folder that changed since the run was submitted, or with the
    reason why that is unknown.

    Other files and new ones do not count, because they may be results of the run, such as the `hparams.yaml` of
    Lightning.
    """
    if not (run_dir / FILE).exists():
        return
    from windlass.code.snapshot import differing  # imported late: code may not be kept

    own = own_folders(str(run_dir.parent.parent), plan.output_dir)
    found = differing(Path(plan.nodes.cwd), run_dir, environ, own, with_new=False)
    if found is None:
        yield Warned("unknown whether files of the code changed after the run was submitted: they cannot be read now")
        return
    changed = [name for name in found if name.endswith(PROGRAM_TEXT)]
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        message = f"files of the code changed after the run was submitted: {', '.join(changed[:SHOWN])}{more}"
        yield Warned(message, CODE_CHANGED, fix=f"windlass cp {run_dir.name}:code FOLDER has the code of then")
