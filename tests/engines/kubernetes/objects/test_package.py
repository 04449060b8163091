"""The packed supervisor starts in a suitable image, and reports in one sentence why it cannot start in another
image.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import zipfile
from pathlib import Path

from windlass.engines.kubernetes.objects.package import AGAIN, IMPORTER, SUPERVISOR_MAIN, supervisor_archive


def test_image_without_complete_standard_library_is_rejected_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "windlass.zip").write_bytes(supervisor_archive())
    without = "import runpy, sys; sys.modules['_sqlite3'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-I", "-S", "-c", without, str(tmp_path / "windlass.zip")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("the supervisor needs the whole standard library, and the image lacks a part of it (")
    assert "supervisor_image:" in line


def test_all_modules_that_the_supervisor_imports_are_packed(tmp_path: Path) -> None:
    (tmp_path / "windlass.zip").write_bytes(supervisor_archive())
    imports = "import sys; sys.path.insert(0, sys.argv[1]); import windlass.engines.kubernetes.supervisor.main"
    command = [sys.executable, "-I", "-S", "-c", imports, str(tmp_path / "windlass.zip")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_module_is_compiled_twice(tmp_path: Path) -> None:
    (tmp_path / "windlass.zip").write_bytes(supervisor_archive())
    imports = """
import sys
sys.path.insert(0, sys.argv[1])
import zip_importer
compiled = []
sys.addaudithook(lambda event, args: compiled.append(str(args[1])) if event == "compile" else None)
zip_importer.install()
import windlass.engines.kubernetes.supervisor.main
ours = [name for name in compiled if name.startswith(sys.argv[1])]
print(len(set(ours)), len(ours))
"""
    command = [sys.executable, "-I", "-S", "-c", imports, str(tmp_path / "windlass.zip")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    once, all_of_them = map(int, done.stdout.split())
    assert once > 100
    assert all_of_them == once


def test_supervisor_exits_on_sigterm_during_its_imports(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("__main__.py", SUPERVISOR_MAIN)
        file.write(IMPORTER, "zip_importer.py")
        file.writestr("windlass/__init__.py", "import time\nprint('imports', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-I", "-S", str(tmp_path / "packed.zip")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "imports\n"
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == AGAIN
