"""Rules on exceptions: a table of messages of Python, torch and the system, with their meanings and fixes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from windlass.diagnose.flights import named
from windlass.diagnose.observations import Observations, place_alone
from windlass.diagnose.reading import LIBRARY, Raised, frames, last_lines, own_frame, raised
from windlass.diagnose.rules import recorded
from windlass.diagnose.rules.deaths import KILLED_FIX, SHM_FIX, UNCOUNTED
from windlass.diagnose.verdict import Advice, Verdict
from windlass.runs.phase import Phase
from windlass.runs.warnings import NAN_FIX
from windlass.worker.file_systems import FULL_BYTES, is_of_space, path_without_space
from windlass.worker.protocol import FileSystem
from windlass.worker.root_cause import is_victim
from windlass.worker.tracebacks import lacks_shared_memory, own_words

PACKAGES: Final = {
    "apex": "git+https://github.com/NVIDIA/apex", "attr": "attrs", "Bio": "biopython", "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome", "cv2": "opencv-python", "dateutil": "python-dateutil", "dotenv": "python-dotenv",
    "faiss": "faiss-cpu", "fitz": "PyMuPDF", "git": "GitPython", "google.protobuf": "protobuf", "hydra": "hydra-core",
    "jose": "python-jose", "Levenshtein": "python-Levenshtein", "jwt": "PyJWT", "magic": "python-magic",
    "mpl_toolkits": "matplotlib", "MySQLdb": "mysqlclient", "numpy.core": "numpy", "OpenSSL": "pyOpenSSL",
    "PIL": "pillow", "pkg_resources": "setuptools<81", "psycopg2": "psycopg2-binary", "ruamel": "ruamel.yaml",
    "serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn", "socks": "PySocks", "usb": "pyusb",
    "wx": "wxPython", "yaml": "PyYAML", "zmq": "pyzmq",
}  # fmt: skip
"""Package names that differ from their module names."""
OWN_PARTS: Final = (
    "ranks find windlass.train by PYTHONPATH: look for what removes it, or starts python -I; do not install windlass "
    "from PyPI, where it is another project"
)


MORE_PROCESSES: Final = "fewer DataLoader workers, or a higher limit: ulimit -u, or the container's limit of pids"
_VARIABLE: Final = "(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)"
NO_VARIABLE: Final = Advice(
    "launcher-variables",
    "{who} reads {1}, which a job of one rank, or with launcher: plain, does not have",
    "windlass run … --set launcher=torchrun, or launcher: torchrun in the job",
    93,
)
"""Advice on a missing environment variable that a launcher would have set."""


KNOWN: Final = (
    # -- the GPU --
    (r"(?:CUDA|HIP) out of memory(?:.*?Tried to allocate ([\d.]+ \w+))?|(?:CUDA|HIP) error: out of memory|"
     r"Triton Error \[\w+\]: out of memory|"
     r"CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (?:\d+ )?'out of memory'|hipErrorOutOfMemory|"
     r"OOM when allocating tensor .*device:GPU|RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
     Advice("gpu-out-of-memory", "{who} ran out of GPU memory",
           "a smaller batch, gradient accumulation, activation checkpointing or a lower precision; check that no other "
           "process holds the GPU: nvidia-smi", 95)),
    (r"driver (?:version )?(?:on your system )?is (?:insufficient|too old)|"
     r"Driver/library version mismatch|CUDA driver version is insufficient|"
     r"forward compatibility was attempted",
     Advice("gpu-driver-mismatch", "the GPU's driver does not fit the CUDA version that torch was built for",
           "update the driver, or install a torch built for an older CUDA; nvidia-smi shows the version it can do",
           94)),
    (r"no kernel image is available",
     Advice("gpu-architecture", "torch, or an extension of it, is not built for the GPU of {who}",
           "compare torch.cuda.get_arch_list() with torch.cuda.get_device_capability(): install a newer torch for a "
           "new GPU, an older one for an old GPU; rebuild extensions with TORCH_CUDA_ARCH_LIST", 94)),
    (r"Cannot re-initialize CUDA in forked subprocess",
     Advice("cuda-after-fork", "{who} used CUDA in a process that was forked after CUDA had begun",
           "start DataLoader workers by multiprocessing_context='spawn', and touch CUDA only after forking", 94)),
    (r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device|"
     r"not compiled with CUDA enabled|only supported with GPUs|"
     r"torch\.cuda\.is_available\(\) is False|requires at least one CUDA device|[Cc]uda is not available|"
     r"No HIP GPUs|CUDA unknown error",
     Advice("gpu-not-visible", "{who} needs a GPU and sees none",
           "run it on a node with enough GPUs (resources: {{gpus: 1}}), or let the script take the CPU: "
           "device = 'cuda' if torch.cuda.is_available() else 'cpu', backend gloo", 93)),
    (r"invalid device ordinal",
     Advice("gpu-ordinal-invalid", "{who} uses a GPU number that its node does not have",
           "start at most as many ranks on a node (procs_per_node) as it has GPUs, or request more of them "
           "(resources: gpus:); torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), neither RANK nor a fixed cuda:N",
           94)),
    (r"Duplicate GPU detected ?: rank (\d+) and rank (\d+)",
     Advice("gpu-shared", "ranks {1} and {2} use the same GPU, and NCCL takes no two ranks on one",
           "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective, and no more ranks on a "
           "node (procs_per_node) than it has GPUs; or gloo", 94)),
    (r"(?:CUBLAS|CUDNN)_STATUS_NOT_INITIALIZED",
     Advice("gpu-out-of-memory", "{who} could not initialize cuBLAS or cuDNN, usually because GPU memory is used up",
           "a smaller batch; check that no other process holds the GPU: nvidia-smi; an earlier index out of range is "
           "a rarer reason: run once with env: {{CUDA_LAUNCH_BLOCKING: '1'}}", 93)),
    (r"uncorrectable (?:ECC|NVLink) error|\bXid\b|fallen off the bus",
     Advice("gpu-broken", "a GPU of {who} is broken",
           "take its node out of use, and continue on another one: windlass resume {run}; the kernel's log (dmesg) and "
           "nvidia-smi -q show the fault", 95)),
    (r"CUDA-capable devices?(?:\(s\))? (?:is/)?are busy or unavailable",
     Advice("gpu-busy", "the GPU of {who} is in use by another process",
           "nvidia-smi shows that process, and whether the GPU is in exclusive mode, in which it takes one process",
           94)),
    (r"CUDA error: ([^\n]*)|device-side assert|Cuda failure (?:\d+ )?'",
     Advice("gpu-error", "a CUDA kernel failed in {who}",
           "run once with env: {{CUDA_LAUNCH_BLOCKING: '1'}} to see the line; an index out of range is the usual "
           "reason")),
    # -- missing, forbidden or broken --
    (r"failed finding central directory|PytorchStreamReader failed|Ran out of input|Error while deserializing header|"
     r"invalid load key|pickle data was truncated|BadZipFile|Not a gzipped file|CRC check failed|unexpected EOF, exp|"
     r"Compressed file ended before|unexpected end of data|cannot identify image file|image file is truncated|"
     r"EOF: reading array|file seems not fully written|magic bytes not found|Either the file is corrupted",
     Advice("file-corrupt", "{who} read a file that is damaged or cut short",
           "fetch or write that file again; write checkpoints under another name and rename them when whole")),
    (r"UnreadableCheckpoint: (\w+://\S+) cannot be read, also after retries \((.*?)\)\. No",
     Advice("checkpoint-unreadable", "{who} could not read {1}: {2}",
           "check the address, the credentials and the network; no checkpoint was changed; then windlass resume {run}, "
           "with --from NAME to continue from another one", 95)),
    (r"UnreadableCheckpoint: (\S+) cannot be read, also after retries \((.*?)\)\. No",
     Advice("checkpoint-unreadable", "{who} could not read {1}: {2}",
           "check that the file system is mounted and readable on every node; no checkpoint was changed; then "
           "windlass resume {run}, with --from NAME to continue from another one", 95)),
    (r"Error\(s\) in loading state_dict|size mismatch for ",
     Advice("checkpoint-mismatch", "the checkpoint does not fit the model in {who}",
           "build the model as it was when the checkpoint was written, or begin with an empty checkpoint folder")),
    (r"CERTIFICATE_VERIFY_FAILED",
     Advice("certificate-untrusted", "{who} reached a host whose TLS certificate is not trusted",
           "install the package ca-certificates there; for a certificate authority of your own, name its file in env: "
           "as SSL_CERT_FILE and REQUESTS_CA_BUNDLE", 92)),
    (r"Name or service not known|Temporary failure in name resolution|"
     r"nodename nor servname|Network is unreachable|Max retries exceeded|No route to host|"
     r"Failed to (?:resolve|establish a new connection)|We couldn't connect to",
     Advice("network-unreachable", "{who} could not reach a host on the network",
           "check that this node reaches it; stage data beforehand (data:) instead of in the script")),
    (r"\[Errno 24\]|Too many open files|received 0 items of ancdata",
     Advice("too-many-files", "{who} has too many files open",
           "close files after use, fewer DataLoader workers, "
           "torch.multiprocessing.set_sharing_strategy('file_system'), or a higher limit: ulimit -n", 94)),
    (r"can't start new thread",
     Advice("too-many-processes", "{who} may not start one more process or thread",
           MORE_PROCESSES, 92)),
    (r"\[Errno (?:5|37|116|121)\]|\[Errno 107\][^\n]*: '|Stale file handle|No locks available",
     Advice("file-system-failed", "a file system failed under {who}",
           "look at the mount of that file: dmesg, whether its server answers, whether it has locks (a mount of NFS "
           "without them needs another folder for lock files); then windlass resume {run}", 92)),
    (r"\[Errno 27\]|File too large",
     Advice("limit-reached", "{who} wrote a file larger than it may (ulimit -f)",
           "raise that limit where Windlass is called, or write several files", 92)),
    (r"^MemoryError|can't allocate memory|\[Errno 12\]|Cannot allocate memory|Unable to allocate|"
     r"std::bad_alloc|_ArrayMemoryError|OOM when allocating tensor|RESOURCE_EXHAUSTED: Out of memory",
     Advice("out-of-memory", "{who} asked for memory and got none",
           "a smaller batch, fewer DataLoader workers, data read in parts; "
           "see ulimit -v and the memory limit of the container", 93)),
    # -- the script itself --
    (r"arguments are not used by the HfArgumentParser: (.*)|^(?:[\w.]*\.)?GetoptError: (.*)",
     Advice("wrong-arguments", "the script refuses its arguments: {1}{2}",
            "change the arguments in run: (or after --)", 92)),
    (r"process group has not been initialized",
     Advice("process-group-missing", "{who} calls a collective before init_process_group",
           "call torch.distributed.init_process_group() first; the launcher sets all that it needs", 85)),
    (r"devices=(\d+)` and `num_nodes=(\d+)` in Lightning.* does not match the world size \((\d+)\)",
     Advice("ranks-mismatch", "{who} is set to {1} devices × {2} nodes, and the run has ranks: {3}",
           "procs_per_node: {1} and nodes: {2} in the job; or set the script to what the job has", 94)),
    (rf"environment variable {_VARIABLE}\b", NO_VARIABLE),
    (r"coordinator_address should be defined",
     Advice("launcher-variables", "{who} calls jax.distributed.initialize() and finds no coordinator",
           "windlass run … --set launcher=jax, or launcher: jax in the job", 93)),
    (r"^KeyboardInterrupt",
     Advice("interrupted", "{who} was interrupted (SIGINT)",
           "check what sends SIGINT; Ctrl-C in windlass run does not reach the ranks", 88)),
)  # fmt: skip
"""Advice by pattern; patterns are searched in `Kind: message`, and `{who}` in the texts is the rank."""


def known(case: Observations) -> Iterator[Verdict]:
    """Explains an exception that is listed in `KNOWN`."""
    error = case.raised
    if error is None or case.first is None:
        return
    text = f"{error.kind}: {error.message}"
    for special in (_imports, _files, _not_now, _syntax, _worker_killed, _environment, _hub, _prompt):
        yield from special(case, error)
    for pattern, advice in KNOWN:
        if match := re.search(pattern, text, re.DOTALL):
            more = f" (it asked for {match[1]})" if advice.code == "gpu-out-of-memory" and match.lastindex else ""
            found = [(group or "")[:300] for group in match.groups()]
            yield _advised(case, error, advice, found, more)


def _advised(case: Observations, error: Raised, advice: Advice, found: list[str], more: str = "") -> Verdict:
    """Returns the advice on an exception of the rank that failed first, with `more` appended to its summary."""
    rank = None if case.first is None else case.first.rank
    verdict = advice.verdict(_evidence(case, error), *found, rank=rank, who=case.who, run=case.status.id)
    return replace(verdict, summary=verdict.summary + more + case.at_place)


_IMPORTED_AGAIN: Final = re.compile(
    r"start a new process before the\s+current process has finished its\s+bootstrapping phase|"
    r"(?<=in _fixup_main_from_)(?:path|name)\n.{0,4000}?context has already been set",
    re.DOTALL,
)


def main_guard(case: Observations) -> Iterator[Verdict]:
    """Explains that a process spawned by the script imports the main file again and starts further processes there.

    The error belongs to that process: the script waits for it, starts others in its place, or fails in another way.
    """
    if case.status.phase is Phase.SUCCEEDED or case.status.progress.step is not None:
        return
    for seen in case.ranks if case.first is None else [case.first]:
        text = own_words(seen.tail)
        # The last match is used, because the frames of the first may be truncated.
        found = next(reversed(list(_IMPORTED_AGAIN.finditer(text))), None)
        if found is None:
            continue
        place = case.at(own_frame(frames(text[: found.end()]), case.code_dir, innermost_first=False))
        is_method = found[0].endswith("already been set")
        message = found[0][-28:] if is_method else f"An attempt has been made to {' '.join(found[0].split())}"
        yield Verdict(
            "main-guard-missing",
            f"a process that {case.name(seen.rank)} started imports its main file, and starts processes there itself"
            + (f", at {place_alone(place)}" if place else ""),
            seen.rank,
            (f"RuntimeError: {message}", *([place] if place else [])),
            "put what the script does under if __name__ == '__main__':, which processes of spawn and forkserver skip",
            97 if case.first else 110,
        )
        return


def any_other(case: Observations) -> Iterator[Verdict]:
    """Explains any other exception, first of the rank that failed first."""
    error, first = case.raised, case.first
    if first is None:
        return
    if error is not None and case.only_victims:
        yield case.of_first(
            "connection-lost",
            f"{case.who} lost its connection to a peer, and no peer reports why",
            _evidence(case, error),
            "look at the network between the nodes, and at ranks that ended without output",
            20,
            is_effect=True,
        )
    elif error is not None:
        yield case.of_first(
            "exception",
            f"{case.who} raised {error.line[:300]}",
            _evidence(case, error),
            f"see {case.where}" if case.where else "read its traceback",
            60,
            is_effect=True,
        )
    for seen in case.failures:
        other = raised(seen.tail) if seen.rank != first.rank else None
        is_own = other is not None and not is_victim(seen.exit_code, seen.tail)
        if other is not None and is_own and (error is None or other.kind != error.kind):
            summary = f"{case.name(seen.rank)} raised {other.line[:300]}"
            yield Verdict("exception-too", summary, seen.rank, (other.line[:300],), "fix the first one first", 10)


def _evidence(case: Observations, error: Raised) -> tuple[str, ...]:
    """Returns the exception and where it was raised, then the ranks that failed after it."""
    message = [line.strip() for line in error.message.splitlines()[1:4] if line.strip()]
    lines = [error.line[:400], *(line[:300] for line in message), *([case.where] if case.where else [])]
    if error.kind == "CalledProcessError":
        lines += last_lines(case.text.partition(error.text.strip())[0], 2)
    if case.first is not None and (victims := [r.rank for r in case.failures if r.rank != case.first.rank]):
        lines.append(f"{named(victims)} failed after it")
    return tuple(lines)


# -- imports ----------------------------------------------------------------------------------------------------------

_NO_MODULE: Final = re.compile(r"No module named '?([\w.]+)'?")
_NO_NAME: Final = re.compile(r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'")
_IMPORTED: Final = re.compile(
    r'File "(?P<by>[^"\n]+)", line \d+, in [^\n]*\n\s+(?:from|import) (?P<module>\w+)\b[^\n]*\n(?:[\s~^]+\n)?'
    r'(?=\s*File "(?P<file>[^"\n]*/(?P=module)\.py)", line \d+, in <module>)'
)
"""Pattern for a file that the import of a module executed, and for the file that imports it."""
_NO_LIBRARY: Final = re.compile(r"(\S+\.so[\w.]*): cannot open shared object file")
_OF_FILE: Final = re.compile(r"\((/[^()\n]+\.py)\)$")
_TO_INSTALL: Final = re.compile(r"pip install (?:-U |--upgrade )?['\"`]?([A-Za-z][\w.,<>=!~\[\]-]*[\w\]])")
_NO_PACKAGE: Final = re.compile(r"Numpy is not available|requires? the (\w+) library")


def _hiding(error: Raised) -> tuple[str, str]:
    """Returns a module, and the file in the script's folder that was imported in its place, by a library or by the file
    itself.
    """
    for match in _IMPORTED.finditer(error.text):
        is_meant = match["by"] != match["file"] and not LIBRARY.search(match["by"])
        if not is_meant and not LIBRARY.search(match["file"]):
            return match["module"], match["file"]
    return "", ""


def _imports(case: Observations, error: Raised) -> Iterator[Verdict]:
    evidence = _evidence(case, error)
    module, file = _hiding(error)
    if file:
        name = PurePosixPath(file).name
        yield case.of_first(
            "import-broken",
            f"{name} in the script's folder was imported in place of the module {module}",
            evidence,
            f"rename {file}: Python looks in the script's folder first",
            94,
        )
    if error.kind == "RuntimeError" and (match := _NO_PACKAGE.search(error.message)):
        yield _missing(case, error, match[1] or "numpy")
    if error.kind not in ("ModuleNotFoundError", "ImportError", "OSError", "AttributeError"):
        return
    if (match := _NO_MODULE.search(error.message)) and match[1] == "mpi4py" and "in mpi_discovery" in error.text:
        yield case.of_first(
            "launcher-variables",
            f"{case.who} has no RANK, so DeepSpeed asks MPI, and mpi4py is not installed",
            evidence,
            "windlass run … --set launcher=torchrun, or launcher: torchrun in the job",
            93,
        )
    elif match:
        yield _missing(case, error, match[1])
    elif match := _NO_LIBRARY.search(error.message):
        yield case.of_first(
            "library-missing",
            f"{case.who} needs the library {match[1]}, which is not installed",
            evidence,
            f"install what brings {match[1]}, or add its folder to LD_LIBRARY_PATH in env:",
            92,
        )
    elif error.kind == "ImportError" and (match := _NO_NAME.search(error.message)):
        summary = f"{case.who} could not import {match[1]} from {match[2]}"
        fix = f"install the version of {match[2].partition('.')[0]} that the script was written for"
        if (own := _OF_FILE.search(error.message)) and not LIBRARY.search(own[1]):
            fix = f"{own[1]} has no such name; if an installed package was meant, rename that file, which hides it"
        if match[2].partition(".")[0] == "windlass":
            fix = "see the reference of windlass.train for where the name is"
        if "circular import" in error.message:
            summary, fix = f"{summary}: they import each other", "move one import into the function that needs it"
        yield case.of_first("import-broken", summary, evidence, fix, 92)
    elif error.kind == "ImportError" and error.message.startswith("attempted relative import"):
        yield case.of_first(
            "import-broken",
            f"{case.who} could not import a module: {error.message.splitlines()[0][:200]}",
            evidence,
            "run the script as a module of its package: run: -m package.train; or import by the module's full name",
            92,
        )
    elif error.kind in ("ModuleNotFoundError", "ImportError") and (match := _TO_INSTALL.search(error.message)):
        yield case.of_first(
            "module-missing",
            f"{case.who} could not import a module: {error.message.splitlines()[0][:200]}",
            (*evidence, _where(case)),
            _install(case, match[1]),
            92,
        )
    elif error.kind == "ImportError":
        yield case.of_first(
            "import-broken",
            f"{case.who} could not import a module: {error.message.splitlines()[0][:200]}",
            evidence,
            "install that package again, built for this interpreter and these libraries",
            90,
        )


def _missing(case: Observations, error: Raised, module: str) -> Verdict:
    top = module.partition(".")[0]
    package = PACKAGES.get(module, PACKAGES.get(top, top.replace("_", "-")))
    fix = _install(case, package)
    if near := case.near.get(module):
        fix = f"{near}; or, if it is a package: {fix}"
    return case.of_first(
        "module-missing",
        f"{case.who} imports {module}, which is not installed",
        (*_evidence(case, error), _where(case)),
        fix,
        92,
    )


def _where(case: Observations) -> str:
    if case.image:
        return f"the script runs in the image {case.image}"
    return f"the script runs under {case.python or 'python'}; set python: if its packages are elsewhere"


def _install(case: Observations, package: str) -> str:
    if package == "windlass":
        return OWN_PARTS
    quoted = f"'{package}'" if re.search(r"[<>=\s\[]", package) else package
    if case.image:
        return f"add {package} to the image {case.image} (RUN python -m pip install {quoted}), or name another image:"
    python = case.python or "python"
    environment = case.machine.environment
    by_kind = {
        "uv-project": f"uv add {quoted}",
        "poetry": f"poetry add {quoted}",
        "uv": f"uv pip install --python {python} {quoted}",
        "conda": f"{python} -m pip install {quoted}, or conda install -p {environment.prefix} {quoted}",
    }
    return by_kind.get(environment.kind, f"{python} -m pip install {quoted}")


# -- files ------------------------------------------------------------------------------------------------------------

_PATH: Final = re.compile(r"(?<!\w)'([^'\n]*)'")
"""Pattern for text in single quotes. The apostrophe of `can't` does not begin a quotation."""
_SHM: Final = re.compile(r"/dev/shm|</torch_|shared memory|shm_open|psm_[0-9a-f]+|/pymp-", re.IGNORECASE)
_STARTS: Final = re.compile(r", in (?:_execute_child|_posix_spawn|execvp?e?|_execvpe|_spawnvef)$", re.MULTILINE)
"""Function names in the frames of a process that starts a program."""
_WRITES: Final = re.compile(
    r"\bsave|mkdir|makedirs|open\([^)]*['\"][wax]b?\+?['\"]|\bwrite|\bdump|\.to_csv|touch\(|rename|copy"
)
"""Words in source lines and function names that indicate writing a file."""


def _files(case: Observations, error: Raised) -> Iterator[Verdict]:
    text, evidence = f"{error.kind}: {error.message}", _evidence(case, error)
    full_path = path_without_space(text)
    path = full_path or (found[1] if (found := _PATH.search(error.message)) else "")
    file = path or "a file"
    if is_of_space(text) or lacks_shared_memory(text):
        is_named = _SHM.search(full_path or f"{text}\n{case.where}")
        if is_named or (not path and _only_shm_is_full(case)):
            yield case.of_first(
                "shm-full",
                f"no space was left in shared memory (/dev/shm) for {case.who}",
                (*evidence, *_free_shm(case)),
                SHM_FIX,
                95,
            )
        else:
            is_sure = "Errno" in text or "No space" in text
            full = case.host.without_space
            on = f" on {full[0].mount}" if len(full) == 1 else ""
            yield case.of_first(
                "disk-full",
                f"no space was left{on} for {case.who} to write {file}",
                (*evidence, *(map(_without_space, full) if full else _free(case))),
                _space_fix(case, full),
                95 if is_sure else 85,
            )
    elif error.kind == "FileNotFoundError" and path and "/" not in path and _STARTS.search(error.text):
        yield case.of_first(
            "program-missing",
            f"{case.who} starts {path}{case.at_place}, which is not installed",
            evidence,
            f"install {path}, give its path, or add its folder to PATH in env:",
            93,
        )
    elif error.kind in ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError") or "[Errno 2]" in text:
        near = case.near.get(path)
        fix = f"did you mean {near}?" if near else "check the path."
        if path and not path.startswith("/"):
            fix += f" It is looked for in {case.code_dir or 'the folder of the job'}, where the ranks run"
        kind = "is a folder where a file is needed" if error.kind == "IsADirectoryError" else "does not exist"
        yield case.of_first("file-missing", f"{case.who} needs {file}, which {kind}", evidence, fix, 92)
    elif error.kind == "PermissionError" or re.search(r"\[Errno (?:13|1|30)\]", text):
        if "[Errno 1]" in text and not path:
            yield case.of_first(
                "permission-denied",
                f"{case.who} may not do what it asks the system for{case.at_place}",
                evidence,
                "leave it out, or run it as a user, or in a container, with that right (a capability, a limit)",
                92,
            )
            return
        why = "the file system is read-only" if "[Errno 30]" in text else "permission denied"
        fix = f"check its owner: ls -ld {path}" if path else "check its owner"
        if ("[Errno 30]" in text or _is_written(case, error)) and not path.startswith(case.status.output_dir or "\0"):
            fix = (
                "write it below $WINDLASS_OUTPUT_DIR (os.environ['WINDLASS_OUTPUT_DIR']), the folder of the run's "
                f"results; or {fix}"
            )
        yield case.of_first("permission-denied", f"{case.who} may not use {file}: {why}", evidence, fix, 92)


_LOCKS: Final = re.compile(r"\b(?:flock|lockf)\(|/portalocker/|/filelock/|could not be acquired")
_FORKS: Final = re.compile(r"\bfork|_execute_child")


def _not_now(case: Observations, error: Raised) -> Iterator[Verdict]:
    """Explains EAGAIN, which depends on the call: no more processes can be started, or another process holds a lock."""
    is_lock = error.kind in ("Timeout", "LockException", "AlreadyLocked", "BlockingIOError")
    if is_lock and _LOCKS.search(error.text) and "[Errno 37]" not in error.line:
        yield case.of_first(
            "lock-held",
            f"{case.who} could not lock a file{case.at_place}: another process has the lock",
            _evidence(case, error),
            "see which process has it: lslocks; let ranks wait for the lock, or let only one of them do what needs it",
            93,
        )
    elif error.kind == "BlockingIOError" and _FORKS.search(error.text):
        yield case.of_first(
            "too-many-processes",
            f"{case.who} may not start one more process or thread{case.at_place}",
            _evidence(case, error),
            MORE_PROCESSES,
            92,
        )


def _is_written(case: Observations, error: Raised) -> bool:
    """Whether the traceback's source lines or functions write a file."""
    return any(_WRITES.search(f"{case.sources.get(one.key, '')}\n{one.name}") for one in error.frames)


