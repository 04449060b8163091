"""`cluster up` checks its requirements before it creates anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.clusters.up import require_programs
from windlass.errors import MissingExtra
from windlass.runs.context import Context


def test_missing_programs_are_reported_before_anything_is_created(tmp_path: Path) -> None:
    context = Context({"PATH": str(tmp_path)}, tmp_path)
    for program in ("helm", "aws"):
        with pytest.raises(MissingExtra, match=f"{program} is not installed"):
            require_programs(context)
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    require_programs(context)
