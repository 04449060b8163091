"""Runs the script of one rank as `python script.py` would, and writes a done mark when the script has finished.

Two differences from a plain interpreter are intended. The *done* mark is written once the script, its threads, its
`atexit` functions and its open files are finished, so that a crash during the teardown of libraries does not count as a
failure of the script. Then the process exits at once, because the teardown of torch takes half a second and sometimes
aborts or hangs.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DONE_VARIABLE = "WINDLASS_DONE_FILE"
NOWHERE = "/dev/null/windlass"
"""Placeholder in `sys.path` for the script's folder."""
_HERE = __file__
_own_main: list[object] = []
_prepared = None
"""Module that will be the script's `__main__`; None if it is created when the script starts."""
_is_watched = _has_group = False
"""Whether this rank observes the creation of torch process groups, and whether a group was created; see
`rendezvous_check.py`."""
_C10D = "torch.distributed.distributed_c10d"
_RECORDER = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
_ARCHIVES = (
    ("gzip", "GzipFile"),
    ("bz2", "BZ2File"),
    ("lzma", "LZMAFile"),
    ("zipfile", "ZipFile"),
    ("h5py", "File"),
)
FLUSH_SECONDS = 2.0
"""Seconds for flushing pipes and sockets that the script has left open."""
_pid = 0
"""Process id of the rank. A child forked by the script runs the same exit functions, but must not write marks."""
_flight: Any = None
"""Recorder of this rank's collectives (`flight_recorder.py`); None until the rank has a torch process group."""


try:
    import _signal  # type: ignore[import-not-found] # the C module behind `signal`, always loaded

    STACK_SIGNAL = _signal.SIGRTMIN + 5
    """Signal at which a rank prints the stacks of all its threads to stderr, as soon as its main thread runs Python
    code."""
    FORCED_STACK_SIGNAL = _signal.SIGRTMIN + 6
    """Signal at which a rank prints the stack of its main thread immediately."""
except (ImportError, AttributeError):
    STACK_SIGNAL = FORCED_STACK_SIGNAL = 0


def main() -> None:
    """Runs `rank.py SCRIPT ARGS…` or `rank.py -m MODULE ARGS…`, and ends the process."""
    done = os.environ.pop(DONE_VARIABLE, None)
    end(run(sys.argv[1:], done), done)


def run(argv: list[str], done: str | None) -> int:
    """Runs the script in a fresh `__main__`. Returns the exit code that an interpreter would have (−2 for Ctrl-C).

    A failure is marked as soon as the rank has printed its error. Exit handlers may then take long, and a rank that is
    killed while they run must not count as a victim of another failure.
    """
    global _pid
    import time

    _pid = os.getpid()
    _answer_stack_signals()
    _watch_collectives(done)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.orig_argv[0], *argv]
    try:
        if argv[0] == "-m":
            _run_module(argv[1:])
        else:
            _run_file(argv)
        code = 0
    except SystemExit as exit_:
        code = _exit_code(exit_.code)
        if code != 0:
            _record_collectives(exit_)
            _write_done_mark(done, code, time.time(), by="exit")
    except BaseException as error:
        failed_at = time.time()
        code = -2 if isinstance(error, KeyboardInterrupt) else 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == _HERE:
            trace = trace.tb_next
        asked = _print(error.with_traceback(trace))
        code = code if asked is None else asked
        _record_collectives(error)
        # Marked only after the error is printed: a rank that is killed while it prints the error counts as a victim.
        _write_done_mark(done, code, failed_at)
    return code


def end(code: int, done: str | None) -> None:
    """Runs the exit steps of an interpreter, writes the done mark, and ends the process."""
    import time

    is_alone, is_alone_in_mpi = code == 0 and _is_alone(done), code == 0 and _is_alone_in_mpi()
    left = _finish()
    if done is not None and not _has_group:
        _write_mark(done, ".alone" if is_alone else ".alone-mpi" if is_alone_in_mpi else "")
    if code == 0:
        if _flight is not None:
            _flight.write("ended")
        _write_done_mark(done, code, time.time())
    _flush_for(left, FLUSH_SECONDS)
    if code == 0:
        _finalize_mpi()
    if code == -2:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    os._exit(code & 0xFF)


