"""`python windlass/engines/local HOME RUN_ID LOCK_FD`: the detached supervisor, started without the site packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).absolute().parents[3]))

from windlass.engines.keeping.keeper import main
from windlass.engines.local import waiting
from windlass.engines.local.ground import LocalGround

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[1] == waiting.WAITS:
        arguments = waiting.wait_for_run(arguments)
    sys.exit(main(arguments, LocalGround) if arguments else 0)
