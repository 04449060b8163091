"""Copies large tensors on a thread while the training goes on, and says whether the copy is of the moment of the save.

The training seldom writes to its state before the next optimizer step, and that waits for the copy. Whether it did is
not taken on trust: the kernel is asked, and a copy of something that was written to meanwhile is thrown away.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from windlass.train.checkpoint.watch import Watch

FEWEST_BYTES = 8 << 20
"""What is less is not worth a thread: to watch memory takes about a tenth of the time that it takes to copy it."""
FEWEST_BYTES_OF_A_TENSOR = 1 << 20
"""Smaller ones are copied at once: they are many and little, and some change in each forward pass."""
_STRIDE_BYTES = 4 << 20
"""How much is copied before it is looked again whether the tensor still has its memory: a third of a millisecond."""
_PAGE_BYTES = mmap.PAGESIZE


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether to copy beside the training at all: `$WINDLASS_CHECKPOINT_COPY` may say `at-once`."""
    return environ.get("WINDLASS_CHECKPOINT_COPY") != "at-once"


@dataclass(frozen=True)
class Piece:
    """The whole pages of a tensor: what can be watched of it, and copied later."""

    tensor: torch.Tensor
    """Held, so that its memory is not used for something else."""
    begin: int
    end: int
    to: int
    """Where it goes in the shared memory."""

    storage_bytes: int

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return self.end - self.begin

    @property
    def has_memory(self) -> bool:
        """Whether nobody has resized the storage: what was its memory may then be nobody's."""
        storage = self.tensor.untyped_storage()
        inside = storage.data_ptr() <= self.begin and self.end <= storage.data_ptr() + storage.nbytes()
        return inside and storage.nbytes() == self.storage_bytes


def pages_of(tensor: torch.Tensor, num_bytes: int, to: int) -> Piece | None:
    """What of a contiguous tensor on the CPU may be copied later; None if nothing, or if others can write to it."""
    if num_bytes < FEWEST_BYTES_OF_A_TENSOR or tensor.is_shared():  # type: ignore[no-untyped-call]
        return None
    address = tensor.data_ptr()
    begin = -(-address // _PAGE_BYTES) * _PAGE_BYTES
    end = (address + num_bytes) // _PAGE_BYTES * _PAGE_BYTES
    return Piece(tensor, begin, end, to + begin - address, tensor.untyped_storage().nbytes())


def watched(pieces: Sequence[Piece], *, prove: bool) -> Watch | None:
    """A watch over the pieces, begun; None where they are too little, or cannot be watched.

    With `prove` it is tried whether the kernel sees them as unwritten at all: it never does, for instance, for weights
    that are mapped from their file.
    """
    if sum(piece.num_bytes for piece in pieces) < FEWEST_BYTES:
        return None
    try:
        watch = Watch()
    except OSError:
        return None
    try:
        watch.begin([(piece.begin, piece.end) for piece in pieces])
    except OSError:
        watch.end()
        return None
    if prove and not watch.is_unwritten():
        watch.end()
        return None
    return watch


class CopyBeside:
    """A copy that is under way on a thread, from when it is made."""

    def __init__(self, pieces: Sequence[Piece], watch: Watch, memory: mmap.mmap, then: Callable[[float], None]) -> None:
        """`then` is called on the thread when the copy is good, with the seconds that somebody has waited for it.

        Raises OSError if there can be no thread.
        """
        self._pieces = list(pieces)
        self._watch = watch
        self._memory = memory
        self._then = then
        self._awaited_since: float | None = None
        self.was_written = False
        """Whether the state was written to before it was copied, so that the copy is worth nothing."""
        self.reason = "the copy of the state came to no end"
        """Why there is no good copy, once it is over; empty if there is one."""
        self._thread = threading.Thread(target=self._run, name="windlass-copy", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            watch.end()
            raise OSError(f"no thread for the copy of the state: {error}") from error

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Until it is over."""
        if self._awaited_since is None:
            self._awaited_since = time.perf_counter()
        self._thread.join()

    def _run(self) -> None:
        try:
            try:
                self._copy()
            finally:
                self._watch.end()
                self._pieces.clear()
            if self.was_written:
                self.reason = "the state was written to while it was copied; from now on it is copied at once"
                return
            since = self._awaited_since
            self._then(time.perf_counter() - since if since is not None else 0.0)
            self.reason = ""
        except OSError as error:
            self.reason = error.strerror or str(error)

    def _copy(self) -> None:
        held = ctypes.c_char.from_buffer(self._memory)
        to = ctypes.addressof(held)
        self.was_written = not all(_move(piece, to + piece.to) for piece in self._pieces)
        self.was_written = self.was_written or not self._watch.is_unwritten()


def _move(piece: Piece, to: int) -> bool:
    """Copy a piece to an address, without Python's lock; False where its memory was taken away meanwhile.

    The kernel's own copies (pwrite, process_vm_readv) would answer with an error for memory that is gone, but take
    twice the processor time, and that is the training's.
    """
    for done in range(0, piece.num_bytes, _STRIDE_BYTES):
        if not piece.has_memory:
            return False
        ctypes.memmove(to + done, piece.begin + done, min(_STRIDE_BYTES, piece.num_bytes - done))
    return True
