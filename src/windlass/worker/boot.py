"""Unpacks the code of a job, from pieces or from a store, and becomes the pod's own process (`pod.py`).

The first thing that runs there, alone: the standard library of any Python from 3.9 on, and nothing of ours beside it.
"""

import hashlib
import os
import signal
import sys
import tarfile

PIECES, WORK, ATTEMPT = "/windlass/code.d", "/windlass/work", "/windlass/attempt/nodes.json.gz"
END = "/windlass/end/how"
FETCHER = "/windlass/transfer/windlass.zip"


def main() -> int:
    """Check the digest, unpack, and hand over. Gives an exit code only where it cannot."""
    # The first process of a container ignores what it has no handler for: the stop of a pod would wait for its grace.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if os.path.exists(END):
        print("[w] the run has ended: this pod does not train", flush=True)
        with open(END) as file:
            return 0 if file.read() == "well" else 1
    if _is_again():
        print("[w] the container was restarted by the cluster: only the run's supervisor restarts ranks", flush=True)
        return 1
    archive = os.path.join(WORK, "code.tar.gz")
    source = os.environ.get("WINDLASS_CODE_SOURCE", "")
    if source:
        import subprocess  # most pods need none

        fetched = subprocess.run([sys.executable, "-I", "-S", FETCHER, source, archive], stderr=subprocess.PIPE)
        if fetched.returncode:
            words = fetched.stderr.decode(errors="replace").strip().splitlines()
            print("[w] the code could not be fetched: " + (words[-1] if words else "no reason given"), flush=True)
            return 1
        digest = digest_of(archive)
    else:
        digest = _joined(archive)
    if digest != os.environ["WINDLASS_CODE_DIGEST"]:
        print(f"[w] the code is damaged: its digest is {digest}", flush=True)
        return 1
    with tarfile.open(archive) as tar:
        unpack(tar, WORK)
    os.unlink(archive)
    os.chdir(os.path.join(WORK, "code"))
    program = os.path.join(WORK, "travel", "windlass", "worker", "pod.py")
    argv = [sys.executable, "-I", "-S", program, os.path.join(WORK, "attempt"), ATTEMPT]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until pod.py handles it
    return os.execv(sys.executable, argv)


def _joined(archive: str) -> str:
    """Join the pieces into a file; gives their digest."""
    found = hashlib.sha256()
    with open(archive, "wb") as file:
        for name in sorted(name for name in os.listdir(PIECES) if not name.startswith(".")):
            with open(os.path.join(PIECES, name), "rb") as piece:
                data = piece.read()
            found.update(data)
            file.write(data)
    return found.hexdigest()


def digest_of(path: str) -> str:
    """SHA-256 of a file, in hex. Raises OSError."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for data in iter(lambda: file.read(1 << 20), b""):
            found.update(data)
    return found.hexdigest()


def _is_again() -> bool:
    """Whether the cluster has restarted the container, or an operator has made the pods of an attempt anew."""
    begun = os.path.join(WORK, "begun")
    if os.path.exists(begun) or os.environ.get("WINDLASS_REMADE", "0") not in ("", "0"):
        return True
    with open(begun, "w"):
        return False


def unpack(tar: tarfile.TarFile, folder: str) -> None:
    """Extract all entries, which the digest has verified. Raises OSError, tarfile.TarError."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
    else:
        tar.extractall(folder)


if __name__ == "__main__":
    sys.exit(main())
