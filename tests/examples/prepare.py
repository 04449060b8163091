"""The scripts that prepare the sets of the reference systems, imported."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

SYSTEMS = Path(__file__).resolve().parents[2] / "examples" / "systems"


def script_of(folder: str, files: Mapping[str, bytes] | None = None) -> ModuleType:
    """prepare.py of an example; where `files` are given, they are the archives that it expects."""
    spec = importlib.util.spec_from_file_location(f"prepare_{folder[:2]}", SYSTEMS / folder / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in (files or {}).items()}
    names = vars(module)
    if "SHA256" in names:
        names["SHA256"] = digests.get(Path(names["URL"]).name, names["SHA256"])
    elif digests and folder.startswith("s4"):
        names["ARCHIVES"] = {url: digests[Path(url).name] for url in names["ARCHIVES"]}
    return module
