"""Finds secrets of well-known forms in text, so that no message shows them. Pure."""

from __future__ import annotations

import re

SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA)[A-Z0-9]{16}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|github_pat_\w{30,}|xox[abprs]-[-\w]{10,}|sk-(?=[-\w]*\d)[-\w]{32,}|glpat-[-\w]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----)"
)
URL_PASSWORD = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/@:\s]*:(?P<password>[^/@\s]+)@")


def has_secret(text: str) -> bool:
    """Whether a command or a script contains a token of a well-known form, or an address with a password."""
    words = re.split(r"[\s=\"']+", text)
    logins = filter(None, map(URL_PASSWORD.match, words))
    # A password with `$` is a shell variable, not a secret.
    return SECRET_VALUE.search(text) is not None or any("$" not in one["password"] for one in logins)