def _without_space(one: FileSystem) -> str:
    """Returns the free space of full disks in words: `/scratch had 0.1 MB left of 2 MB`."""
    if one.free_files == 0 and one.files and one.free_bytes > FULL_BYTES:
        return f"{one.mount} had no inode left of {one.files:,}: it has too many files"
    return f"{one.mount} had {one.free_bytes / 1e6:,.1f} MB left of {one.bytes / 1e6:,.1f} MB"


def _space_fix(case: Observations, full: Sequence[FileSystem]) -> str:
    """Returns how to free space for the results of the run and for other files."""
    output = f"{case.status.output_dir}/"
    holds_results = any(output.startswith(f"{one.mount.rstrip('/')}/") for one in full)
    if full and not holds_results:
        where = " or ".join(one.mount for one in full)
        return f"free some space on {where}, or write elsewhere: TMPDIR, HF_HOME and the like may be set in env:"
    seen = case.host.free_bytes.values()
    if not full and seen and min(seen) > FULL_BYTES:
        return (
            "the file systems of the run have space: see on which other one the script writes there (df), and its quota"
        )
    return "free some space, keep fewer checkpoints (checkpoint: {keep: 1}), or set outputs: to a larger disk"


def _free(case: Observations) -> Iterator[str]:
    """Yields the full disks; if none is full, the first disk, which contains the results."""
    free = case.host.free_bytes
    full = {path: left for path, left in free.items() if left < FULL_BYTES} or dict(list(free.items())[:1])
    for path, left in full.items():
        yield f"{path} had {left / 1e6:,.1f} MB left when it ended"


