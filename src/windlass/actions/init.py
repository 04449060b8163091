"""Creates a job file for an existing script, and checks a job against its target."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from windlass.actions.jobs import JOB_FILES, ReadyJob
from windlass.code.imports import imports
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.views.code_files import pattern_of

if TYPE_CHECKING:
    from windlass.plan.plan import Plan
    from windlass.spec.targets import Target

Template = Literal["torchrun", "tensorflow", "jax", "mpi", "plain"]
TEMPLATES: Final[tuple[Template, ...]] = get_args(Template)
SCHEMA_FILE: Final = "job.schema.json"
MAX_SCRIPT_BYTES: Final = 4 << 20
MAX_SCRIPTS: Final = 200
MOST_PATTERNS: Final = 4

_LIKELY_NAMES: Final = ("train.py", "main.py", "run.py", "finetune.py", "pretrain.py")
_IMPORTS: Final[tuple[tuple[Template, tuple[str, ...]], ...]] = (
    ("mpi", ("horovod", "mpi4py", "deepspeed.comm.mpi")),
    ("tensorflow", ("tensorflow.distribute.MultiWorkerMirroredStrategy",)),
    ("jax", ("jax.distributed",)),
    ("plain", ("ray",)),  # Ray starts its own workers, also for torch
    ("torchrun", ("torch.distributed", "torch.nn.parallel", "lightning", "pytorch_lightning", "transformers",
                  "accelerate", "deepspeed", "torchtitan", "composer")),
    # With these libraries, several ranks would each train on all data; windlass.train also works with a single rank.
    ("plain", ("ultralytics", "tensorflow", "keras", "jax", "xgboost", "lightgbm", "sklearn", "catboost",
               "windlass.train")),
)  # fmt: skip
"""Templates with the imports for which each is chosen; the first match wins."""


_SAVE: Final = re.compile(r"save|dump|to_csv|to_json|to_parquet|export")
"""Matches the start of names of functions that write to a path argument."""
_USUAL: Final = {"lightning": "lightning_logs/", "pytorch_lightning": "lightning_logs/", "ultralytics": "runs/"}
"""Default output folders of libraries."""
_PLACE: Final = re.compile(
    r"(output|out|save|log|logging|ckpt|checkpoint|result|results|default_root|run)_(dir|path|folder)"
)
"""Matches parameter names for output locations."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Facts about a script that determine its job file."""

    script: str
    """Path of the script relative to the working folder, with `/`."""
    template: Template
    reason: str
    """Reason for the template, as the end of a sentence: `it imports torch.distributed`."""
    is_program: bool
    """Whether the script has an `if __name__ == "__main__"` block."""
    trains: bool = False
    """Whether the script imports a library that trains models."""
    saves: tuple[str, ...] = ()
    """Patterns of files that the script appears to save in the code folder; empty if it uses WINDLASS_OUTPUT_DIR."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A job file before it is written."""

    path: Path
    text: str
    template: Template
    reason: str
    schema_path: Path | None
    """Path of the JSON Schema that the job file refers to; None without a reference."""


def draft(
    context: Context,
    *,
    script: str | None = None,
    template: Template | None = None,
    name: str | None = None,
    with_schema: bool = False,
) -> Draft:
    """Drafts a job file for `script`, or for the most likely script of the working folder. Writes nothing.

    Raises UsageError if there is no script or several are equally likely, JobFileError for an invalid name.
    """
    finding = look_into(context.cwd, script) if script is not None else likeliest(context.cwd, template)
    chosen = template or finding.template
    reason = "as asked" if template else finding.reason
    text = job_text(
        finding.script,
        chosen,
        name or _name_of(finding.script, context.cwd),
        with_schema=with_schema,
        saves=finding.saves,
    )
    from windlass.spec.parse import parse_job

    parse_job(text, JOB_FILES[0])  # rejects an invalid name
    schema = context.cwd / SCHEMA_FILE if with_schema else None
    return Draft(context.cwd / JOB_FILES[0], text, chosen, reason, schema)


def write(made: Draft, *, force: bool = False) -> list[Path]:
    """Writes a draft; returns the paths of the files. Raises UsageError if a file exists already, unless forced."""
    texts = {made.path: made.text}
    if made.schema_path is not None:
        from windlass.spec.schema import job_schema

        texts[made.schema_path] = json.dumps(job_schema(), indent=2) + "\n"
    return write_files(texts, force=force)


