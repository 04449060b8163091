"""`python -m tests.servers`: builds the servers of these tests into the cache of this machine."""

from __future__ import annotations

import sys

from tests.helpers.golang import BuildError, build
from tests.servers.s3 import VERSITYGW


def main() -> None:
    try:
        build([VERSITYGW])
    except BuildError as problem:
        sys.exit(f"servers: {problem}")


if __name__ == "__main__":
    main()
