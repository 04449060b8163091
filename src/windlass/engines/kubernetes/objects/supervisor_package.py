"""Packs the parts of this package that a supervisor in the cluster needs: a zip file that Python runs as it is."""

from __future__ import annotations

import functools
from typing import Final

from windlass.engines.kubernetes.objects.package import packed

PARTS: Final = ("__init__.py", "errors.py", "code", "engines/__init__.py", "engines/checks.py", "engines/travel.py",
                "engines/kubernetes", "plan", "runs", "stores", "supervise", "worker")  # fmt: skip
"""Of the folder of the package. They need the standard library alone."""
AGAIN: Final = 75
"""Exit code of a supervisor that ends before its run: the Job starts another one."""
MAIN: Final = f'''"""Starts the supervisor, where the interpreter is new enough for it."""
import signal
import sys

# The first process of a container ignores a signal without a handler: a deleted pod would stay for its whole grace
# period if it was deleted during the imports.
signal.signal(signal.SIGTERM, lambda *_: sys.exit({AGAIN}))

if sys.version_info < (3, 11):
    sys.exit("the supervisor needs Python 3.11, and the image has %d.%d: set supervisor_image: in the target, or "
             "supervisor: machine" % sys.version_info[:2])

import zip_importer

zip_importer.install()
try:
    from windlass.engines.kubernetes.supervisor.main import main
except ImportError as error:  # Debian's python3-minimal, builds without the headers of SQLite or OpenSSL
    sys.exit("the supervisor needs the whole standard library, and the image lacks a part of it (%s): set "
             "supervisor_image: in the target, or supervisor: machine" % error)

sys.exit(main())
'''


@functools.cache
def archive() -> bytes:
    """The zip file."""
    return packed(MAIN, PARTS)