def write_files(texts: Mapping[Path, str], *, force: bool) -> list[Path]:
    """Writes files atomically; returns their paths. Raises the errors of `write`."""
    there = [path.name for path in texts if path.exists()]
    if odd := [path.name for path in texts if path.exists() and not path.is_file()]:
        raise UsageError(f"{' and '.join(odd)} is no file", "name another one: a device or pipe is not replaced")
    if there and not force:
        raise UsageError(f"{' and '.join(there)} already exists", "--force overwrites it")
    for path, text in texts.items():
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):  # on a read-only file system, unlink fails too
                partial.unlink()
            hint = "check the folder's rights, and its space"
            if isinstance(error, FileNotFoundError):
                hint = f"make the folder first: mkdir -p {shlex.quote(str(path.parent))}"
            raise UsageError(f"{path} cannot be written: {error.strerror}", hint) from error
    return list(texts)


def check(ready: ReadyJob, target: Target, context: Context) -> Plan:
    """Returns the plan that a run would follow, with a placeholder for the run id. Raises the errors of `make_plan`."""
    from windlass.actions.runs import TOKEN_TO_LOOK, plan_for

    return plan_for(ready, target, f"{ready.job.name}-{TOKEN_TO_LOOK}", context)


# -- analysis of scripts ----------------------------------------------------------------------------------------------


def look_into(folder: Path, script: str) -> Finding:
    """Analyzes one script. Raises UsageError if it does not exist."""
    path = folder / os.path.expanduser(script)
    if not path.is_file():
        raise UsageError(f"{script} does not exist", "name a script of this folder: windlass init train.py")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{script} is not below {folder}", "go to its folder first: a job ships its own folder")
    return _finding(path, path.resolve().relative_to(folder.resolve()).as_posix())


def likeliest(folder: Path, template: Template | None = None) -> Finding:
    """Returns the most likely training script in `folder`. Raises UsageError if several are equally likely."""
    scripts = sorted(path for path in folder.glob("*.py") if path.is_file())[:MAX_SCRIPTS]
    found = [_finding(path, path.name) for path in scripts]
    findings = [finding for finding in found if finding.is_program]
    if not findings and len(found) == 1:  # a single script is chosen even without a main block
        return found[0]
    if not findings:
        hint = "name the script: windlass init src/train.py"
        raise UsageError(f'no Python program is in {folder}: none has `if __name__ == "__main__"`', hint)
    named = [finding for finding in findings if finding.script in _LIKELY_NAMES]
    trained = [finding for finding in findings if finding.trains]
    for likely in (named, trained, findings):
        if len(likely) == 1:
            return likely[0]
    best = next((f for name in _LIKELY_NAMES for f in named if f.script == name), None)
    if best is not None:
        return best
    names = ", ".join(finding.script for finding in findings[:5])
    raise UsageError(f"several scripts are as likely: {names}", f"windlass init {findings[0].script}")


def _finding(path: Path, shown: str) -> Finding:
    if path.suffix != ".py":
        return Finding(shown, "plain", "it is no Python script", is_program=True)
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(MAX_SCRIPT_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Finding(shown, "torchrun", f"it could not be read ({type(error).__name__})", is_program=False)
    imported = set(_imports(tree))
    is_program = any(_is_main_guard(node) for node in tree.body)
    knows = any(name.startswith("windlass") for name in imported) or "WINDLASS_OUTPUT_DIR" in ast.dump(tree)
    found = [] if knows else [*_saved(tree)] or [folder for name, folder in _USUAL.items() if name in imported]
    saves = tuple(dict.fromkeys(map(pattern_of, found)))[:MOST_PATTERNS]
    for template, modules in _IMPORTS:
        for module in modules:
            if any(name == module or name.startswith(f"{module}.") for name in imported):
                verb = "uses" if module.endswith("Strategy") else "imports"
                return Finding(shown, template, f"it {verb} {module}", is_program, trains=True, saves=saves)
    return Finding(shown, "plain", "it imports no distributed library", is_program, saves=saves)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yields imported modules, and modules that are used as attributes, such as `torch.distributed`."""
    yield from imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("torch", "jax"):
                yield f"{node.value.id}.{node.attr}"
            elif node.attr == "MultiWorkerMirroredStrategy":
                yield f"tensorflow.distribute.{node.attr}"


def _saved(tree: ast.AST) -> Iterator[str]:
    """Yields relative paths to which a script appears to save: `torch.save(x, "out/model.pt")`, `open("log", "w")`,
    `output_dir="out"`, `add_argument("--save-dir", default="out")`.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        words, called = [_text(one) for one in node.args], getattr(node.func, "attr", getattr(node.func, "id", ""))
        named = {one.arg or "": _text(one.value) for one in node.keywords}
        found = [text for name, text in named.items() if _PLACE.fullmatch(name)]
        if called == "add_argument" and any(_PLACE.fullmatch(one.lstrip("-").replace("-", "_")) for one in words):
            found.append(named.get("default", ""))
        elif _SAVE.match(called) or (called == "open" and {"w", "wb", "a", "x"} & {*words[1:2], named.get("mode")}):
            found += [one for one in words if "/" in one or posixpath.splitext(one)[1]]
        for path in map(posixpath.normpath, filter(None, found)):
            if path != "." and not re.match(r"/|~|\.\.|\w+:|.*\s", path):
                yield path if posixpath.splitext(path)[1] else f"{path}/"


def _text(node: ast.expr) -> str:
    """Returns the path that an expression builds, with `x` for parts known only at run time; empty for other
    expressions.
    """
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(one) or "x" for one in values)
        case ast.Call(func=ast.Attribute(attr="join") | ast.Name(id="Path" | "str"), args=args):
            return "/".join(map(_text, args))
        case ast.BinOp(left=left, op=ast.Div() | ast.Add() as op, right=right):
            return f"{_text(left)}{'/' if isinstance(op, ast.Div) else ''}{_text(right)}"
    return ""


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


