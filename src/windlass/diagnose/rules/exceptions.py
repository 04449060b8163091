"""Exceptions that are known: a table from what Python, torch and the system say to what it means and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from windlass.diagnose.reading import last_lines, raised
from windlass.diagnose.rules import recorded
from windlass.diagnose.rules.case import Case
from windlass.diagnose.rules.deaths import SHM_FIX
from windlass.diagnose.verdict import Verdict
from windlass.runs.record import Phase
from windlass.worker.blame import is_victim

PACKAGES: Final = {
    "accelerate": "accelerate",
    "apex": "git+https://github.com/NVIDIA/apex",
    "attr": "attrs",
    "Bio": "biopython",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "jose": "python-jose",
    "Levenshtein": "python-Levenshtein",
    "jwt": "PyJWT",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "MySQLdb": "mysqlclient",
    "numpy.core": "numpy",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "pkg_resources": "setuptools<81",
    "psycopg2": "psycopg2-binary",
    "pycocotools": "pycocotools",
    "pytorch_lightning": "pytorch-lightning",
    "ruamel": "ruamel.yaml",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "socks": "PySocks",
    "tensorboard": "tensorboard",
    "tensorflow_datasets": "tensorflow-datasets",
    "usb": "pyusb",
    "wx": "wxPython",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}
"""Packages that are not called as the module that they bring."""


@dataclass(frozen=True, slots=True)
class Known:
    """A kind of exception. In its texts `{who}` is the rank and `{1}`, `{2}` … are what the pattern found."""

    code: str
    pattern: str
    """Searched in `Kind: message`."""
    summary: str
    fix: str
    score: float = 90


KNOWN: Final = (
    # -- the GPU --
    Known("gpu-out-of-memory", r"CUDA out of memory(?:.*?Tried to allocate ([\d.]+ \w+))?|CUDA error: out of memory|"
          r"CUBLAS_STATUS_ALLOC_FAILED|hipErrorOutOfMemory",
          "{who} ran out of GPU memory",
          "a smaller batch, gradient accumulation, activation checkpointing or a lower precision; see that no other "
          "process holds the GPU: nvidia-smi", 95),
    Known("gpu-driver-mismatch", r"driver (?:version )?(?:on your system )?is (?:insufficient|too old)|"
          r"Driver/library version mismatch|no kernel image is available|CUDA driver version is insufficient|"
          r"forward compatibility was attempted",
          "the GPU's driver does not fit the CUDA version that torch was built for",
          "update the driver, or install a torch built for an older CUDA; nvidia-smi shows the version it can do", 94),
    Known("cuda-after-fork", r"Cannot re-initialize CUDA in forked subprocess",
          "{who} used CUDA in a process that was forked after CUDA had begun",
          "start DataLoader workers by multiprocessing_context='spawn', and touch CUDA only after forking", 94),
    Known("gpu-not-visible", r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device|"
          r"not compiled with CUDA enabled|only supported with GPUs|invalid device ordinal|"
          r"torch\.cuda\.is_available\(\) is False|requires at least one CUDA device|[Cc]uda is not available|"
          r"No HIP GPUs|CUDA unknown error",
          "{who} wants a GPU and sees none",
          "run it on a machine with enough GPUs (resources: {gpus: 1}), or let the script take the CPU: "
          "device = 'cuda' if torch.cuda.is_available() else 'cpu', backend gloo", 93),
    Known("gpu-error", r"CUDA error: ([^\n]*)|device-side assert",
          "a CUDA kernel failed in {who}",
          "run once with env: {CUDA_LAUNCH_BLOCKING: '1'} to see the line; an index out of range is the usual reason",
          90),
    # -- what was not found, may not be used or is broken --
    Known("file-corrupt", r"failed finding central directory|PytorchStreamReader failed|Ran out of input|"
          r"invalid load key|pickle data was truncated|BadZipFile|Not a gzipped file|CRC check failed|"
          r"Compressed file ended before|unexpected end of data|cannot identify image file|image file is truncated",
          "{who} read a file that is damaged or cut short",
          "fetch or write that file again; write checkpoints under another name and rename them when whole"),
    Known("checkpoint-unreadable", r"UnreadableCheckpoint: (\S+) cannot be read, also after retries \((.*?)\)\. No",
          "{who} could not read {1}: {2}",
          "see that the file system is mounted and readable on every node; no checkpoint was changed or removed; then "
          "windlass resume, with --from NAME to go on from another one", 95),
    Known("checkpoint-mismatch", r"Error\(s\) in loading state_dict|size mismatch for ",
          "the checkpoint does not fit the model in {who}",
          "build the model as it was when the checkpoint was written, or begin with an empty checkpoint folder"),
    Known("network-unreachable", r"Name or service not known|Temporary failure in name resolution|"
          r"nodename nor servname|Network is unreachable|Max retries exceeded|No route to host|"
          r"Failed to (?:resolve|establish a new connection)|We couldn't connect to",
          "{who} could not reach a host on the network",
          "see whether this machine reaches it; bring data beforehand (data:) instead of in the script"),
    Known("too-many-files", r"\[Errno 24\]|Too many open files|received 0 items of ancdata",
          "{who} has too many files open", "close files after use, fewer DataLoader workers, "
          "torch.multiprocessing.set_sharing_strategy('file_system'), or a higher limit: ulimit -n", 94),
    Known("too-many-processes", r"can't start new thread|BlockingIOError: \[Errno 11\]",
          "{who} may not start one more process or thread",
          "fewer DataLoader workers, or a higher limit: ulimit -u, or the container's limit of pids", 92),
    Known("limit-reached", r"\[Errno 27\]|File too large", "{who} wrote a file larger than it may (ulimit -f)",
          "raise that limit where Windlass is called, or write several files", 92),
    Known("main-guard-missing", r"before the current process has finished its bootstrapping phase",
          "{who} starts processes while its main file is still being imported",
          "put what the script does under if __name__ == '__main__':", 92),
    Known("out-of-memory", r"^MemoryError|can't allocate memory|\[Errno 12\]|Cannot allocate memory|Unable to allocate|"
          r"std::bad_alloc|_ArrayMemoryError",
          "{who} asked for memory and got none", "a smaller batch, fewer DataLoader workers, data read in parts; "
          "see ulimit -v and the memory limit of the container", 93),
    # -- the script itself --
    Known("process-group-missing", r"process group has not been initialized",
          "{who} calls a collective before init_process_group",
          "call torch.distributed.init_process_group() first; the launcher sets all that it needs", 85),
    Known("interrupted", r"^KeyboardInterrupt", "{who} was interrupted (SIGINT)",
          "see who sends SIGINT; Ctrl-C in windlass run does not reach the ranks", 88),
)  # fmt: skip

_COMPILED = [(entry, re.compile(entry.pattern, re.DOTALL)) for entry in KNOWN]


def known(case: Case) -> Iterator[Verdict]:
    """Exceptions whose meaning is known."""
    error = case.raised
    if error is None or case.first is None:
        return
    text = f"{error.kind}: {error.message}"
    yield from _imports(case)
    yield from _files(case)
    yield from _syntax(case)
    yield from _worker_killed(case)
    for entry, pattern in _COMPILED:
        match = pattern.search(text)
        if match:
            found = [group or "" for group in match.groups()]
            more = f" (it asked for {found[0]})" if entry.code == "gpu-out-of-memory" and found[0] else ""
            yield Verdict(
                entry.code,
                _summary(entry, case, found) + more + _at(case),
                case.first.rank,
                _evidence(case),
                entry.fix,
                entry.score,
            )


def _summary(entry: Known, case: Case, found: list[str]) -> str:
    summary = entry.summary.replace("{who}", case.who)
    for number, text in enumerate(found, 1):
        summary = summary.replace(f"{{{number}}}", text[:300])
    return summary


def any_other(case: Case) -> Iterator[Verdict]:
    """An exception as such, and those of other ranks that are no victims."""
    error, first = case.raised, case.first
    if first is None:
        return
    if error is not None:
        score = 20.0 if case.only_victims else 60.0
        code, summary = "exception", f"{case.who} raised {error.line[:300]}"
        fix = f"see {case.where}" if case.where else "read its traceback"
        if case.only_victims:
            code, summary = "connection-lost", f"{case.who} lost its connection to a peer, and no peer says why"
            fix = "look at the network between the nodes, and at the ranks that ended without a word"
        yield Verdict(code, summary, first.rank, _evidence(case), fix, score)
    for seen in case.failures:
        other = raised(seen.tail) if seen.rank != first.rank else None
        if other is not None and not is_victim({"exit_code": seen.exit_code, "tail": seen.tail}):
            same = error is not None and other.kind == error.kind
            if not same:
                summary = f"{case.name(seen.rank)} raised {other.line[:300]}"
                yield Verdict("exception-too", summary, seen.rank, (other.line[:300],), "mend the first one first", 10)


def _at(case: Case) -> str:
    return f" at {case.where.partition(': ')[0].partition(' in ')[0]}" if case.where else ""


def _evidence(case: Case) -> tuple[str, ...]:
    """The exception and where it was raised; then the last frames in the script's own files."""
    error = case.raised
    assert error is not None
    message = [line.strip() for line in error.message.splitlines()[1:4] if line.strip()]
    lines = [error.line[:400], *(line[:300] for line in message)]
    if case.where:
        lines.append(case.where)
    if case.first is not None and (victims := [r.rank for r in case.failures if r.rank != case.first.rank]):
        some = ", ".join(map(str, victims[:8])) + (" …" if len(victims) > 8 else "")
        lines.append(f"rank {some} failed after it" if len(victims) == 1 else f"ranks {some} failed after it")
    return tuple(lines)


