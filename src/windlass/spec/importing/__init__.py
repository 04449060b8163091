"""Turns what people have written for other systems into a job file, and into a list of what it cannot say. Pure.

    text ── documents ──▶ Source ── kubeflow, trainer, sets, torchx, sky ──▶ Draft ── outcome ──▶ Imported
                             └─ each value is read, or left behind with words; `Source.rest` finds what is neither

Pods are read in one place (`pods.py`, `places.py`, `storage.py`), and so are command lines (`words.py`, `shell.py`), by
the code that reads those of torchrun and mpirun.
"""

from windlass.spec.importing.outcome import Imported, import_text
from windlass.spec.importing.source import Left

__all__ = ["Imported", "Left", "import_text"]
