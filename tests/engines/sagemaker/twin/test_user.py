"""Hosts of a non-root user have their namespaces in a user namespace, if the machine allows that."""

from __future__ import annotations

import ctypes
import os
import tempfile
import traceback
from pathlib import Path

import pytest

from windlass.engines.sagemaker.twin.host import mount_ml, unshare
from windlass.worker.netns import call

USER = 12_345
PR_SET_DUMPABLE = 4
MAY = Path("/proc/sys/user/max_user_namespaces")


def has_user_namespaces() -> bool:
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    may = MAY.exists() and int(MAY.read_text()) > 0
    return may and not (restricted.exists() and int(restricted.read_text()))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.skipif(not has_user_namespaces(), reason="this machine allows users no namespaces")
def test_non_root_host_sees_its_folder_at_opt_ml() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "opt/ml").mkdir(parents=True)
        (folder / "opt/ml/model").write_text("of this host")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)
        pid = os.fork()
        if pid == 0:
            _as_user(folder)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (folder / "opt/ml/output").stat().st_uid == USER


def _as_user(folder: Path) -> None:
    """Runs the test as another user, in a child process that does not return."""
    try:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        # Without this, /proc/self belongs to root, as for a program that the user may not read.
        call("prctl", ctypes.c_int(PR_SET_DUMPABLE), ctypes.c_ulong(1), what="own /proc/self")
        unshare()
        mount_ml(folder)
        assert os.geteuid() == 0  # root in the user namespace, as in a container
        assert Path("/opt/ml/model").read_text() == "of this host"
        Path("/opt/ml/output").write_text("")
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
