"""Files of other projects are those of their packages, and each has its licence beside it."""

import hashlib
import re
from pathlib import Path

import windlass

STATIC = Path(windlass.__file__).parent / "web/static"
NOTICE = (STATIC / "NOTICE.txt").read_text()
SUMS = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", NOTICE, re.M)}


def test_each_file_of_another_project_has_the_digest_in_the_notice() -> None:
    names = [path.name for path in STATIC.iterdir() if ".min." in path.name]
    assert sorted(names) == sorted(name for name in SUMS if ".min." in name)
    for name in names:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == SUMS[name], name


def test_each_file_of_another_project_has_its_licence_beside_it() -> None:
    rows = re.findall(r"^(\S+\.min\.\w+) .* (\S+-LICENSE\.txt)$", NOTICE, re.M)
    assert len(rows) == 3
    for _, licence in rows:
        assert (STATIC / licence).stat().st_size > 500
