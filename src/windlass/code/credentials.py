"""Detects files with credentials by name and by their first bytes."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Final

NAMES: Final = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk",
    ".netrc", "_netrc", ".git-credentials", ".pgpass", ".my.cnf", ".htpasswd", ".boto", ".s3cfg", ".dockercfg",
    ".vault-token", ".pypirc", "credentials", "credentials.json", "credentials.csv", "*accesskeys.csv",
    "application_default_credentials.json", "client_secret*.json", "kaggle.json",
    "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml",
    "kubeconfig", "kubeconfig.yaml", "kubeconfig.yml", "*.kubeconfig",
)  # fmt: skip
"""Names of files with credentials, in lower case."""
EXAMPLES: Final = (
    ".env.example",
    ".env.sample",
    ".env.template",
    ".env.dist",
    "example.env",
    "sample.env",
    "template.env",
)
"""Names of example files, which are meant to be shared."""
PLACES: Final = (
    ".aws/*",
    ".azure/*",
    ".gnupg/*",
    ".kube/*",
    ".ssh/*",
    ".config/gcloud/*",
    ".docker/config.json",
    ".huggingface/token",
    "huggingface/token",
    "huggingface/stored_tokens",
)
"""Patterns for the last part of paths of files with credentials, in lower case."""
PUBLIC: Final = (".ssh/*.pub", ".ssh/known_hosts", ".ssh/config")
HEAD_BYTES: Final = 64
MAX_BYTES: Final = 256 << 10
"""Size in bytes above which only the first `HEAD_BYTES` of a file are read, because large files are data."""
_PRIVATE_KEY: Final = re.compile(rb"\s*-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY")
_CONTENTS: Final = (
    (re.compile(r".*\.json"), (re.compile(rb'"private_key"\s*:'),)),
    (re.compile(r"\.npmrc"), (re.compile(rb"^[^#;\n]*_(?:auth|authToken|password)\s*=\s*[^$\s]", re.MULTILINE),)),
    (
        re.compile(r"[^.]+|.*\.(?:ya?ml|conf|config)"),
        (
            re.compile(rb"^kind:\s*Config\b", re.MULTILINE),
            re.compile(rb"^[\s-]+(?:client-key-data|token|password):\s*\S", re.MULTILINE),
        ),
    ),
)
"""For files with ambiguous names: a pattern of the name, and patterns that must all match in the content. The entries
detect service accounts, npm tokens and kubeconfig files."""


def is_credential(name: str, path: Path, num_bytes: int) -> bool:
    """Whether a file contains credentials, judged by its path in the folder, `name`, and by its first bytes.

    For a link, only the name is checked; a file that no longer exists has none. Raises OSError for a file that cannot
    be read.
    """
    lower = name.lower()
    last = lower.rpartition("/")[2]
    if last in EXAMPLES or _any(f"/{lower}", PUBLIC):
        return False
    if any(fnmatch.fnmatchcase(last, pattern) for pattern in NAMES) or _any(f"/{lower}", PLACES):
        return True
    return not path.is_symlink() and _has_credential_content(last, path, num_bytes)


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, f"*/{pattern}") for pattern in patterns)


def _has_credential_content(last: str, path: Path, num_bytes: int) -> bool:
    kinds = [contents for name, contents in _CONTENTS if name.fullmatch(last)]
    try:
        with path.open("rb") as file:
            head = file.read(MAX_BYTES if kinds and num_bytes <= MAX_BYTES else HEAD_BYTES)
    except FileNotFoundError:
        return False
    if _PRIVATE_KEY.match(head):
        return True
    return any(all(content.search(head) for content in contents) for contents in kinds)
