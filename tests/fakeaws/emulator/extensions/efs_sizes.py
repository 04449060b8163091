"""EFS sizes: ministack has no mounts, so no file system ever contains a file."""

from __future__ import annotations

import os
from typing import Any

from ministack.services import efs


def extend() -> None:
    """Reports `FAKEAWS_EFS_BYTES` as the size of each new file system."""
    size = int(os.environ.get("FAKEAWS_EFS_BYTES", "0"))
    describe = efs._describe_file_systems

    def described(*arguments: Any) -> Any:
        for system in efs._file_systems.values():
            system["SizeInBytes"] |= {"Value": size, "ValueInStandard": size}
        return describe(*arguments)

    if size:
        efs._describe_file_systems = described
