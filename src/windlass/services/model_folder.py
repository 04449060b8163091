"""Gathers the files of a model and the functions that serve it in one folder, in the layout that all servers expect."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from windlass.errors import UsageError

CODE: Final = "code"
"""Folder with the functions, inside the folder of the model; AWS's images use the same name."""
HANDLERS: Final = ("predict.py", "inference.py", "model.py")
"""Names of files with functions that serve a model: that of Windlass, that of AWS, and one with a function that creates
the module for a state dict."""


def handler_in(folder: Path) -> str | None:
    """Returns the name of the file with the functions that serve a model; None if the folder has none."""
    return next((name for name in HANDLERS if (folder / name).is_file()), None)


def stage_model(files: Path | None, code: Path | None, folder: Path, *, needs_handler: bool = True) -> None:
    """Fills a new folder with the files of a model and, in its folder `code`, the functions that serve it.

    `files` is a folder or one file; None if the target reads the model itself. `code` is a folder or one file; None if
    `files` has the functions. Where the file system allows it, files are hard links, which take no disk space. With
    `needs_handler`, raises UsageError if no file of `HANDLERS` is found. Raises UsageError for broken links, links to a
    folder that contains them, pipes and devices, and if a source contains `folder`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    if files is not None:
        _link(files, folder)
    if code is not None:
        (folder / CODE).mkdir(exist_ok=True)
        _link(code, folder / CODE)
    elif not (folder / CODE).is_dir() and (found := handler_in(folder)) is not None:
        (folder / CODE).mkdir()
        (folder / found).rename(folder / CODE / found)
    if needs_handler and handler_in(folder / CODE) is None:
        shutil.rmtree(folder)
        names = f"{', '.join(HANDLERS[:-1])} or {HANDLERS[-1]}"
        raise UsageError(
            f"nothing says how to serve {files or 'the model'}: there is no {names}",
            "name it: --code predict.py, with load(folder) and predict(data); see docs/guides/serve-a-model.md",
        )


def _link(source: Path, folder: Path) -> None:
    """Adds a file, or the contents of a folder, to `folder`."""
    if not source.is_dir():
        _require_copyable(source)
        _link_file(str(source), str(folder / source.name))
        return
    if folder.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{source} contains the records of Windlass", "name a folder that has only the model")
    shutil.copytree(source, folder, copy_function=_link_file, dirs_exist_ok=True, ignore=_require_all_copyable)


def _require_all_copyable(folder: str, names: list[str]) -> set[str]:
    """Callback of `copytree` that checks all entries of a folder and excludes none. Raises UsageError."""
    for name in names:
        _require_copyable(Path(folder, name))
    return set()


def _require_copyable(path: Path) -> None:
    """Raises UsageError for a path whose copy would fail or never end."""
    try:
        is_loop = path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())
    except (OSError, RuntimeError):  # a link to itself
        is_loop = True
    if is_loop:
        raise UsageError(f"{path} is a link to a folder that contains the link", "remove the link")
    if not path.is_file() and not path.is_dir():
        what = "a link to nothing" if path.is_symlink() and not path.exists() else "neither a file nor a folder"
        raise UsageError(f"{path} is {what}", "remove it, or name another folder")


def _link_file(source: str, target: str) -> None:
    """Links a file; copies the file if it is on another file system."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)
