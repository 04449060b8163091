"""Has the kernel say whether memory was written to: so a copy made beside the training is known to be of one moment.

Linux 6.7 can protect pages so that a write to one goes through and takes the protection away (userfaultfd with
UFFD_FEATURE_WP_ASYNC), and can say which pages have it still (PAGEMAP_SCAN). No process has to serve the faults, and it
does not matter who writes: an optimizer, `.data`, NumPy, a C library, or the kernel for read(2). Not seen are other
processes, which have pages of their own for shared memory, and devices: such memory is not to be watched.

The numbers are those of linux/userfaultfd.h and linux/fs.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import struct
import sys
from collections.abc import Sequence

Range = tuple[int, int]
"""Addresses: the first byte, and the one after the last. Both begin a page."""

_SYSCALLS = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
"""Allowed to everyone. It limits who may serve faults, and these are served by nobody."""
_API, _API_VERSION, _WP_ASYNC = 0xC018AA3F, 0xAA, 1 << 15
_REGISTER, _REGISTER_MODE_WP = 0xC020AA00, 2
_UNREGISTER = 0x8010AA01
_SCAN, _SCAN_BYTES, _SCAN_PROTECT, _SCAN_CHECK_WPASYNC = 0xC0606610, 96, 1, 2
_WATCHED, _WRITTEN, _FILE, _PRESENT = 1, 2, 4, 8


class Watch:
    """Watches memory of this process from `begin` to `end`."""

    def __init__(self) -> None:
        """Raises OSError where this kernel has no such thing, or does not let us."""
        number = _SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None
        if number is None:
            raise OSError("memory can be watched on Linux only, on x86-64 and AArch64")
        libc = ctypes.CDLL(None, use_errno=True)
        self._ranges: list[Range] = []
        self._faults = libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        if self._faults < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._pages = -1
        try:
            fcntl.ioctl(self._faults, _API, bytearray(struct.pack("3Q", _API_VERSION, _WP_ASYNC, 0)))
            self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.end()
            raise

    def begin(self, ranges: Sequence[Range]) -> None:
        """From now on a write is noticed. Raises OSError if one of them cannot be watched."""
        for begin, end in ranges:
            fcntl.ioctl(self._faults, _REGISTER, bytearray(struct.pack("4Q", begin, end - begin, _REGISTER_MODE_WP, 0)))
            self._ranges.append((begin, end))
        for one in ranges:
            # UFFDIO_WRITEPROTECT would do the same in three times the time.
            self._scan(one, _SCAN_PROTECT, asked=(0, _WRITTEN, 0, _WRITTEN))

    def is_unwritten(self) -> bool:
        """Whether all of it has been watched and nobody has written to it. Never true for memory mapped from a file."""
        return all(self._is_unwritten(one) for one in self._ranges)

    def _is_unwritten(self, whole: Range) -> bool:
        # Asked for what is as it was, and not for what was written: a page that is gone would be missing in either.
        # It must be present, since of others it is not known whether they belong to a file.
        found = (ctypes.c_uint64 * 3)()
        asked = (_WRITTEN | _FILE, _WATCHED | _WRITTEN | _FILE | _PRESENT, 0, _WATCHED)
        try:
            num_found = self._scan(whole, 0, asked, found=(ctypes.addressof(found), 1))
        except OSError:
            return False
        return num_found == 1 and (found[0], found[1]) == whole

    def _scan(self, whole: Range, flags: int, asked: tuple[int, int, int, int], found: tuple[int, int] = (0, 0)) -> int:
        """`asked`: the kinds of pages that are inverted, wanted all, wanted any, and told. `found`: where to tell."""
        flags |= _SCAN_CHECK_WPASYNC
        question = struct.pack("12Q", _SCAN_BYTES, flags, *whole, 0, *found, 0, *asked)
        num_found: int = fcntl.ioctl(self._pages, _SCAN, bytearray(question))
        return num_found

    def end(self) -> None:
        """Writes cost nothing any more. May be called twice."""
        for begin, end in self._ranges:
            with contextlib.suppress(OSError):  # it was unmapped
                fcntl.ioctl(self._faults, _UNREGISTER, bytearray(struct.pack("2Q", begin, end - begin)))
        self._ranges = []
        for descriptor in (self._faults, self._pages):
            if descriptor >= 0:
                os.close(descriptor)
        self._faults = self._pages = -1
