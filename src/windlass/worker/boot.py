"""Unpacks the code of a job from ConfigMap pieces or from a store, then executes the pod's main program (`pod.py`).

This file is the pod's first program. The rest of Windlass is not unpacked yet, so this file imports only the standard
library of Python 3.9 or later.
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
    """Unpacks and verifies the code, and replaces this process by `pod.py`. Returns an exit code only on failure."""
    # PID 1 of a container ignores signals without a handler, so deleting the pod would take its whole grace period.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if os.path.exists(END):
        print("[w] the run has ended: this pod does not train", flush=True)
        with open(END) as file:
            return 0 if file.read() == "well" else 1
    if _is_restarted():
        print("[w] the container was restarted by the cluster: only the run's supervisor restarts ranks", flush=True)
        return 1
    archive = os.path.join(WORK, "code.tar.gz")
    source = os.environ.get("WINDLASS_CODE_SOURCE", "")
    if source:
        import subprocess  # imported here because most pods need no subprocess

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
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # SIGTERM is blocked until pod.py installs its handler
    return os.execv(sys.executable, argv)


def _joined(archive: str) -> str:
    """Joins the pieces of the code archive into one file and returns its SHA-256 digest in hex."""
    found = hashlib.sha256()
    with open(archive, "wb") as file:
        for name in sorted(name for name in os.listdir(PIECES) if not name.startswith(".")):
            with open(os.path.join(PIECES, name), "rb") as piece:
                data = piece.read()
            found.update(data)
            file.write(data)
    return found.hexdigest()


def digest_of(path: str) -> str:
    """Returns the SHA-256 digest of a file in hex. Raises OSError."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for data in iter(lambda: file.read(1 << 20), b""):
            found.update(data)
    return found.hexdigest()


def _is_restarted() -> bool:
    """Whether the kubelet restarted the container, or an operator recreated the pods of an attempt."""
    begun = os.path.join(WORK, "begun")
    if os.path.exists(begun) or os.environ.get("WINDLASS_REMADE", "0") not in ("", "0"):
        return True
    with open(begun, "w"):
        return False


def unpack(tar: tarfile.TarFile, folder: str) -> None:
    """Extracts all entries of an archive whose digest was verified. Raises OSError, tarfile.TarError."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
    else:
        tar.extractall(folder)


if __name__ == "__main__":
    sys.exit(main())
