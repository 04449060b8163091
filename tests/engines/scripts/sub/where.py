"""Prints how the script was started, as far as it can observe that."""

import json
import sys
from pathlib import Path

import helper  # type: ignore[import-not-found]

import __main__

print(
    json.dumps(
        {
            "argv": sys.argv,
            "path": sys.path,
            "cwd": str(Path.cwd()),
            "name": __name__,
            "file": __file__,
            "package": __package__,
            "spec": getattr(__spec__, "name", None),
            "main": __main__.__dict__ is globals(),
            "doc": __doc__,
            "globals": sorted(globals()),
            "helper": helper.__file__,
            "optimize": sys.flags.optimize,
            "threads": len(sys._current_frames()),
        }
    )
)