# -- text of the job file ---------------------------------------------------------------------------------------------


def _name_of(script: str, folder: Path) -> str:
    from windlass.spec.names import legal_name

    stem = Path(script).stem
    return legal_name(folder.name or stem if f"{stem}.py" in _LIKELY_NAMES else stem)


def job_text(script: str, template: Template, name: str, *, with_schema: bool, saves: Sequence[str] = ()) -> str:
    """Returns a job file with a comment on each line that a newcomer is likely to change."""
    from windlass.spec.yamlwriter import scalar

    head = f"# yaml-language-server: $schema={SCHEMA_FILE}\n" if with_schema else ""
    start, size = _START[template](script)
    patterns = json.dumps(saves or ["out/**", "*.pt"], ensure_ascii=False)
    outputs = f"{'' if saves else '# '}outputs: {{collect: {patterns}}}"
    line = outputs.ljust(33) + _RESULTS
    results = f"{line if len(line) <= WIDTH else outputs}\n"
    return f"{head}{_HEAD}name: {scalar(name)}\n{start}{size}{results}{_TAIL}"


def _torchrun(script: str) -> tuple[str, str]:
    from windlass.spec.yamlwriter import scalar

    run = f"run: {scalar(shlex.quote(script))}".ljust(34) + "# add arguments as in a shell: --epochs 5\n"
    return run, f"nodes: 1{'':26}# machines; 2 on one machine simulates two\nprocs_per_node: 2{'':17}# ranks on each\n"


def _other(launcher: str, why: str) -> Callable[[str], tuple[str, str]]:
    """Returns the template of torchrun with `launcher` in place of torchrun."""

    def start(script: str) -> tuple[str, str]:
        run, size = _torchrun(script)
        return run, f"{f'launcher: {launcher}'.ljust(34)}# {why}\n{size}"

    return start


def _plain(script: str) -> tuple[str, str]:
    size = f"procs_per_node: 1{'':17}# ranks\n"
    if script.endswith(".py"):
        run, _ = _torchrun(script)
        return run, f"launcher: plain{'':19}# each rank works alone\n{size}"
    command = f"command: {json.dumps([f'./{script}'], ensure_ascii=False)}".ljust(34)
    return f"{command}# started once for each rank, as it stands\n", size


_START: Final = {
    "torchrun": _torchrun,
    "tensorflow": _other("tensorflow", "sets TF_CONFIG for each rank"),
    "jax": _other("jax", "jax.distributed.initialize() finds its peers"),
    "mpi": _other("mpi", "mpirun starts the ranks: Horovod, mpi4py"),
    "plain": _plain,
}
_HEAD: Final = "# Run it: windlass run. Look first: windlass plan. All fields: windlass schema\n"
WIDTH: Final = 80
_RESULTS: Final = " # copied to the output of each run"
_TAIL: Final = """\
# env: {NCCL_DEBUG: WARN}         # variables for each rank
# restarts: {max: 3}              # start again after a failure
# timeout: 2h                     # stop after this time
# grace: 30s                      # from SIGTERM to SIGKILL
"""