# -- imports ----------------------------------------------------------------------------------------------------------

_NO_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NO_NAME = re.compile(r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'")
_NO_LIBRARY = re.compile(r"(\S+\.so[\w.]*): cannot open shared object file")


def _imports(case: Case) -> Iterator[Verdict]:
    error, first = case.raised, case.first
    assert error is not None
    assert first is not None
    if error.kind not in ("ModuleNotFoundError", "ImportError", "OSError", "AttributeError"):
        if error.kind == "RuntimeError" and (
            match := re.search(r"Numpy is not available|requires? the (\w+) library", error.message)
        ):
            name = match[1] or "numpy"
            yield _missing(case, name)
        return
    if match := _NO_MODULE.search(error.message):
        yield _missing(case, match[1])
    elif match := _NO_LIBRARY.search(error.message):
        yield Verdict(
            "library-missing", f"{case.who} needs the library {match[1]}, which is not there", first.rank,
            _evidence(case), f"install what brings {match[1]}, or add its folder to LD_LIBRARY_PATH in env:", 92,
        )  # fmt: skip
    elif error.kind == "ImportError" and (match := _NO_NAME.search(error.message)):
        circular = "circular import" in error.message
        yield Verdict(
            "import-broken",
            f"{case.who} could not import {match[1]} from {match[2]}"
            + (": they import each other" if circular else ""),
            first.rank,
            _evidence(case),
            "move one of the two imports into the function that needs it"
            if circular
            else f"install the version of {match[2].partition('.')[0]} that the script was written for",
            92,
        )
    elif error.kind == "ImportError":
        yield Verdict(
            "import-broken", f"{case.who} could not import a module: {error.message.splitlines()[0][:200]}", first.rank,
            _evidence(case), "install that package again, built for this interpreter and these libraries", 90,
        )  # fmt: skip


def _install(case: Case, package: str) -> str:
    """How a package gets to where the script runs."""
    quoted = f"'{package}'" if re.search(r"[<>=\s]", package) else package
    if case.seen.cluster is not None:
        return f"add {package} to the image {_image(case)} (RUN python -m pip install {quoted}), or name another image:"
    python = case.seen.python or "python"
    environment = case.seen.facts.get("environment") or {}
    by_kind = {
        "uv-project": f"uv add {quoted}",
        "poetry": f"poetry add {quoted}",
        "uv": f"uv pip install --python {python} {quoted}",
        "conda": f"{python} -m pip install {quoted}, or conda install -p {environment.get('prefix')} {quoted}",
    }
    return by_kind.get(str(environment.get("kind")), f"{python} -m pip install {quoted}")


def _image(case: Case) -> str:
    return str(case.container.get("image") or "of the job")


def _missing(case: Case, module: str) -> Verdict:
    assert case.first is not None
    top = module.partition(".")[0]
    package = PACKAGES.get(module, PACKAGES.get(top, top.replace("_", "-")))
    python = case.seen.python or "python"
    fix = _install(case, package)
    near = case.seen.near.get(module)
    if near:
        fix = f"{near}; or, if it is a package: {fix}"
    where = f"the script runs under {python}; set python: if its packages are elsewhere"
    if case.seen.cluster is not None:
        where = f"the script runs in the image {_image(case)}"
    evidence = (*_evidence(case), where)
    return Verdict(
        "module-missing", f"{case.who} imports {module}, which is not installed", case.first.rank, evidence, fix, 92
    )


# -- files ------------------------------------------------------------------------------------------------------------

_PATH = re.compile(r"(?<!\w)'([^'\n]*)'")
"""What stands in quotes, but not between the apostrophe of `can't` and a quote after it."""
_SHM = re.compile(r"/dev/shm|</torch_|shared memory|shm_open|psm_[0-9a-f]+|/pymp-", re.IGNORECASE)
_WRITE_FAILED = re.compile(r"file write failed|PytorchStreamWriter failed|inline_container.*unexpected pos", re.DOTALL)


def _files(case: Case) -> Iterator[Verdict]:
    error, first = case.raised, case.first
    assert error is not None
    assert first is not None
    text, rank = f"{error.kind}: {error.message}", first.rank
    found = _PATH.search(error.message)
    path = found[1] if found else ""
    named = path or "a file"
    if "[Errno 28]" in text or "No space left on device" in text or "[Errno 122]" in text or _WRITE_FAILED.search(text):
        sure = "Errno" in text or "No space" in text
        if _SHM.search(text) or "/dev/shm" in case.where or (not path and _only_shm_is_full(case)):
            evidence = (*_evidence(case), *_free_shm(case))
            yield Verdict("shm-full", f"no space was left in shared memory (/dev/shm) for {case.who}", rank, evidence,
                          SHM_FIX, 95)  # fmt: skip
            return
        evidence = (*_evidence(case), *_free(case))
        yield Verdict("disk-full", f"no space was left for {case.who} to write {named}", rank, evidence,
                      "free some space, keep fewer checkpoints (checkpoint: {keep: 1}), or set outputs: to a larger "
                      "disk", 95 if sure else 85)  # fmt: skip
    elif error.kind in ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError") or "[Errno 2]" in text:
        near = case.seen.near.get(path)
        fix = f"did you mean {near}?" if near else "check the path."
        if path and not path.startswith("/"):
            fix += f" It is looked for in {case.seen.code_dir or 'the folder of the job'}, where the ranks run"
        kind = "a folder where a file is needed" if error.kind == "IsADirectoryError" else "not there"
        yield Verdict("file-missing", f"{case.who} needs {named}, which is {kind}", rank, _evidence(case), fix, 92)
    elif error.kind == "PermissionError" or "[Errno 13]" in text or "[Errno 1]" in text or "[Errno 30]" in text:
        why = "the file system is read-only" if "[Errno 30]" in text else "permission denied"
        yield Verdict("permission-denied", f"{case.who} may not use {named}: {why}", rank, _evidence(case),
                      f"see who owns it: ls -ld {path}" if path else "see who owns it", 92)  # fmt: skip


FULL_BYTES: Final = 32 << 20
"""A disk with less than this left is as good as full: what did not fit is not there."""


def _free(case: Case) -> Iterator[str]:
    """The disks that are full; where none is, the first, which holds the results."""
    free = dict(case.facts.get("free_bytes") or {})
    full = {path: left for path, left in free.items() if left < FULL_BYTES} or dict(list(free.items())[:1])
    for path, left in full.items():
        yield f"{path} had {left / 1e6:,.1f} MB left when it ended"


def _free_shm(case: Case) -> Iterator[str]:
    if (left := case.facts.get("shm_free_bytes")) is not None:
        yield f"/dev/shm had {left / 1e6:,.1f} MB left of {case.facts.get('shm_bytes', 0) / 1e6:,.0f} MB"


def _only_shm_is_full(case: Case) -> bool:
    shm = case.facts.get("shm_free_bytes")
    return shm is not None and shm < 1 << 20 and min((case.facts.get("free_bytes") or {"": 0}).values()) > FULL_BYTES


def _syntax(case: Case) -> Iterator[Verdict]:
    error, first = case.raised, case.first
    assert error is not None
    assert first is not None
    if error.kind not in ("SyntaxError", "IndentationError", "TabError"):
        return
    places = re.findall(r'^\s+File "([^"]+)", line (\d+)\n(.*)$', error.text, re.MULTILINE)
    place = f"{places[-1][0].rpartition('/')[2]}:{places[-1][1]}" if places else "a file"
    evidence = [error.line, *([f"{place}: {places[-1][2].strip()}"] if places else [])]
    summary = f"{place} is not Python: {error.message.splitlines()[0]}"
    fix = f"mend {place}; it may also be written for a newer Python than {case.seen.python or 'this one'}"
    yield Verdict("syntax-error", summary, first.rank, tuple(evidence), fix, 94)


_DATALOADER = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\) (?:is killed by signal: (\w+)|exited unexpectedly)"
)


