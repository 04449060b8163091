"""`data copy`, `data verify` and `data ls` of folders, and their errors without the extra for stores."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import Call, loaded_by
from tests.cli.test_json import hold

from windlass.cli.data_progress import progress_line
from windlass.storage import manifest
from windlass.storage.progress import Progress

STORES = ("obstore", "boto3", "botocore")
WITHOUT = (
    "import sys; sys.modules.update(dict.fromkeys(('obstore', 'boto3'))); from windlass.cli.main import main; main()"
)


@pytest.fixture
def source(home: Path) -> Path:
    path = Path("source")
    (path / "deep").mkdir(parents=True)
    (path / "a.bin").write_bytes(b"a" * 1000)
    (path / "deep/b.bin").write_bytes(b"b" * 2000)
    return path


def test_copy_reports_its_work_and_a_second_copy_has_nothing_to_do(windlass: Call, source: Path) -> None:
    first = windlass("data", "copy", "source", "to/")
    assert first.code == 0, first.err
    assert first.out.startswith("2 files copied, 2.9 KiB in ")
    assert f"{Path('to').resolve()}: 2 files, 2.9 KiB, set:" in first.out
    assert (first.err, Path("to/deep/b.bin").read_bytes()) == ("", b"b" * 2000)
    assert windlass("data", "copy", "source", "to").out.startswith("nothing to copy; 2 files unchanged\n")


def test_refused_files_are_named_and_the_exit_code_is_1(windlass: Call, source: Path) -> None:
    (source / "out").symlink_to("/etc/hostname")
    done = windlass("data", "copy", "source", "to")
    assert done.code == 1
    assert "1 file not copied:\n  out  it is a link to a place outside of the folder\n" in done.out
    data = windlass("data", "copy", "source", "to", "-o", "json").json
    hold("data-copy", data)
    assert [one["name"] for one in data["refused"]] == ["out"]
    assert (data["copied_files"], data["unchanged_files"]) == (0, 2)


def test_verify_and_ls_show_the_data_set(windlass: Call, source: Path) -> None:
    bare = windlass("data", "verify", "source")
    assert (bare.code, "has no manifest" in bare.err, "windlass data copy writes one" in bare.err) == (1, True, True)
    windlass("data", "copy", "source", "to")
    good = windlass("data", "verify", "to", "-o", "json")
    hold("data-verify", good.json)
    assert (good.code, good.json["ok"], good.json["files"]) == (0, True, 2)
    assert ": verified, 2 files, 2.9 KiB, set:" in windlass("data", "verify", "to").out
    Path("to/a.bin").write_bytes(b"A" * 1000)
    Path("to/more").touch()
    bad = windlass("data", "verify", "to")
    assert bad.code == 1
    assert "a.bin" in bad.out
    assert "1 other file beside the set, such as more" in bad.out
    listed = windlass("data", "ls", "to", "-o", "json").json
    hold("data-ls", listed)
    assert [(one["name"], one["bytes"]) for one in listed["files"]] == [
        ("a.bin", 1000),
        ("deep/b.bin", 2000),
        ("more", 0),
    ]
    assert (listed["digest"], listed["files"][0]["digest"], listed["files"][2]["digest"]) == ("", "", "")
    assert "): 1 not in it, 1 written since\n" in windlass("data", "ls", "to").out
    Path("to/deep/b.bin").unlink()
    assert "): 1 missing, 1 not in it, 1 written since\n" in windlass("data", "ls", "to").out
    Path("to", manifest.IN_FOLDER).write_text("{}\n")
    spoiled = windlass("data", "ls", "to")
    assert spoiled.code == 0
    assert "2 files, 1000 B, its manifest is damaged: " in spoiled.out


def damage(path: Path) -> None:
    """Changes a byte of a file, but neither its size nor its time."""
    kept, data = path.stat(), path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes([data[0] ^ 1]))
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))


def test_ls_shows_the_digest_of_the_data_set(windlass: Call, source: Path) -> None:
    digest = windlass("data", "copy", "source", "to", "-o", "json").json["digest"]
    assert f"2 files, 2.9 KiB, {digest}\n" in windlass("data", "ls", "to").out


def test_copy_fetches_files_that_verify_found_damaged(windlass: Call, source: Path) -> None:
    digest = windlass("data", "copy", "source", "to", "-o", "json").json["digest"]
    damage(Path("to/a.bin"))
    assert windlass("data", "copy", "source", "to").out.startswith("nothing to copy"), "nothing has read it"
    assert windlass("data", "verify", "to").code == 1
    assert windlass("data", "verify", "to").code == 1, "until it is copied again"
    assert "1 written since" in windlass("data", "ls", "to").out
    again = windlass("data", "copy", "source", "to", "-o", "json").json
    assert (again["copied_files"], again["digest"]) == (1, digest)
    assert windlass("data", "verify", "to").code == 0
    assert windlass("data", "copy", "source", "to").out.startswith("nothing to copy")
    assert [one.name for one in Path("to").iterdir() if one.name.startswith(".")] == [manifest.IN_FOLDER]


def test_source_found_damaged_by_verify_is_not_copied(windlass: Call, source: Path) -> None:
    windlass("data", "copy", "source", "to")
    damage(Path("to/a.bin"))
    windlass("data", "verify", "to")
    done = windlass("data", "copy", "to", "other", "-o", "json")
    assert (done.code, [one["name"] for one in done.json["refused"]]) == (1, ["a.bin"])
    assert not Path("other/a.bin").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("source/a.bin",), {"a.bin"}),
        (("source/link.bin",), {"link.bin"}),
        (("source/*.bin",), {"a.bin"}),
        (("source/**/*.bin",), {"a.bin", "deep/b.bin"}),
        (("source/d*",), {"deep/b.bin"}),
        (("source/[ab].bin",), {"a.bin"}),
        (("source", "--include", "b.bin"), {"deep/b.bin"}),
        (("source", "--include", "*.bin", "--exclude", "deep"), {"a.bin"}),
        (("source", "--exclude", "deep/*.bin"), {"a.bin"}),
        (("source/*", "--exclude", "a*"), {"deep/b.bin"}),
    ],
)
def test_include_copies_part_of_a_source(windlass: Call, source: Path, words: tuple[str, ...], names: set[str]) -> None:
    if words[0].endswith("link.bin"):
        Path("source/link.bin").symlink_to("/etc/hostname")
    done = windlass("data", "copy", words[0], "to", *words[1:], "-o", "json")
    assert (done.code, done.json["copied_files"]) == (0, len(names)), done.err
    listed = windlass("data", "ls", "to", "-o", "json").json
    assert {one["name"] for one in listed["files"]} == names


def test_cluster_file_may_be_given_by_absolute_path_home_path_and_url(
    windlass: Call, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(source.resolve()))
    for number, name in enumerate(
        (f"{source.resolve()}/a.bin", f"file://{source.resolve()}/a.bin", "~/a.bin", "~/a.*")
    ):
        done = windlass("data", "copy", name, f"to{number}", "-o", "json")
        assert (done.code, Path(f"to{number}/a.bin").read_bytes()) == (0, b"a" * 1000), done.err


def test_partial_copy_keeps_other_files_in_the_manifest(windlass: Call, source: Path) -> None:
    windlass("data", "copy", "source", "to")
    Path("source/a.bin").write_bytes(b"A" * 1000)
    done = windlass("data", "copy", "source/a.bin", "to", "-o", "json").json
    assert (done["copied_files"], done["files"]) == (1, 2)
    assert windlass("data", "verify", "to").code == 0


def test_pattern_may_be_copied_below_its_folder_if_nothing_there_matches(windlass: Call, source: Path) -> None:
    os.chdir(source)
    assert windlass("data", "copy", "*.bin", "to").code == 0
    assert windlass("data", "copy", "*/*.bin", "to").code == 2
    assert windlass("data", "copy", "**/*.bin", "to").code == 2


def test_patterns_that_select_nothing_are_an_error(windlass: Call, source: Path) -> None:
    for words in (("source/*.jpg",), ("source", "--include", "*.jpg"), ("source", "--exclude", "*")):
        done = windlass("data", "copy", words[0], "to", *words[1:])
        assert (done.code, "none of its 2 files is selected" in done.err) == (1, True)


def test_file_that_is_not_selected_is_an_error_without_a_plural(windlass: Call, source: Path) -> None:
    done = windlass("data", "copy", "source/a.bin", "to", "--exclude", "*.bin")
    assert (done.code, "its only file is not selected" in done.err) == (1, True)


def test_copy_of_refused_files_alone_leaves_no_empty_set(windlass: Call) -> None:
    Path("links").mkdir()
    Path("links/passwd").symlink_to("/etc/passwd")
    done = windlass("data", "copy", "links", "to")
    assert (done.code, done.out.startswith("nothing copied\n1 file not copied:\n"), "set:" in done.out) == (
        1,
        True,
        False,
    )
    assert windlass("data", "verify", "to").code == 1, "an empty set would be verified"


def test_refused_file_is_named_once(windlass: Call, source: Path) -> None:
    done = windlass("data", "copy", "source/a.bin", "to", "--sha256", "0" * 64)
    assert "\n  a.bin  damaged at its source: it should have sha256:0000" in done.out


def test_a_dry_run_names_what_would_be_copied_and_writes_nothing(windlass: Call, source: Path) -> None:
    Path("source/.cache").symlink_to("/etc")
    done = windlass("data", "copy", "source", "to", "--dry-run", "-o", "json")
    hold("data-copy", done.json)
    assert (done.code, [one["name"] for one in done.json["files"]]) == (1, ["a.bin", "deep/b.bin"])
    assert [one["name"] for one in done.json["refused"]] == [".cache"]
    assert not Path("to").exists()
    Path("source/.cache").unlink()
    windlass("data", "copy", "source/a.bin", "to")
    before = sorted((one, one.lstat().st_mtime_ns) for one in Path("to").rglob("*"))
    shown = windlass("data", "copy", "source", "to", "--dry-run")
    assert shown.code == 0
    assert "2.0 KiB  deep/b.bin" in shown.out
    assert shown.out.endswith("1 file, 2.0 KiB; 1 file unchanged\n")
    assert sorted((one, one.lstat().st_mtime_ns) for one in Path("to").rglob("*")) == before


def test_single_file_is_compared_with_the_given_sha256(windlass: Call, source: Path) -> None:
    digest = hashlib.sha256(b"a" * 1000).hexdigest()
    assert windlass("data", "copy", "source/a.bin", "to", "--sha256", digest.upper()).code == 0
    wrong = windlass("data", "copy", "source/a.bin", "to", "--sha256", "0" * 64)
    assert (wrong.code, digest in wrong.out) == (1, True)
    large = os.urandom(20_000_000)
    Path("source/large").write_bytes(large)
    for stated, number in ((hashlib.sha256(large).hexdigest(), 1), ("0" * 64, 0)):
        done = windlass("data", "copy", "source/large", "to", "--sha256", stated, "-o", "json").json
        assert (done["copied_files"], len(done["refused"])) == (number, 1 - number)
    for words in (("source", "0" * 64), ("source/a.bin", "0" * 63)):
        assert windlass("data", "copy", words[0], "to", "--sha256", words[1]).code == 2


@pytest.mark.parametrize("end", ["source", "to"])
def test_checksum_option_compares_contents(windlass: Call, source: Path, end: str) -> None:
    windlass("data", "copy", "source", "to")
    assert windlass("data", "copy", "source", "to", "--checksum").out.startswith("nothing to copy; 2 files unchanged")
    damage(Path(end, "deep/b.bin"))
    assert windlass("data", "copy", "source", "to").out.startswith("nothing to copy")
    done = windlass("data", "copy", "source", "to", "--checksum", "-o", "json").json
    assert (done["copied_files"], done["unchanged_files"]) == (1, 1)
    assert Path("to/deep/b.bin").read_bytes() == Path("source/deep/b.bin").read_bytes()
    assert windlass("data", "verify", "to").code == 0


def test_damaged_data_set_in_the_cache_is_found_and_fetched_again(windlass: Call, source: Path) -> None:
    staged = windlass("data", "stage", "source", "-o", "json").json
    file = Path(staged["folder"], "a.bin")
    for named in (staged["digest"], staged["digest"][:12], staged["folder"]):
        assert windlass("data", "verify", named, "-o", "json").json["ok"]
    damage(file)
    for named in (staged["folder"], staged["digest"]):
        bad = windlass("data", "verify", named)
        assert (bad.code, "a.bin" in bad.out, "deep/b.bin" in bad.out) == (1, True, False)
    again = windlass("data", "stage", "source", "-o", "json").json
    assert (again["fetched_bytes"], again["digest"]) == (1000, staged["digest"])
    assert file.read_bytes() == b"a" * 1000
    assert windlass("data", "verify", staged["digest"]).code == 0
    unknown = windlass("data", "verify", "set:000000")
    assert (unknown.code, "no set of the cache" in unknown.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ftp://host/x", "to"), "ftp:// is no known kind of store"),
        (("s3://", "to"), "the bucket is missing"),
        (("nowhere", "to"), "there is no such folder"),
        (("source", "source/a.bin/"), "a.bin is no folder"),
        (("source", "pipe"), "pipe is no folder"),
        (("pipe", "to"), "pipe: it is no folder and no file"),
        (("loop", "to"), "loop: it is no folder and no file"),
        (("source/a.bin", "source"), "overlap"),
        (("source/a.bin", "to/a.bin"), "the destination is a folder, and the file keeps its name a.bin"),
        (("-", "to"), "data copy does not read standard input"),
        (("source", "-"), "data copy does not write to standard output"),
        (("source", "https://host/x"), "https://host/x is read only"),
        (("https://host/*.tar", "to"), "an HTTP server does not list its files"),
        (("https://host/", "to"), "names no file"),
        (("s3://b*/x", "to"), "the name of a bucket is no pattern"),
        (("~no-such-user/x", "to"), "~no-such-user/x: there is no such folder"),
        (("source", "source/deep"), "overlap"),
        (("s3://bucket/../x", "to"), "no . and no .."),
        (("file://source", "to"), "file://source has no path from the root"),
        (("file:///no-such-folder#1?2", "to"), "/no-such-folder#1?2: there is no such folder"),
    ],
)
def test_invalid_copy_arguments_are_refused_with_2(
    windlass: Call, source: Path, words: tuple[str, str], said: str
) -> None:
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    done = windlass("data", "copy", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert not Path("to").exists()


@pytest.mark.parametrize(
    "words", [("copy", "nowhere", "to"), ("verify", "nowhere"), ("ls", "nowhere"), ("stage", "nowhere")]
)
def test_missing_folder_is_a_usage_error_of_each_command(windlass: Call, home: Path, words: tuple[str, ...]) -> None:
    done = windlass("data", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {Path('nowhere').resolve()}: there is no such folder")


def test_incomplete_data_set_in_the_cache_is_listed_and_removed(windlass: Call, source: Path) -> None:
    staged = windlass("data", "stage", "source", "-o", "json").json
    hold("data-stage", staged)
    assert (staged["files"], staged["sources"]) == (2, [str(source.absolute())])
    folder = Path(staged["folder"]).parent
    [lock] = (folder.parent.parent / "staging").glob("*.lock")
    assert windlass("data", "ls").out.splitlines()[1].split()[:2] == [staged["digest"][:16], "2"]
    assert windlass("data", "rm", "source").out == f"removed {staged['digest']}: 2 files, 2.9 KiB\n"
    windlass("data", "stage", "source")
    folder.rename(lock.with_suffix(""))  # as left by a kill before the data set is complete
    hold("data-ls", listed := windlass("data", "ls", "-o", "json").json)
    assert [(one["digest"], one["files"]) for one in listed["sets"]] == [("", 2)]
    assert windlass("data", "ls").out.splitlines()[1].startswith("in part")
    assert windlass("data", "rm", "source").out.startswith("removed what was fetched of source: 2 files, ")
    assert windlass("data", "ls").out == "cache: 0 sets, 0 B\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ls", "--claim", "sets"), "--claim names one of a target: add --on TARGET"),
        (("rm", "set:5f", "--claim", "sets"), "--claim names one of a target: add --on TARGET"),
        (("ls", "to", "--on", "lab"), "--on lists sets, and not the files of one: leave out ADDRESS"),
        (
            ("stage", "to", "--claim", "sets"),
            "--claim, --secret and --service-account are of a target",
        ),
        (("stage", "s3://b/d", "--on", "local"), "data stage --on is not supported by engine local"),
        (("ls", "--on", "local"), "data ls --on is not supported by engine local"),
    ],
)
def test_data_sets_of_a_claim_need_a_target(windlass: Call, words: tuple[str, ...], said: str) -> None:
    Path("targets.yaml").write_text("lab: {kind: kubernetes, context: lab}")
    done = windlass("data", *words)
    assert (done.code, done.out) == (2, ""), done.err
    assert said in done.err


@pytest.mark.slow
def test_missing_extra_is_named_for_stores_other_than_s3(environ: Mapping[str, str], source: Path) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT, "data", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    for words in (("copy", "source", "az://bucket/set"), ("copy", "gs://bucket/set", "to"), ("ls", "gs://bucket/set")):
        done = call(*words)
        assert done.returncode == 1
        assert ":// needs the extra `data`\n  pip install 'obstore<0.13'" in done.stderr
        assert len(done.stderr.splitlines()) == 2
    of_s3 = call("ls", "s3://bucket/set")
    assert (of_s3.returncode, "no credentials for AWS were found: set AWS_ACCESS_KEY_ID" in of_s3.stderr) == (1, True)
    assert call("copy", "source", "to").returncode == 0
    assert call("verify", "to").returncode == 0


@pytest.mark.parametrize("words", [("data", "--help"), ("data", "copy", "--help"), ("data", "copy", "source", "to")])
def test_no_library_of_stores_is_imported_for_folders(
    environ: Mapping[str, str], source: Path, words: tuple[str, ...]
) -> None:
    assert not loaded_by(*words, environ=environ).intersection(STORES)


def test_a_line_of_progress_has_rate_and_time_left() -> None:
    progress = Progress()
    assert progress_line("copy", progress, 1.0) == "copy: listing"
    progress.is_listing, progress.num_files, progress.num_bytes = False, 4, 4 << 20
    assert progress_line("copy", progress, 1.0) == "copy: 0 of 4 files, 0 B of 4.0 MiB"
    progress.files_done, progress.bytes_done, progress.bytes_moved = 3, 3 << 20, 2 << 20
    assert progress_line("copy", progress, 2.0) == "copy: 3 of 4 files, 3.0 MiB of 4.0 MiB, 1.0 MiB/s, 1.0s left"


def test_completion_offers_store_schemes_and_paths(environ: Mapping[str, str], source: Path) -> None:
    asked = {**environ, "_WINDLASS_COMPLETE": "bash_complete", "COMP_WORDS": "windlass data copy s", "COMP_CWORD": "3"}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'windlass'; from windlass.cli.main import main; main()"]
    done = subprocess.run(command, env=asked, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["plain,s3://", "file,s"]