def _answer_stack_signals() -> None:
    """Installs the handlers of both stack signals.

    The handler of `STACK_SIGNAL` runs Python code between two instructions of the script. The handler of
    `FORCED_STACK_SIGNAL` is C code of faulthandler that needs no lock, so it works while the main thread blocks in a
    call or native code holds the GIL. It prints only the main thread, because frames of other threads may change or be
    freed while it reads them.
    """
    try:
        import faulthandler

        faulthandler.register(FORCED_STACK_SIGNAL, all_threads=False, chain=False)
        _signal.signal(STACK_SIGNAL, write_stacks)
        _interrupt_waits(False)  # native code may not retry interrupted calls
    except (ImportError, AttributeError, ValueError, OSError, RuntimeError):
        pass  # the platform has no such signals, or stderr is closed


def _interrupt_waits(is_wanted: bool) -> None:
    """Sets whether the stack signal interrupts blocking calls. Python repeats an interrupted call after the handler."""
    try:
        _signal.siginterrupt(STACK_SIGNAL, is_wanted)
    except (NameError, AttributeError, ValueError, OSError):
        pass  # the platform has no such signals


def write_stacks(*_: object) -> None:
    """Prints the stacks of all threads and then their names to stderr. Errors are ignored.

    The names show which threads are not daemons: such threads keep a finished script alive.
    """
    try:
        import faulthandler

        faulthandler.dump_traceback(2, all_threads=True)
        threads = list(getattr(sys.modules.get("threading"), "_active", {}).values())
        lines = [f"thread 0x{one.ident:016x}{' (daemon)' * one.daemon}: {one.name}\n" for one in threads if one.ident]
        os.write(2, "".join(lines).encode("utf-8", "replace"))
    except Exception:
        pass


def _watch_collectives(done: str | None) -> None:
    """Arranges that collectives are recorded from the first process group on. Loads no module before."""
    if done is None:
        return
    if _C10D in sys.modules:
        _await_process_group(sys.modules[_C10D], done)
    else:
        sys.meta_path.insert(0, _Imported(done))


class _Imported:
    """Import finder that waits for torch.distributed to be imported, and then removes itself."""

    def __init__(self, done: str) -> None:
        self.done = done

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder."""
        if name != _C10D or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)
        if loader is None:
            return spec

        def exec_module(module: Any) -> None:
            del loader.exec_module
            loader.exec_module(module)
            _await_process_group(module, self.done)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass  # the loader has fixed attributes: collectives are not recorded
        return spec


def _name_recorder(version: str, env: Any) -> None:
    """Sets the recorder's variables under the names that torch before 2.9 uses; newer versions warn about those names.

    Values that the user has set under the old names are used with every version.
    """
    try:
        is_older = tuple(map(int, version.split(".")[:2])) < (2, 9)
    except ValueError:
        return
    for name, before in _RECORDER:
        if before in env:
            env[name] = env[before]
        elif is_older and name in env:
            env[before] = env[name]


def _await_process_group(module: Any, done: str) -> None:
    """Hooks the creation of the first process group. Recording starts only then, because the script may fork or count
    threads before.
    """
    _name_recorder(getattr(sys.modules.get("torch.version"), "__version__", ""), os.environ)
    plain = getattr(module, "_update_default_pg", None)
    if plain is None or not hasattr(os, "mkfifo"):
        return
    pid = os.getpid()

    def update(*args: Any, **named: Any) -> Any:
        global _has_group
        module._update_default_pg = plain
        given = plain(*args, **named)
        if os.getpid() == pid:
            _has_group = True
            _write_mark(done, ".met")
            if args and getattr(args[0], "size", int)() == 1 != int(os.environ.get("WORLD_SIZE", "1")):
                _write_mark(done, ".alone-group")
            _start_recorder(module, done)
        return given

    global _is_watched
    _is_watched = True
    module._update_default_pg = update


def _is_alone(done: str | None) -> bool:
    """Whether this rank has finished training without ever connecting to its peers."""
    if done is None or not _is_watched or _has_group or os.getpid() != _pid:
        return False
    try:
        return bool(_load_module("rendezvous_check").is_alone())
    except Exception:
        return False  # an unknown state causes no warning


def _is_alone_in_mpi() -> bool:
    """Whether this rank, one of several in the job, has used MPI in a world without other ranks."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    try:
        is_used = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and os.getpid() == _pid
        return bool(is_used and os.environ.get("WORLD_SIZE", "1") != "1" and mpi.COMM_WORLD.Get_size() == 1)
    except Exception:
        return False  # an unknown state causes no warning


def _write_mark(done: str, kind: str) -> None:
    if not kind:
        return
    try:
        with open(os.path.splitext(done)[0] + kind, "w"):
            pass
    except OSError:
        pass  # without a mark there is no warning