def _free_shm(case: Observations) -> Iterator[str]:
    if (left := case.host.shm_free_bytes) is not None:
        yield f"/dev/shm had {left / 1e6:,.1f} MB left of {case.host.shm_bytes / 1e6:,.0f} MB"


def _only_shm_is_full(case: Observations) -> bool:
    shm, free = case.host.shm_free_bytes, case.host.free_bytes or {"": 0}
    return shm is not None and shm < 1 << 20 and min(free.values()) > FULL_BYTES


# -- other exceptions whose text is not enough ------------------------------------------------------------------------

_DATALOADER: Final = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\) (?:is killed by signal: (\w+)|exited unexpectedly)"
)


def _syntax(case: Observations, error: Raised) -> Iterator[Verdict]:
    if error.kind not in ("SyntaxError", "IndentationError", "TabError"):
        return
    places = re.findall(r'^\s+File "([^"]+)", line (\d+)\n(.*)$', error.text, re.MULTILINE)
    place = f"{places[-1][0].rpartition('/')[2]}:{places[-1][1]}" if places else "a file"
    evidence = [error.line, *([f"{place}: {places[-1][2].strip()}"] if places else [])]
    fix = f"fix {place}; it may also be written for a newer Python than {case.python or 'this one'}"
    yield case.of_first("syntax-error", f"{place} is not Python: {error.message.splitlines()[0]}", evidence, fix, 94)


