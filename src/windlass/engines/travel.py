"""Packs the code that is sent with a job to other machines: its folder, and parts of Windlass."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.code.imports import script_imports
from windlass.code.saves import saves_at_end
from windlass.errors import EngineError, UsageError
from windlass.plan.notes import Note, blocker
from windlass.plan.plan import Plan
from windlass.plan.steps import Added, CodeStep, IgnoredFiles, SentFile

if TYPE_CHECKING:
    from windlass.code.pack import Packed
    from windlass.spec.job import Job

PARTS: Final = ("__init__.py", "compat.py", "worker", "train", "stores")
"""Parts of Windlass that are sent. They need only the standard library, except for stores that obstore accesses."""
MAX_BYTES: Final = 512 << 20
"""Maximum bytes of uncompressed code that is sent through a store."""


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The folder of a job, and its packed code."""

    folder: str
    """Absolute path of the folder."""
    is_there: bool
    has_script: bool
    packed: Packed | None
    """The packed code; None if the folder does not exist or cannot be packed."""
    problem: tuple[str, str] | None = None
    """Why the code cannot be packed, and how to fix that."""
    leaves_out_script: bool = False
    """Whether an ignore file excludes the script."""
    imports: tuple[str, ...] = ()
    """Top-level names of modules that the script and the files next to it import."""
    saves_at_end: str = ""
    """Location of the first save if it comes after the script's loops; empty if the script saves earlier, or
    unknown."""

    @property
    def digest(self) -> str:
        """Digest of the packed code; zeros without code."""
        return self.packed.digest if self.packed is not None else "0" * 64

    @property
    def num_packed_bytes(self) -> int:
        """Bytes of the compressed code; 0 without code."""
        return len(self.packed.data) if self.packed is not None else 0

    @property
    def size(self) -> str:
        """Size and number of files of the packed code in words."""
        code = self.packed
        return f"{len(code.data) / 1e6:.2f} MB of {len(code.files)} files" if code is not None else "no code"

    @property
    def archive(self) -> bytes | None:
        """The packed code, a gzipped tar; None without code."""
        return self.packed.data if self.packed is not None else None

    def step(self, where: str, **fields: Any) -> CodeStep:
        """Returns the plan's step that sends the code. `where` names the destination in words; `fields` are set in the
        step.
        """
        step, code = CodeStep(f"send the code, {self.size}, {where}", self.digest, self.folder, **fields), self.packed
        if code is None:
            return step
        return step.replace(
            bytes=len(code.data),
            unpacked_bytes=code.num_bytes,
            files=tuple(SentFile(name, size) for name, size in code.files),
            left_out=tuple(IgnoredFiles(rule.source, rule.pattern, rule.num_entries) for rule in code.excluded),
            added=Added(code.num_added, code.added_bytes),
        )

    def notes(self, script: str) -> Iterator[Note]:
        """Yields blockers if the code cannot be packed, or `script` is missing or excluded."""
        if not self.is_there:
            yield blocker(
                "code-missing", f"{self.folder} is not an existing folder", "set code: to the script's folder"
            )
        elif not self.has_script:
            yield blocker("script-missing", f"{script} is not in {self.folder}", "check run: and code:")
        elif self.leaves_out_script:
            yield blocker(
                "script-left-out",
                f"an ignore file leaves {script} out of what travels with the job",
                f"change the rule, which the plan shows, or write !/{script} in .windlassignore",
            )
        if self.problem is not None:
            yield blocker("code-unpacked", *self.problem)


def read_code(job: Job, base: Path, environ: Mapping[str, str], limit: int = MAX_BYTES) -> CodeFacts:
    """Reads and packs the folder of a job, whose path is relative to `base`. `limit` is its maximum size in bytes."""
    folder = (base / job.code_path).absolute()
    if not os.path.isdir(folder):  # noqa: PTH112 - Path's own raises for too long a name
        return CodeFacts(str(folder), False, False, None)
    packed = problem = None
    try:
        packed = pack_code(folder, environ, limit)
    except UsageError as error:
        problem = error.message, error.hint
    leaves_out = packed is not None and _leaves_out_script(job, folder, packed)
    imports = script_imports(job, folder)
    saves = saves_at_end(job, folder)
    return CodeFacts(str(folder), True, _has_script(job, folder), packed, problem, leaves_out, imports, saves)


def import_folder(home: str, package_root: str) -> str:
    """Returns the folder in a home from which ranks on this machine import parts of Windlass missing in their
    interpreter.

    Each installation of Windlass has a separate folder, because several versions may use the same home.
    """
    from hashlib import sha256

    return f"{home}/travel/{sha256(os.fsencode(package_root)).hexdigest()[:12]}"


def pack_code(code_dir: Path, environ: Mapping[str, str], limit: int = MAX_BYTES) -> Packed:
    """Packs the folder of a job, of at most `limit` bytes, and parts of Windlass. Raises UsageError."""
    from windlass.code.pack import pack  # imported late: runs on this machine need only PARTS
    from windlass.runs.store import default_home

    package = Path(__file__).parents[1]
    added = {f"travel/windlass/{name}": package / name for name in PARTS}
    return pack(code_dir, limit, environ, added, own=[str(default_home(environ))])


def _has_script(job: Job, code_dir: Path) -> bool:
    """Whether a job's script is in its folder. Absolute paths, which are in the image, and scripts of jobs with
    `setup`, which may create them, count as present.
    """
    script = job.script_argv[0]
    return bool(job.setup) or job.script_kind != "script" or script.startswith("/") or (code_dir / script).is_file()


def _leaves_out_script(job: Job, code_dir: Path, code: Packed) -> bool:
    script = job.script_argv[0]
    if job.setup or job.script_kind != "script" or not (code_dir / script).is_file():
        return False
    found, folder = (code_dir / script).resolve(), code_dir.resolve()
    return found.is_relative_to(folder) and found.relative_to(folder).as_posix() not in dict(code.files)


def planned_code(plan: Plan) -> bytes:
    """Returns the code archive of a plan, which is packed again if the plan was not made by this process.

    Raises EngineError if the folder has changed since the plan was made, and UsageError as `pack_code`.
    """
    if plan.archive is not None:
        return plan.archive
    code = plan.only(CodeStep)
    found = pack_code(Path(code.folder), os.environ)
    if found.digest != code.digest:
        raise EngineError(f"the code in {code.folder} has changed since the plan was made", "make it again")
    return found.data
