"""Descriptions of training jobs, as DescribeTrainingJob returns them, and the file that keeps the last one."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from windlass.engines.sagemaker.service import Description
from windlass.storage.files import write_whole

INTERRUPTED: Final = "Interrupted"
"""Secondary status of a job whose spot instances were taken back."""
FILE: Final = "training-job.json"
"""In the folder of an attempt: what the service last reported of its job, for `why` and `cost`: a login may expire."""


def write_description(folder: Path, description: Description) -> None:
    """Write what the service reports of the job of an attempt into its folder. Raises OSError."""
    kept = {name: value for name, value in description.items() if name != "ResponseMetadata"}
    write_whole(folder / FILE, json.dumps(kept, default=seconds_of).encode())


def read_description(folder: Path) -> Description:
    """What the service last reported of the job of an attempt; empty where it was never reached."""
    try:
        found: Description = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def has_containers(description: Description) -> bool:
    """Whether the containers of the job run."""
    return description.get("SecondaryStatus") in ("Training", "Stopping", "Uploading")


def num_starts(description: Description) -> int:
    """How often SageMaker has started the hosts of the job: again where spot instances were taken back."""
    transitions = description.get("SecondaryStatusTransitions") or ()
    return 1 + len([one for one in transitions if one["Status"] == INTERRUPTED])


def seconds_of(moment: Any, otherwise: float = 0.0) -> float:
    """A time of the service in Unix seconds, which boto3 gives as a datetime; `otherwise` where there is none."""
    if moment is None:
        return otherwise
    return float(moment.timestamp() if isinstance(moment, datetime) else moment)
