"""Each run belongs to one machine, and file systems shared by several machines are detected."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.helpers.stores import store_on
from tests.runs.test_full_disk import begin

from windlass.runs.events import Machine, entry_of
from windlass.runs.filesystem import is_network, is_on_network, kind_of
from windlass.runs.machine import VARIABLE, this_machine
from windlass.runs.store import Store

HERE = Machine("aaaa", "node-1", "boot-1")


@pytest.mark.parametrize(
    ("run", "kept"),
    [
        (HERE, True),
        (Machine("aaaa", "renamed", "boot-0"), True),  # after a reboot
        (Machine("bbbb", "old-name", "boot-1"), True),  # the same kernel: the host was renamed, or a container is new
        (Machine("bbbb", "node-2", "boot-2"), False),
        (Machine("bbbb", "node-2", ""), False),
        (Machine("bbbb", "node-1", "boot-2"), False),  # two machines may have the same name
    ],
)
def test_run_belongs_to_machine_of_its_processes(run: Machine, kept: bool) -> None:
    assert HERE.keeps(run) is kept


def test_nodes_that_boot_one_image_differ_by_host_name_and_none_shows_its_machine_id(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    here = this_machine({}, tmp_path)
    assert here == this_machine({}, tmp_path)
    assert "0123456789abcdef" not in here.id
    (tmp_path / "etc" / "machine-id").write_text("ffff\n")
    assert this_machine({}, tmp_path).id != here.id
    named = this_machine({VARIABLE: "node-7"}, tmp_path)
    assert named.id != here.id
    assert named.keeps(Machine("cccc", "node-7", "boot-7"))  # that machine is gone, and this one replaces it
    assert not named.keeps(here)
    assert Machine.from_json(here.to_json()) == here


def test_a_run_is_recorded_with_its_machine(tmp_path: Path) -> None:
    other = Machine("bbbb", "node-2", "boot-2")
    with Store(tmp_path, HERE) as store, contextlib.closing(begin(store)) as writer:
        status = store.status("a-1")
        assert status.supervision.machine == HERE
        assert store.host_elsewhere(status) is None
        with Store(tmp_path, other) as elsewhere:
            assert elsewhere.host_elsewhere(status) == "node-1"
        writer.append(entry_of("end", {"phase": "stopped"}))
        writer.append(entry_of("resume", {"machine": other.to_json()}))
        assert store.host_elsewhere(store.status("a-1")) == "node-2"


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:9 master:2 - nfs4 filer:/home rw,vers=4.2
31 30 0:41 / /home/me/scratch rw - lustre 10.0.0.1@o2ib:/work rw
32 22 0:42 / /mnt/with\\040space rw - fuse.sshfs host:/ rw
33 22 8:2 / /mnt/disk rw - ext4 /dev/sdb rw
34 33 0:43 / /mnt/disk rw - tmpfs tmpfs rw
half a line
"""


@pytest.mark.parametrize(
    ("folder", "kind", "network"),
    [
        ("/var/lib", "ext4", False),
        ("/home/me/.local/share/windlass", "nfs4", True),
        ("/home/me/scratch", "lustre", True),
        ("/homestead", "ext4", False),
        ("/mnt/with space/x", "fuse.sshfs", True),
        ("/mnt/disk", "tmpfs", False),  # the last mount at a point is visible
    ],
)
def test_the_mount_nearest_above_a_folder_says_what_it_is_on(folder: str, kind: str, network: bool) -> None:
    assert kind_of(Path(folder), MOUNTS) == kind
    assert is_network(kind) is network


def test_the_file_systems_of_clusters_are_of_the_network_and_those_of_a_machine_are_not() -> None:
    assert all(map(is_network, ("nfs", "cifs", "smb3", "gpfs", "beegfs", "ceph", "9p", "panfs", "fuse", "fuse.s3fs")))
    assert not any(map(is_network, ("xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.fuse-overlayfs", "")))
    assert kind_of(Path("/"), "") == ""
    assert isinstance(is_on_network(Path("/")), bool)


def journal(home: Path) -> str:
    with contextlib.closing(sqlite3.connect(home / "record.db")) as db:
        return str(db.execute("PRAGMA journal_mode").fetchone()[0])


def test_on_a_network_file_system_the_record_has_no_wal(tmp_path: Path) -> None:
    with store_on(tmp_path, is_network=True) as store:
        begin(store).close()
    assert journal(tmp_path) == "delete"
    with store_on(tmp_path, is_network=False) as store:
        assert store.count() == 1


def test_a_record_with_a_wal_leaves_it_once_no_other_process_uses_it(tmp_path: Path) -> None:
    with store_on(tmp_path, is_network=False) as older:
        begin(older).close()
        assert journal(tmp_path) == "wal"
        with store_on(tmp_path, is_network=True) as store:
            assert store.count() == 1
        assert journal(tmp_path) == "wal"
    with store_on(tmp_path, is_network=True) as store:
        assert store.count() == 1
        begin(store, "a-2").close()
    assert journal(tmp_path) == "delete"
    assert not list(tmp_path.glob("record.db-*"))
