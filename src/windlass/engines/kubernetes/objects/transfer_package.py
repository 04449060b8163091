"""Packs the parts of this package that move files: a zip file that Python runs as it is."""

from __future__ import annotations

import functools
from typing import Final

from windlass.engines.kubernetes.objects.package import packed

PARTS: Final = ("__init__.py", "errors.py", "storage", "stores")
"""Of the folder of the package. They need the standard library alone."""
REFUSED: Final = 64
"""Exit code where another pod would fail in the same way."""
MAIN: Final = f'''"""Fetches the code of a job, in any Python from 3.9 on; else moves files, by one from 3.11 on."""
import json
import os
import signal
import sys

# The first process of a container ignores a signal without a handler.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def refuse(words):
    told = {{"error": "the pod that moves files needs " + words, "hint": "set supervisor_image: in the target"}}
    with open(os.environ["WINDLASS_TRANSFER_RESULT"], "w") as file:
        json.dump(told, file)
    sys.exit({REFUSED})


if len(sys.argv) == 3:
    from windlass.stores.s3.fetch import fetch

    try:
        fetch(*sys.argv[1:])
    except OSError as error:
        sys.exit(str(error))
    sys.exit()

if sys.version_info < (3, 11):
    refuse("Python 3.11, and its image has %d.%d" % sys.version_info[:2])

import zip_importer

zip_importer.install()
try:
    from windlass.storage.pod import main
except ImportError as error:  # Debian's python3-minimal, builds without the headers of OpenSSL
    refuse("the whole standard library, and its image lacks a part of it: %s" % error)

sys.exit(main())
'''


@functools.cache
def archive() -> bytes:
    """The zip file."""
    return packed(MAIN, PARTS)
