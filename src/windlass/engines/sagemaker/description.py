"""Descriptions of training jobs, as DescribeTrainingJob returns them, and the file that stores the last one."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from windlass.engines.sagemaker.service import Description
from windlass.storage.files import write_whole

INTERRUPTED: Final = "Interrupted"
"""Secondary status of a job whose spot instances were reclaimed."""
FILE: Final = "training-job.json"
"""File in the folder of an attempt: the last description of its job. `why` and `cost` read this file, because the login
may have expired."""


def write_description(folder: Path, description: Description) -> None:
    """Writes the description of an attempt's job to the folder of the attempt. Raises OSError."""
    kept = {name: value for name, value in description.items() if name != "ResponseMetadata"}
    write_whole(folder / FILE, json.dumps(kept, default=seconds_of).encode())


def read_description(folder: Path) -> Description:
    """Reads the stored description of an attempt's job; empty if there is none."""
    try:
        found: Description = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def has_containers(description: Description) -> bool:
    """Whether the containers of the job are running."""
    return description.get("SecondaryStatus") in ("Training", "Stopping", "Uploading")


def num_starts(description: Description) -> int:
    """Returns how many times SageMaker has started the hosts of the job. Each spot interruption adds a start."""
    transitions = description.get("SecondaryStatusTransitions") or ()
    return 1 + len([one for one in transitions if one["Status"] == INTERRUPTED])


def seconds_of(moment: Any, otherwise: float = 0.0) -> float:
    """Converts a time of the service, a datetime or Unix seconds, to Unix seconds; `otherwise` for None."""
    if moment is None:
        return otherwise
    return float(moment.timestamp() if isinstance(moment, datetime) else moment)