def _worker_killed(case: Case) -> Iterator[Verdict]:
    error, first = case.raised, case.first
    assert error is not None
    assert first is not None
    match = _DATALOADER.search(case.text)
    if match is None:
        return
    who = f"a DataLoader worker of {case.who}"
    how = match[2] or ""
    facts = case.facts
    if how == "Bus" or "insufficient shared memory" in case.text or "out of shared memory" in error.message:
        yield Verdict("shm-full", f"{who} found no space in shared memory (/dev/shm)", first.rank,
                      (match[0], *_evidence(case)), SHM_FIX, 96)  # fmt: skip
    elif how == "Killed" and (facts.get("oom_kills_of_group") or facts.get("oom_kills_of_machine")):
        yield Verdict("oom-killed", f"{who} was killed by the kernel: it took more memory than there is", first.rank,
                      (match[0], "the kernel counted an OOM kill while it ran"),
                      "fewer DataLoader workers, or a smaller batch", 96)  # fmt: skip
    else:
        yield Verdict("dataloader-worker-died", f"{who} died" + (f" ({how})" if how else ""), first.rank,
                      (match[0], *_evidence(case)),
                      "run once with num_workers=0 to see its own error", 91)  # fmt: skip


# -- numbers ----------------------------------------------------------------------------------------------------------