def _worker_killed(case: Observations, error: Raised) -> Iterator[Verdict]:
    match = _DATALOADER.search(case.text)
    if match is None:
        return
    who, how, evidence = f"a DataLoader worker of {case.who}", match[2] or "", (match[0], *_evidence(case, error))
    counted = case.host.oom_kills_of_group or case.host.oom_kills_of_machine
    if how == "Bus" or "insufficient shared memory" in case.text or "out of shared memory" in error.message:
        yield case.of_first("shm-full", f"{who} found no space in shared memory (/dev/shm)", evidence, SHM_FIX, 96)
    elif how == "Killed" and counted:
        yield case.of_first(
            "oom-killed",
            f"{who} was killed by the kernel: it used more memory than there is",
            (match[0], "the kernel counted an OOM kill while it ran"),
            "fewer DataLoader workers, or a smaller batch",
            96,
        )
    elif how == "Killed":
        is_uncounted = case.host.oom_kills_of_group is None and case.host.oom_kills_of_machine is None
        yield case.of_first(
            "dataloader-worker-died",
            f"{who} was killed (SIGKILL), {UNCOUNTED}" if is_uncounted else f"{who} was killed from outside (SIGKILL)",
            evidence,
            "fewer DataLoader workers, a smaller prefetch_factor, or more memory" if is_uncounted else KILLED_FIX,
            91,
        )
    else:
        yield case.of_first(
            "dataloader-worker-died",
            f"{who} died" + (f" ({how})" if how else ""),
            evidence,
            "run once with num_workers=0 to see its own error",
            91,
        )


