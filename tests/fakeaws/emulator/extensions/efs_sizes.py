"""EFS: ministack has no mount, so that no file system ever has a file."""

from __future__ import annotations

import os
from typing import Any

from ministack.services import efs


def extend() -> None:
    """Give each file system as many bytes as `FAKEAWS_EFS_BYTES` says, once it is made."""
    size = int(os.environ.get("FAKEAWS_EFS_BYTES", "0"))
    describe = efs._describe_file_systems

    def described(*arguments: Any) -> Any:
        for system in efs._file_systems.values():
            system["SizeInBytes"] |= {"Value": size, "ValueInStandard": size}
        return describe(*arguments)

    if size:
        efs._describe_file_systems = described