def _load_module(name: str) -> Any:
    """Loads a worker module from the folder of this file, without adding it to `sys.modules`, where the script could
    see it.
    """
    import importlib.util

    path = os.path.join(os.path.dirname(os.path.abspath(_HERE)), name + ".py")
    spec: Any = importlib.util.spec_from_file_location(name, path)
    ours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)
    return ours


def _start_recorder(module: Any, done: str) -> None:
    global _flight
    try:
        _flight = _load_module("flight_recorder").Flight(os.path.splitext(done)[0], module)
        _flight.listen(write_stacks)
    except Exception:
        pass  # on an error, collectives are not recorded


def _record_collectives(error: BaseException) -> None:
    """Writes the collectives of a failed rank, and the function in which it failed."""
    if _flight is None:
        return
    names, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/torch/distributed/" in code.co_filename and code.co_name != "wrapper":  # `wrapper` is a decorator of torch
            names.append(code.co_name)
        trace = trace.tb_next
    # In a backward pass, native code leaves no Python frames, so the error message is checked.
    is_collective = any(word in str(error) for word in ("gloo", "NCCL", "ProcessGroup"))
    _flight.write("failed", names[0] if names else "backward" if is_collective else "")


def _run_file(argv: list[str]) -> None:
    import importlib.machinery
    import io

    script = os.path.abspath(argv[0])  # an interpreter uses this path in `__file__` and in tracebacks
    sys.argv = list(argv)
    _set_first_folder(os.path.dirname(os.path.realpath(script)))
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    with io.open_code(script) as file:
        source = file.read()
    # A crash of the machine may leave null bytes in the file, and the error of compile() does not name the file.
    if (at := source.find(b"\0")) >= 0:
        raise SyntaxError("source code cannot contain null bytes", (script, source.count(b"\n", 0, at) + 1, None, None))
    code = compile(source, script, "exec", dont_inherit=True)
    names = _fresh_main()
    names.update(__file__=script, __loader__=loader, __cached__=None)
    exec(code, names)


def _run_module(argv: list[str]) -> None:
    import runpy

    sys.argv = list(argv)
    _set_first_folder(os.getcwd())
    _fresh_main()
    runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]


def _set_first_folder(folder: str) -> None:
    """Replaces Windlass's entry in `sys.path` by the script's folder, unless the interpreter adds none (`-P`)."""
    if not getattr(sys.flags, "safe_path", False):
        at = sys.path.index(NOWHERE) if NOWHERE in sys.path else 0
        sys.path[at] = folder


def prepare_main(file: str) -> None:
    """Creates the script's `__main__` before the script is known, because imported modules may store a reference to
    `__main__`.
    """
    global _prepared
    _prepared = type(sys)("__main__")
    _prepared.__file__ = file
    _own_main.append(sys.modules["__main__"])
    sys.modules["__main__"] = _prepared


def _fresh_main() -> dict[str, object]:
    """Replaces `__main__` by a new module and returns its namespace. The old module is kept, because its functions
    still run.
    """
    import builtins

    _own_main.append(sys.modules["__main__"])
    module = _prepared or type(sys)("__main__")
    sys.modules["__main__"] = module
    names = module.__dict__
    names.pop("__file__", None)
    names.update(__builtins__=builtins, __spec__=None, __package__=None, __annotations__={})
    return names


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    try:
        print(code, file=sys.stderr or sys.__stderr__)
    except Exception:
        pass  # stderr is closed
    return 1


def _print(error: BaseException) -> int | None:
    """Prints an error with the script's `sys.excepthook`. Returns an exit code if the hook raises SystemExit.

    If the hook fails, its error and the original error are printed, as an interpreter does.
    """
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as exit_:
        return _exit_code(exit_.code)
    except BaseException as broken:
        inner = broken
        while inner.__context__ is not None and inner.__context__ is not error:
            inner = inner.__context__
        inner.__context__ = None
        # omits the frame of this function
        broken.__traceback__ = broken.__traceback__ and broken.__traceback__.tb_next
        for title, one in ("Error in sys.excepthook:", broken), ("\nOriginal exception was:", error):
            try:
                print(title, file=sys.stderr)
                sys.__excepthook__(type(one), one, one.__traceback__)
            except Exception:
                pass  # stderr is closed
    return None


