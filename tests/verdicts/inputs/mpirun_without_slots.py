"""The script starts mpirun by itself, for more processes than it has slots."""

import os
import subprocess
import sys

root = ["--allow-run-as-root"] if os.getuid() == 0 else []
sys.exit(subprocess.call(["mpirun", *root, "-np", "99", "--host", "localhost:1", "hostname"]))
