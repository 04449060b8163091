"""Files to upload are selected by the ignore files of a repository; credentials are refused unless permitted."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.helpers.deep import deep_tree

from windlass.code.selection import ExcludedEntries, Selection, refuse_credentials, select
from windlass.errors import UsageError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write(tmp_path / "home", {"keep": ""})


@pytest.fixture
def repo(tmp_path: Path, home: Path) -> Path:
    root = write(tmp_path / "repo", {"job/train.py": "", "job/data/a.bin": "", "other.py": ""})
    git(root, home, "init", "-q")
    return root


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def git(folder: Path, home: Path, *words: str) -> None:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    subprocess.run(["git", *identity, *words], cwd=folder, env=environ(home), check=True, capture_output=True)


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", **more}


def chosen(folder: Path, home: Path, **more: str) -> list[str]:
    return [file.name for file in select(folder, environ(home, **more)).files]


def checked(folder: Path, home: Path) -> Selection:
    found = select(folder, environ(home))
    refuse_credentials(found.files, folder)
    return found


# -- ignore files -----------------------------------------------------------------------------------------------------


def test_ignore_files_apply_up_to_the_root_of_the_repository(repo: Path, home: Path) -> None:
    write(repo, {".gitignore": "*.bin\n/job/old.py\n", "job/old.py": "", "../.gitignore": "train.py\n"})
    assert chosen(repo / "job", home) == ["train.py"]


def test_deeper_ignore_file_takes_precedence(repo: Path, home: Path) -> None:
    write(repo, {".gitignore": "*.bin\n", "job/.gitignore": "!*.bin\n"})
    assert "data/a.bin" in chosen(repo / "job", home)


def test_info_exclude_file_applies(repo: Path, home: Path) -> None:
    write(repo, {".git/info/exclude": "*.bin\n"})
    assert chosen(repo / "job", home) == ["train.py"]


def test_info_exclude_of_the_main_repository_applies_in_a_worktree(repo: Path, home: Path, tmp_path: Path) -> None:
    git(repo, home, "add", ".")
    git(repo, home, "commit", "-q", "-m", "x")
    git(repo, home, "worktree", "add", "-q", str(tmp_path / "tree"))
    write(repo, {".git/info/exclude": "*.bin\n"})
    assert chosen(tmp_path / "tree", home) == ["job/train.py", "other.py"]


@pytest.mark.parametrize("with_git", [True, False])
@pytest.mark.parametrize(
    ("config", "more"),
    [
        ({".config/git/ignore": "*.bin\n"}, {}),
        ({"xdg/git/ignore": "*.bin\n"}, {"XDG_CONFIG_HOME": "{home}/xdg"}),
        ({".gitconfig": '[core]\n\tpager = less\n\texcludesFile = "~/mine" ; all of it\n', "mine": "*.bin\n"}, {}),
        ({".config/git/config": "[core]\nexcludesfile=~/mine\n", "mine": "*.bin\n"}, {}),
        ({"config": "[core]\nexcludesfile=~/mine\n", "mine": "*.bin\n"}, {"GIT_CONFIG_GLOBAL": "{home}/config"}),
    ],
)
def test_users_global_ignore_file_applies(
    repo: Path, home: Path, config: dict[str, str], more: dict[str, str], *, with_git: bool
) -> None:
    write(home, config)
    added = {name: value.format(home=home) for name, value in more.items()}
    assert chosen(repo / "job", home, **added, **({} if with_git else {"PATH": ""})) == ["train.py"]


def test_global_ignore_file_from_an_included_git_config_applies(repo: Path, home: Path) -> None:
    write(home, {".gitconfig": "[include]\npath = work\n", "work": "[core]\nexcludesFile = ~/mine\n", "mine": "*.bin"})
    assert chosen(repo / "job", home) == ["train.py"]


def test_ignore_files_of_the_folder_apply_outside_a_repository(tmp_path: Path, home: Path) -> None:
    folder = write(tmp_path / "job", {".gitignore": "*.bin\n", "a.bin": "", "sub/.gitignore": "/b\n", "sub/b": ""})
    assert chosen(folder, home) == [".gitignore", "sub/.gitignore"]


def test_windlassignore_takes_precedence_from_the_root_of_the_repository_down(repo: Path, home: Path) -> None:
    write(repo, {".windlassignore": "other.py\n", "job/.gitignore": "*.bin\n", "job/.windlassignore": "!a.bin\n"})
    assert chosen(repo, home) == [
        ".windlassignore",
        "job/.gitignore",
        "job/.windlassignore",
        "job/data/a.bin",
        "job/train.py",
    ]
    write(repo, {".windlassignore": "train.py\n"})
    assert "train.py" not in chosen(repo / "job", home)


def test_tracked_but_ignored_file_is_excluded_and_the_plan_reports_it(repo: Path, home: Path) -> None:
    git(repo, home, "add", ".")
    write(repo, {"job/.gitignore": "# large\n*.bin\n"})
    found = select(repo / "job", environ(home))
    assert [file.name for file in found.files] == [".gitignore", "train.py"]
    assert found.counted() == (ExcludedEntries(".gitignore:2", "*.bin", 1),)


def test_folder_named_by_a_job_is_packed_although_its_repository_ignores_it(repo: Path, home: Path) -> None:
    write(repo, {".gitignore": "/job/\n"})
    assert chosen(repo / "job", home) == ["data/a.bin", "train.py"]


def test_linked_folder_uses_the_rules_of_its_own_repository(repo: Path, home: Path, tmp_path: Path) -> None:
    write(repo, {".gitignore": "*.bin\n"})
    (tmp_path / "link").symlink_to(repo / "job")
    assert chosen(tmp_path / "link", home) == ["train.py"]


def test_nested_repository_is_packed_without_history_by_its_own_rules(repo: Path, home: Path) -> None:
    write(repo, {"job/lib/x.py": "", "job/lib/x.log": "", "job/lib/y.tmp": "", "job/y.tmp": "", ".gitignore": "*.tmp"})
    git(repo / "job" / "lib", home, "init", "-q")
    write(repo, {"job/lib/.git/info/exclude": "*.log\n"})
    assert chosen(repo / "job", home) == ["data/a.bin", "lib/x.py", "lib/y.tmp", "train.py"]


def test_tracked_files_of_a_submodule_are_selected_although_the_outer_repository_ignores_their_names(
    repo: Path, home: Path, tmp_path: Path
) -> None:
    lib = write(tmp_path / "lib", {"data/__init__.py": "", "own.log": "", "top": ""})
    git(lib, home, "init", "-q")
    git(lib, home, "add", ".")
    git(lib, home, "commit", "-q", "-m", "x")
    git(repo, home, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(lib), "job/lib")
    write(repo, {".gitignore": "data/\n*.log\n", "job/data/__init__.py": ""})
    assert chosen(repo / "job", home) == ["lib/data/__init__.py", "lib/own.log", "lib/top", "train.py"]


def test_global_and_windlass_ignore_files_apply_in_a_nested_repository(repo: Path, home: Path) -> None:
    write(
        repo, {"job/lib/x.py": "", "job/lib/x.log": "", "job/lib/x.ckpt": "", "job/lib/sub/top": "", "job/lib/top": ""}
    )
    git(repo / "job" / "lib", home, "init", "-q")
    write(home, {".config/git/ignore": "*.log\n/top\n"})
    write(repo, {"job/.windlassignore": "*.ckpt\n/data/\n"})
    assert chosen(repo / "job", home) == [".windlassignore", "lib/sub/top", "lib/x.py", "train.py"]


def test_exclude_file_of_a_submodule_applies(repo: Path, home: Path) -> None:
    write(repo, {"job/lib/x.py": "", "job/lib/x.log": "", "job/lib/.git": "gitdir: ../../.git/modules/lib\n"})
    write(repo, {".git/modules/lib/info/exclude": "*.log\n", ".git/modules/lib/HEAD": "ref: refs/heads/main\n"})
    assert "lib/x.log" not in chosen(repo / "job", home)


def test_excluded_entries_are_counted_by_rule_and_folders_once(repo: Path, home: Path) -> None:
    write(repo, {"job/.gitignore": "*.log\ndata/\n", "job/a.log": "", "job/sub/b.log": "", "job/__pycache__/x": ""})
    assert select(repo / "job", environ(home)).counted() == (
        ExcludedEntries(".gitignore:1", "*.log", 2),
        ExcludedEntries(".gitignore:2", "data/", 1),
        ExcludedEntries("built-in rule", "__pycache__", 1),
    )


def test_folders_of_windlass_are_excluded_by_a_built_in_rule(repo: Path, home: Path, tmp_path: Path) -> None:
    write(repo, {"job/results/digits-1/model.pt": "", "job/sub/results/a.py": ""})
    (tmp_path / "link").symlink_to(repo / "job")
    found = select(repo / "job", environ(home), [str(tmp_path / "link" / "results"), str(repo / "job"), str(repo)])
    assert [file.name for file in found.files] == ["data/a.bin", "sub/results/a.py", "train.py"]
    assert found.counted() == (ExcludedEntries("built-in rule", "results", 1),)


def test_oversized_ignore_file_is_an_error(repo: Path, home: Path) -> None:
    (repo / "job" / ".gitignore").write_bytes(b"*\n" * (1 << 20))
    with pytest.raises(UsageError, match="larger than an ignore file"):
        chosen(repo / "job", home)


# -- credentials ------------------------------------------------------------------------------------------------------

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
KUBECONFIG = "apiVersion: v1\nkind: Config\nusers:\n- name: me\n  user:\n    token: abc\n"
HELD = {
    ".env": "A=1", ".env.production": "A=1", "deploy/prod.env": "A=1", "tls.pem": "x", "TLS.KEY": "x", "a.p12": "x",
    "a.pfx": "x", "id_rsa": "x", "keys/id_ed25519": "x", "deploy_key": KEY, ".netrc": "x", ".git-credentials": "x",
    ".pypirc": "x", ".npmrc": "//registry.example/:_authToken=npm_abc\n", "credentials": "x",
    "gcp/credentials.json": "{}", "project-1f2e.json": '{"type": "service_account", "private_key": "x"}',
    ".aws/config": "x", ".kube/config": "x", "kubeconfig": "x", "lab.yaml": KUBECONFIG, "lab": KUBECONFIG,
    "lab.conf": KUBECONFIG, ".docker/config.json": "{}",
    ".huggingface/token": "hf", "cache/huggingface/token": "hf", ".ssh/work": "x", "kaggle.json": "{}",
}  # fmt: skip
PUBLIC = {
    ".env.example": "A=", ".env.sample": "A=", ".env.template": "A=", "env.py": "", "id_rsa.pub": "ssh-rsa AAAA",
    "id_map.json": "{}", "keys.py": f'KEY = """{KEY}"""', ".npmrc": "save-exact=true\n//host/:_authToken=${TOKEN}\n",
    "tokenizer/token": "x", "config.json": "{}", "job.yaml": "name: digits\n", "credentials.py": "",
    "crd.yaml": "kind: Config\nspec:\n  tokens: 5\n", "service.json": '{"public_key": "x"}', ".docker/Dockerfile": "",
    "src/secrets.py": "", "monkey": "x", "data.keys": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_file_with_possible_credentials_is_refused(tmp_path: Path, home: Path, name: str) -> None:
    folder = write(tmp_path / "job", {"train.py": "", name: HELD[name]})
    with pytest.raises(UsageError, match=r"1 file in .* may hold credentials") as caught:
        checked(folder, home)
    assert caught.value.message.endswith(f": {name}")
    assert f".windlassignore: !/{name}" in caught.value.hint


def test_files_that_only_resemble_credentials_are_selected(tmp_path: Path, home: Path) -> None:
    assert [file.name for file in checked(write(tmp_path / "job", PUBLIC), home).files] == sorted(PUBLIC)


def test_link_is_checked_by_name_only(tmp_path: Path, home: Path) -> None:
    folder = write(tmp_path / "job", {"values": "A=1"})
    (folder / ".env").symlink_to("values")
    with pytest.raises(UsageError, match=r"credentials.*: \.env\n"):
        checked(folder, home)


def test_all_credential_files_are_listed_and_long_lists_are_shortened(tmp_path: Path, home: Path) -> None:
    folder = write(tmp_path / "job", {f"{number}.pem": "" for number in range(12)})
    with pytest.raises(UsageError, match=r"12 files .* 0\.pem, 1\.pem, .* and 4 more\n"):
        checked(folder, home)


@pytest.mark.parametrize("ignore_file", [".gitignore", ".windlassignore"])
def test_ignored_files_are_not_refused(tmp_path: Path, home: Path, ignore_file: str) -> None:
    folder = write(tmp_path / "job", {"train.py": "", ".env": "A=1", ignore_file: ".env\n"})
    assert [file.name for file in checked(folder, home).files] == [ignore_file, "train.py"]


def test_file_listed_in_windlassignore_is_selected(tmp_path: Path, home: Path) -> None:
    folder = write(tmp_path / "job", {"ca.pem": "", ".windlassignore": "!/ca.pem\n"})
    assert "ca.pem" in [file.name for file in checked(folder, home).files]


def test_gitignore_cannot_permit_credentials(tmp_path: Path, home: Path) -> None:
    folder = write(tmp_path / "job", {"ca.pem": "", ".gitignore": "!/ca.pem\n"})
    with pytest.raises(UsageError, match=r"ca\.pem"):
        checked(folder, home)


def test_git_is_not_needed() -> None:
    assert shutil.which("git", path="") is None  # precondition of the tests without PATH


@pytest.mark.slow
def test_too_deeply_nested_folders_are_refused_with_a_message(tmp_path: Path) -> None:
    with deep_tree(tmp_path), pytest.raises(UsageError, match="nested too deeply"):
        select(tmp_path, {})


def test_cache_of_a_home_in_the_folder_is_excluded_but_user_data_is_selected(tmp_path: Path, home: Path) -> None:
    record = {"record.db": "", "runs/a-1/plan": ""}
    ours = {
        "data/sets/1/files/a.bin": "",
        "data/sources/1.json": "",
        "transfers/1/journal": "",
        "sagemaker-local/1": "",
    }
    write(tmp_path / "ours", record | ours | {"train.py": ""})
    write(tmp_path / "users", record | {"data/a.bin": "", "train.py": ""})
    write(tmp_path / "no-home", {"data/sets/1/a.bin": "", "transfers/a": ""})
    assert chosen(tmp_path / "ours", home) == ["train.py"]
    assert chosen(tmp_path / "users", home) == ["data/a.bin", "train.py"]
    assert chosen(tmp_path / "no-home", home) == ["data/sets/1/a.bin", "transfers/a"]
