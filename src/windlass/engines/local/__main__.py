"""`python windlass/engines/local HOME RUN_ID LOCK_FD`: the detached supervisor, started without the site packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).absolute().parents[3]))

from windlass.engines.local.backend import LocalBackend
from windlass.supervise.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], LocalBackend))
