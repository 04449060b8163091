"""Prints the facts that a module started by -m can observe."""

import json
import sys
from pathlib import Path

import __main__

from . import helper

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
            "helper": helper.__name__,
        }
    )
)
