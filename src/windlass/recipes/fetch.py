"""Fetches a set by its recipe: downloads, converts, and shows each layout at once when all of it is on the disk.

FOLDER/ENTRY…                               what scripts read
FOLDER/LICENCE-NAME.txt                     licence, citation and sources
FOLDER/.windlass-manifest.jsonl             digests of all files of the folder, for `data verify`
FOLDER/.windlass/fetch/NAME/downloads/      downloads, until all layouts are made
FOLDER/.windlass/fetch/NAME/LAYOUT/         a layout that is being made; LAYOUT.jsonl beside it once it is whole
FOLDER/.windlass/fetch/NAME-LAYOUT.jsonl    a layout that is in FOLDER: its files with their digests
FOLDER/.windlass/fetch/NAME.json            where its files came from, and their SHA-256
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from windlass.errors import StorageError, UsageError
from windlass.recipes.download import Downloaded, Downloading
from windlass.recipes.output import digest_of, move_entries, write_files
from windlass.recipes.recipe import Layout, Recipe
from windlass.recipes.source import source_of
from windlass.storage import manifest as manifests
from windlass.storage.address import Address
from windlass.storage.digest import combined
from windlass.storage.files import version, write_whole
from windlass.storage.folder import Folder
from windlass.storage.manifest import BadManifest, File, Manifest
from windlass.storage.names import OWN
from windlass.storage.opening import locked
from windlass.storage.place import system_errors
from windlass.storage.progress import Progress, Refusal

Step: TypeAlias = Callable[[str, Progress], AbstractContextManager[None]]
"""Called with the name of a step and its progress; the step is done in the block."""


@dataclass(frozen=True)
class Fetched:
    """What a fetch has done."""

    layouts: tuple[str, ...]
    """That are in the folder now, of those that were asked for."""
    made: tuple[str, ...]
    """Of these, the ones that were not there before."""
    sources: tuple[Downloaded, ...]
    num_bytes_fetched: int
    num_files: int
    num_bytes: int
    digest: str
    """Of the folder."""
    left_out: tuple[Refusal, ...] = ()
    """Files of the downloads that are in no layout."""


@dataclass
class Fetch:
    """One fetch. `run` may be called once."""

    recipe: Recipe
    layouts: Sequence[str]
    folder: Path
    mirror: str | None = None
    """Address or folder that has the files of the recipe by their names, instead of their publishers."""
    step: Step = field(default=lambda _what, _progress: nullcontext())

    def __post_init__(self) -> None:
        for name in self.layouts:
            if name not in self.recipe.layouts:
                raise UsageError(
                    f"{self.recipe.name} has no layout {name!r}", f"known are {', '.join(self.recipe.layouts)}"
                )
        self._found = [(one, source_of(one.name, one.url, self.mirror)) for one in self.recipe.downloads]
        self._own = self.folder / OWN / "fetch"
        self._work = self._own / self.recipe.name
        self._sources = self._own / f"{self.recipe.name}.json"
        self._left_out: list[Refusal] = []
        self._fetched = 0

    def run(self) -> Fetched:
        """Fetch and convert what is missing. Raises StorageError, UsageError."""
        with system_errors(str(self.folder)), locked(self.folder / OWN, str(self.folder)):
            self._own.mkdir(parents=True, exist_ok=True)
            self._publish_finished()
            missing = [name for name in self.layouts if not self._is_there(name)]
            if missing:
                self._refuse_what_is_in_the_way(missing)
                self._refuse_lack_of_space(missing)
                self._download()
                for name in missing:
                    self._convert(name)
                self._publish_finished()
            shutil.rmtree(self._work, ignore_errors=True)
            return self._result(tuple(missing))

    # -- what is there ------------------------------------------------------------------------------------------------

    def _is_there(self, name: str) -> bool:
        """Whether a layout is in the folder as it was made. Raises StorageError where it was changed."""
        found = _manifest(self._receipt(name))
        if found is None or not any(self._entries_there([name])):
            return False
        same = {one.name: self._as_it_is(one) for one in found.files.values()}
        if changed := [name for name, one in same.items() if one is None]:
            words = f"{changed[0]}{f' and {len(changed) - 1:,} more' if len(changed) > 1 else ''}"
            hint = "name another folder; to fetch it anew here, remove " + ", ".join(self.recipe.layouts[name].entries)
            raise StorageError(f"{self.folder}: {words} was changed or removed since it was fetched", hint)
        known = Manifest.of(one for one in same.values() if one is not None)
        if known != found:
            self._add_to_manifest(list(known.files.values()))
            write_whole(self._receipt(name), known.to_bytes())
        return True

    def _as_it_is(self, one: File) -> File | None:
        """A file with its version, if its content is what was fetched: read again where it was moved to other disks."""
        there = Folder(Address("folder", "", str(self.folder))).version_of(one.name)
        if there == one.version:
            return one
        is_same = there and digest_of(self.folder / one.name) == one.digest
        return dataclasses.replace(one, version=there) if is_same else None

    def _entries_there(self, names: Sequence[str]) -> Iterator[str]:
        return (one for name in names for one in self.recipe.layouts[name].entries if (self.folder / one).exists())

    def _refuse_what_is_in_the_way(self, missing: Sequence[str]) -> None:
        for entry in self._entries_there(missing):
            hint = "it was not fetched by this recipe and is left as it is: name another folder"
            raise StorageError(f"{self.folder / entry} is in the way", hint)

    def _refuse_lack_of_space(self, missing: Sequence[str]) -> None:
        downloads = self.recipe.num_bytes or 0
        made = sum(self.recipe.layouts[name].num_bytes or downloads for name in missing)
        here = sum(one.stat().st_size for one in self._work.rglob("*") if one.is_file()) if self._work.exists() else 0
        free = shutil.disk_usage(self.folder).free
        if downloads + made - here > free:
            raise StorageError(
                f"{self.recipe.name} needs about {_gigabytes(downloads)} for the downloads and {_gigabytes(made)} for "
                f"what is made of them, and {self.folder} has {_gigabytes(free)} free",
                "free some space, or name a folder on another disk",
            )

    # -- the work -----------------------------------------------------------------------------------------------------

    def _download(self) -> None:
        folder = self._work / "downloads"
        folder.mkdir(parents=True, exist_ok=True)
        progress = Progress(num_files=len(self.recipe.downloads), num_bytes=self.recipe.num_bytes or 0)
        progress.is_listing = False
        done = []
        with self.step("fetch", progress):
            for one, source in self._found:
                done.append(Downloading(one, source, folder, progress).run())
                progress.files_done += 1
        self._fetched = progress.bytes_moved
        found = [dataclasses.asdict(one) for one in done]
        write_whole(self._sources, json.dumps(found, indent=1).encode() + b"\n")

    def _convert(self, name: str) -> None:
        files = {one.name: self._work / "downloads" / one.name for one in self.recipe.downloads}
        layout = self.recipe.layouts[name]
        size = layout.num_bytes or sum(one.stat().st_size for one in files.values())
        progress = Progress(num_files=0, num_bytes=size, is_listing=False)

        def written(num_bytes: int) -> None:
            progress.bytes_done += num_bytes
            progress.bytes_moved += num_bytes
            progress.num_bytes = max(progress.num_bytes, progress.bytes_done)  # it was an estimate

        with self.step("convert", progress):
            made = layout.convert(files, lambda found, why: self._left_out.append(Refusal(found, why)))
            try:
                manifest = write_files(self._work / name, made, layout.entries, written)
            except StorageError:
                shutil.rmtree(self._work / name, ignore_errors=True)
                raise
        write_whole(self._work / f"{name}.jsonl", manifest.to_bytes())

    # -- what scripts see ---------------------------------------------------------------------------------------------

    def _publish_finished(self) -> None:
        """Move the layouts that are whole to their place: also those of a fetch that was killed meanwhile."""
        for name, layout in self.recipe.layouts.items():
            finished = self._work / f"{name}.jsonl"
            if not finished.exists():
                continue
            manifest = Manifest.from_bytes(finished.read_bytes())
            self._refuse_what_would_be_replaced(name, layout)
            move_entries(self._work / name, layout.entries, self.folder)
            self._add_to_manifest([*manifest.files.values(), self._write_notice()])
            write_whole(self._receipt(name), manifest.to_bytes())
            finished.unlink()

    def _refuse_what_would_be_replaced(self, name: str, layout: Layout) -> None:
        for entry in layout.entries:
            if (self._work / name / entry).exists() and (self.folder / entry).exists():
                raise StorageError(f"{self.folder / entry} is in the way", "move it, and fetch again")

    def _write_notice(self) -> File:
        path = self.folder / f"LICENCE-{self.recipe.name}.txt"
        data = self.recipe.notice().encode()
        if not path.exists() or path.read_bytes() != data:
            write_whole(self._work / path.name, data)
            (self._work / path.name).replace(path)
        return File(path.name, len(data), combined([hashlib.sha256(data).digest()]), version=version(path.stat()))

    def _add_to_manifest(self, files: Sequence[File]) -> None:
        path = self.folder / manifests.IN_FOLDER
        known = _manifest(path)
        write_whole(path, Manifest.of([*(known.files.values() if known else ()), *files]).to_bytes())

    def _result(self, made: tuple[str, ...]) -> Fetched:
        manifest = _manifest(self.folder / manifests.IN_FOLDER) or Manifest.of(())
        sources = tuple(Downloaded(**one) for one in json.loads(self._sources.read_bytes()))
        receipts = [Manifest.from_bytes(self._receipt(name).read_bytes()) for name in self.layouts]
        return Fetched(
            tuple(self.layouts),
            made,
            sources,
            self._fetched,
            sum(len(one.files) for one in receipts),
            sum(one.num_bytes for one in receipts),
            manifest.digest,
            tuple(self._left_out),
        )

    def _receipt(self, name: str) -> Path:
        return self._own / f"{self.recipe.name}-{name}.jsonl"


def _manifest(path: Path) -> Manifest | None:
    try:
        return Manifest.from_bytes(path.read_bytes())
    except (FileNotFoundError, BadManifest):
        return None


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"