def _finish() -> list[Any]:
    """Joins threads, calls the `atexit` functions and flushes open files, like the visible part of an interpreter's
    exit. Returns the open files that are not flushed, because flushing them may block.
    """
    import atexit

    threading = sys.modules.get("threading")  # not imported here: the script may have given up its right to read files
    shutdown = getattr(threading, "_shutdown", None)
    for finish in (shutdown, atexit._run_exitfuncs):
        _interrupt_waits(finish is shutdown)  # stacks can then be printed while threads are joined
        try:
            if finish is not None:
                finish()
        except BaseException as error:  # a signal handler may raise while threads are joined
            _print(error)
    prompt, blocking = _open_files()
    _flush([sys.stdout, sys.stderr, *prompt])
    _flush_native()
    return blocking


def _open_files() -> tuple[list[Any], list[Any]]:
    """Returns the files that the script may have left open, relying on the interpreter to flush them: those whose
    flushing does not block, and the others.

    A daemon thread may hold the lock of a pipe, because it writes to a program that does not read.
    """
    import gc
    import io

    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair, *_archive_types())
    prompt: list[Any] = []
    blocking: list[Any] = []
    # type() is used instead of isinstance(), because asking a proxy object for its class runs code of the script
    for file in [item for item in gc.get_objects() if issubclass(type(item), kinds)]:
        (blocking if _may_block(file) else prompt).append(file)
    return prompt, blocking


def _archive_types() -> tuple[type, ...]:
    """Returns the loaded types of files whose end is written when they are closed."""
    found = (getattr(sys.modules.get(module), name, None) for module, name in _ARCHIVES)
    return tuple(kind for kind in found if isinstance(kind, type))


def _may_block(file: Any) -> bool:
    """Whether a file is neither a regular file nor the output of the rank, which the node reads."""
    import stat

    try:
        descriptor = getattr(file, "fp", file).fileno()  # the file of a ZipFile is its `fp`
        return descriptor not in (1, 2) and not stat.S_ISREG(os.fstat(descriptor).st_mode)
    except Exception:
        return False  # the file is closed, or in memory


def _flush(files: list[Any]) -> None:
    """Flushes files and closes archives. Text is written to buffers and archives, and archives to other buffers."""
    import io

    kinds = _archive_types()
    archives = [file for file in files if issubclass(type(file), kinds)]
    buffers = [
        file for file in files if issubclass(type(file), io.BufferedIOBase) and not issubclass(type(file), kinds)
    ]
    text = [file for file in files if not issubclass(type(file), (io.BufferedIOBase, *kinds))]
    for file in [*text, *buffers, *archives, *buffers]:
        try:
            if not issubclass(type(file), kinds):
                file.flush()
            elif file.writable() if hasattr(file, "writable") else file.mode != "r":
                file.close()
        except Exception:
            pass  # the file is closed, or cannot be written


def _flush_for(files: list[Any], seconds: float) -> None:
    """Flushes files in a thread, for at most `seconds`."""
    import _thread

    if not files:
        return
    flushing = _thread.allocate_lock()
    flushing.acquire()

    def flush() -> None:
        _flush(files)
        flushing.release()

    try:
        _thread.start_new_thread(flush, ())
        flushing.acquire(timeout=seconds)
    except RuntimeError:
        pass  # no thread can be started


def _flush_native() -> None:
    """Flushes the C streams, which contain output of native code."""
    path, folder = sys.path, os.path.dirname(os.__file__)
    sys.path = [place for place in path if place in (folder, os.path.join(folder, "lib-dynload"))]
    try:
        import ctypes  # only the standard library is searched, so that no module from the script's folder is run

        ctypes.CDLL(None).fflush(None)
    except Exception:
        pass  # the build lacks ctypes, or the script has given up its right to read files
    finally:
        sys.path = path


def _finalize_mpi() -> None:
    """Finalizes MPI as mpi4py does at exit, so that mpirun sees a clean end of the rank.

    Not called in failed ranks: MPI_Finalize waits for the other ranks, which wait for the failed rank. (Horovod
    finalizes MPI in an `atexit` function.)
    """
    mpi4py, mpi = sys.modules.get("mpi4py"), sys.modules.get("mpi4py.MPI")
    if mpi is None or getattr(getattr(mpi4py, "rc", None), "finalize", None) is False:
        return
    try:
        if mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()


def _write_done_mark(done: str | None, code: int, at: float, by: str = "") -> None:
    """Writes the done mark: the exit code, the time of the failure or end, and `exit` if the script failed by
    `sys.exit`.
    """
    if done is None or os.getpid() != _pid:
        return
    try:
        with open(done, "w") as file:
            file.write(f"{code} {at:.6f} {by}")
    except OSError:
        pass  # without a mark, for example on a full disk, the exit code of the process counts


if __name__ == "__main__":
    main()
