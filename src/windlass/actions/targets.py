"""Finds a target by name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.engines import TARGETS, added_kinds, target_model
from windlass.errors import UsageError, WindlassError
from windlass.runs.context import Context
from windlass.spec.text_file import read_text

if TYPE_CHECKING:
    from windlass.spec.address import ClusterAddress
    from windlass.spec.targets import Target

DEFAULT: Final = "local"
FILE: Final = "targets.yaml"


def target_files(context: Context) -> list[Path]:
    """Returns targets files by precedence: in the working folder, the user's, and those of the user's clusters."""
    config = Path(context.environ.get("XDG_CONFIG_HOME") or Path(context.environ.get("HOME", "/")) / ".config")
    return [context.cwd / FILE, config / "windlass" / FILE, *sorted(context.home.glob(f"clusters/*/{FILE}"))]


def find_target(name: str, context: Context) -> Target:
    """Returns the named target. Raises UsageError if it does not exist, JobFileError for an invalid file."""
    known = named_targets(context)
    if name not in known:
        names = ", ".join(sorted(known))
        raise UsageError(f"no target is called '{name}'", f"known: {names}; more are named in {FILE}")
    return known[name][0]


def named_targets(context: Context) -> dict[str, tuple[Target, Path | None]]:
    """Returns all targets by name, each with its file. `local` exists without a file. Raises JobFileError."""
    from windlass.spec.targets import LocalTarget

    known: dict[str, tuple[Target, Path | None]] = {DEFAULT: (LocalTarget(name=DEFAULT), None)}
    for path in reversed(target_files(context)):
        if path.is_file():
            from windlass.spec.parse import parse_targets

            found = parse_targets(read_text(path, str(path)), str(path), target_model, added_kinds)
            # leaves out the `local` that the parser adds to every file
            named = {name for name, target in found.items() if "kind" in target.model_fields_set}
            known |= {name: (target, path) for name, target in found.items() if name in named}
    return known


def target_names(context: Context) -> list[str]:
    """Returns the names for `--on` in file order. Does not load the target models, because completion must be fast."""
    from windlass.spec.yamltext import read_yaml

    names = [DEFAULT]
    for path in target_files(context):
        with contextlib.suppress(WindlassError):
            names += read_yaml(read_text(path, str(path)), str(path), "")[0] if path.is_file() else ()
    return list(dict.fromkeys(names))


def remote_names(context: Context) -> list[str]:
    """Returns names of targets on which other machines may have started runs; skips unreadable targets files."""
    found: dict[str, bool] = {}
    for path in target_files(context):
        if not path.is_file():
            continue
        from windlass.spec.yamltext import read_yaml  # many users have no targets file, and list their runs often

        with contextlib.suppress(WindlassError):
            entries = read_yaml(read_text(path, str(path)), str(path), "")[0]
            for name, entry in entries.items():
                found.setdefault(str(name), isinstance(entry, dict) and entry.get("kind") in TARGETS)
    return [name for name, is_remote in found.items() if is_remote]


def find_address(name: str, context: Context) -> Target | ClusterAddress:
    """Returns the connection settings of the named target, for commands on existing runs.

    Skipping the other settings of a Kubernetes target halves the start-up time. Raises the errors of `find_target`.
    """
    from windlass.spec.address import read_address

    files = ((read_text(path, str(path)), str(path)) for path in target_files(context) if path.is_file())
    return read_address(files, name) or find_target(name, context)