def _environment(case: Observations, error: Raised) -> Iterator[Verdict]:
    """Explains a KeyError of `os.environ`, not of a dict in the script, for a variable that launchers set."""
    match = re.fullmatch(f"'{_VARIABLE}'", error.message.strip())
    raised_in = error.frames[-1].file if error.frames else ""
    if error.kind == "KeyError" and match and re.search(r"^<frozen os>$|/os\.py$", raised_in):
        yield _advised(case, error, NO_VARIABLE, [match[1]])


_TOO_MANY: Final = re.compile(
    r"\b429\b[^\n]{0,60}Too Many Requests|HTTP Error 429|Client error '429|rate limited.*\b429\b"
)
_NOT_CACHED: Final = re.compile(
    r"LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't find (?:it|them) in the cached files"
)
_OFFLINE: Final = re.compile(r"outgoing traffic has been disabled|OfflineModeIsEnabled|offline mode is enabled")
_ONCE: Final = (
    "fetch it once in setup:, which runs once on each machine before its ranks (hf download NAME), or by data:"
)


def _hub(case: Observations, error: Raised) -> Iterator[Verdict]:
    """Explains that a model hub limits requests, or that the cache lacks a file while the hub is unreachable or
    disabled.
    """
    said = f"{error.text}\n{error.message}"
    if _TOO_MANY.search(said):
        yield case.of_first(
            "hub-rate-limited",
            f"{case.who} got the answer 429 of a server: too many requests{case.at_place}",
            _evidence(case, error),
            f"{_ONCE}, so that not every rank and every restart asks; a token of the hub in "
            "secrets: has a higher limit",
            96,
        )
    elif _NOT_CACHED.search(said):
        is_offline = _OFFLINE.search(said) is not None
        why = "no request is made (HF_HUB_OFFLINE, local_files_only)" if is_offline else "the hub could not be reached"
        reach = "unset HF_HUB_OFFLINE there" if is_offline else "check that this node reaches the hub"
        yield case.of_first(
            "hub-file-missing",
            f"{case.who} needs a file of a hub{case.at_place} that is not in its cache, and {why}",
            _evidence(case, error),
            f"{_ONCE}; {reach}; ranks of other users and images have other caches: HF_HOME",
            95,
        )


