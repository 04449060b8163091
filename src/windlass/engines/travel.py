"""What travels with a job to machines that have nothing of ours: its folder, and parts of this package."""

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
"""The parts of the package, under its own name. They need the standard library alone, but for stores that obstore
reaches."""
MAX_BYTES: Final = 512 << 20
"""Code before it is compressed, where a store carries it."""


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The folder of a job, and what travels of it."""

    folder: str
    """Absolute."""
    is_there: bool
    has_script: bool
    packed: Packed | None
    """What travels; None where there is no folder."""
    problem: tuple[str, str] | None = None
    """Why it cannot be packed, and what to do."""
    leaves_out_script: bool = False
    """Whether an ignore file keeps the script from travelling."""
    imports: tuple[str, ...] = ()
    """Top-level names of the modules that the script, and what lies beside it, imports."""
    saves_at_end: str = ""
    """Where the script saves for the first time, after its loops; empty where it does before, or that is not known."""

    @property
    def digest(self) -> str:
        """Of what travels; zeros where nothing does."""
        return self.packed.digest if self.packed is not None else "0" * 64

    @property
    def num_packed_bytes(self) -> int:
        """Of what travels, compressed."""
        return len(self.packed.data) if self.packed is not None else 0

    @property
    def size(self) -> str:
        """In words."""
        code = self.packed
        return f"{len(code.data) / 1e6:.2f} MB of {len(code.files)} files" if code is not None else "no code"

    @property
    def archive(self) -> bytes | None:
        """What travels, as a gzipped tar."""
        return self.packed.data if self.packed is not None else None

    def step(self, where: str, **fields: Any) -> CodeStep:
        """The step of a plan that sends the code; `where` says where to, as `fields` do."""
        step, code = CodeStep(f"send the code, {self.size}, {where}", self.digest, self.folder, **fields), self.packed
        if code is None:
            return step
        return step.replace(
            bytes=len(code.data),
            unpacked_bytes=code.num_bytes,
            files=tuple(SentFile(name, size) for name, size in code.files),
            left_out=tuple(IgnoredFiles(rule.source, rule.pattern, rule.num_entries) for rule in code.left_out),
            added=Added(code.num_added, code.added_bytes),
        )

    def notes(self, script: str) -> Iterator[Note]:
        """What keeps the code, and the job's script in it, from travelling."""
        if not self.is_there:
            yield blocker("code-missing", f"the folder {self.folder} is not there", "set code: to the script's folder")
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
    """Read and pack the folder of a job, of so many bytes at most; its path is relative to `base`."""
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
    """The folder in a home from which ranks of this machine import the parts, where their interpreter lacks them.

    One for each installation: those of another version may use the same home.
    """
    from hashlib import sha256

    return f"{home}/travel/{sha256(os.fsencode(package_root)).hexdigest()[:12]}"


def pack_code(code_dir: Path, environ: Mapping[str, str], limit: int = MAX_BYTES) -> Packed:
    """What travels with a job: its folder, of so many bytes at most, and the parts. Raises UsageError."""
    from windlass.code.pack import pack  # runs of this machine need the names of the parts alone

    package = Path(__file__).parents[1]
    return pack(code_dir, limit, environ, {f"travel/windlass/{name}": package / name for name in PARTS})


def _has_script(job: Job, code_dir: Path) -> bool:
    """Whether a job's script is in its folder; an absolute path is one in the image, which is taken to be there, and so
    is what `setup` may bring."""
    script = job.script_argv[0]
    return bool(job.setup) or job.script_kind != "script" or script.startswith("/") or (code_dir / script).is_file()


def _leaves_out_script(job: Job, code_dir: Path, code: Packed) -> bool:
    script = job.script_argv[0]
    if job.setup or job.script_kind != "script" or not (code_dir / script).is_file():
        return False
    found, folder = (code_dir / script).resolve(), code_dir.resolve()
    return found.is_relative_to(folder) and found.relative_to(folder).as_posix() not in dict(code.files)


def planned_code(plan: Plan) -> bytes:
    """The archive of the code of a plan: as it was packed while planning, else packed again.

    Raises EngineError where the folder has changed since the plan was made, UsageError as `pack_code`.
    """
    if plan.archive is not None:
        return plan.archive
    code = plan.only(CodeStep)
    found = pack_code(Path(code.folder), os.environ)
    if found.digest != code.digest:
        raise EngineError(f"the code in {code.folder} has changed since the plan was made", "make it again")
    return found.data