_NAN_SAID = re.compile(
    r"(?:loss|grad\w*|output|input|value)s?\b[^\n]{0,40}\b(?:is|are|was|became|of|=|:|contains?)?\s*"
    r"(?:nan\b|inf\b|not finite|non-?finite)|returned nan values|\bnan\b[^\n]{0,20}\b(?:loss|grad)|"
    r"(?:non-?finite|not finite)[^\n]{0,30}loss",
    re.IGNORECASE,
)


def nan_loss(case: Case) -> Iterator[Verdict]:
    """The loss is no number any more: said by the script, or seen in its progress."""
    if case.status.phase not in (Phase.FAILED, Phase.SUCCEEDED):
        return
    reported = recorded.losses(case)
    loss = None if reported is None else reported.loss
    seen = _is_nan(loss)
    said = ""
    if case.first is not None and case.signal is None:
        words = case.raised.line + " " + case.raised.message if case.raised else "\n".join(last_lines(case.text, 5))
        match = _NAN_SAID.search(words)
        said = next((line for line in words.splitlines() if match and match[0].splitlines()[0] in line), "")[:300]
    if not (seen or said):
        return
    evidence = [said] if said else []
    if reported is not None:
        evidence += reported.lines()
    if case.first is not None and case.where:
        evidence.append(case.where)
    rank = case.first.rank if case.first else case.status.progress.get("rank")
    score = 91 if said else 55 if case.status.phase is Phase.FAILED else 50
    yield Verdict(
        "nan-loss",
        "the loss became NaN or infinite",
        int(rank) if isinstance(rank, int) else None,
        tuple(evidence),
        "a lower learning rate, warm-up, gradient clipping, a check of the data for NaN; "
        "torch.autograd.set_detect_anomaly(True) names the first operation",
        score,
    )


def _is_nan(loss: object) -> bool:
    return loss is not None and not recorded.is_finite(loss)