_ASKS: Final = re.compile(r"no-tty|not a (?:tty|terminal)|getpass|EOF when reading a line|click\.exceptions\.Abort")


def _prompt(case: Observations, error: Raised) -> Iterator[Verdict]:
    """Explains that the script prompts for input, but ranks have no terminal and empty input."""
    if error.kind == "BdbQuit":
        what, fix = "stops in a debugger", "take breakpoint() out of it, or set env: {PYTHONBREAKPOINT: '0'}"
    elif error.kind in ("EOFError", "UsageError", "Abort") and _ASKS.search(f"{error.text}\n{error.line}"):
        what = "asks for input"
        fix = "give the answer as an argument or a variable; of a login, name the key in secrets: (wandb-api-key, "
        fix += "hf-token), whose variable WANDB_API_KEY or HF_TOKEN the library reads"
    else:
        return
    yield case.of_first(
        "no-terminal", f"{case.who} {what}{case.at_place}, and ranks have no terminal", _evidence(case, error), fix, 93
    )


# -- numbers ----------------------------------------------------------------------------------------------------------

_NAN: Final = re.compile(
    r"(?:loss|grad\w*|output)s?\b[^\n]{0,40}\b(?:is|are|was|became|of|=|:|contains?)?\s*"
    r"(?:nan\b|(?<![(\[]-)inf\b(?!(?<=, inf)[)\]])|not finite|non-?finite)|returned nan values|"
    r"\bnan\b[^\n]{0,20}\b(?:loss|grad)|"
    r"(?:non-?finite|not finite)[^\n]{0,30}loss",
    re.IGNORECASE,
)
"""Pattern for a message about a loss or gradient that is not finite. `inf` as a bound of an interval, such as
`[0, inf)`, does not count."""


def nan_loss(case: Observations) -> Iterator[Verdict]:
    """Explains that the loss is no longer finite, according to the script's message or its progress."""
    if case.status.phase not in (Phase.FAILED, Phase.SUCCEEDED):
        return
    reported, message = recorded.losses(case), ""
    if case.first is not None and case.signal is None:
        text = f"{case.raised.line}\n{case.raised.message}" if case.raised else "\n".join(last_lines(case.text, 5))
        match = _NAN.search(text)
        message = next((line for line in text.splitlines() if match and match[0].splitlines()[0] in line), "")[:300]
    is_reported = reported is not None and reported.loss is not None and not recorded.is_finite(reported.loss)
    if not (is_reported or message):
        return
    evidence = [message] if message else []
    evidence += reported.lines() if reported is not None else []
    evidence += [case.where] if case.first is not None and case.where else []
    rank = case.first.rank if case.first else case.status.progress.rank
    yield Verdict(
        "nan-loss",
        "the loss became NaN or infinite",
        rank,
        tuple(evidence),
        NAN_FIX,
        91 if message else 55 if case.status.phase is Phase.FAILED else 50,
    )
