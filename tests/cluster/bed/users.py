"""Users of a test cluster's API server, and the kubeconfig with a context for each."""

from __future__ import annotations

import json

from tests.cluster.bed.api import Api
from tests.cluster.bed.layout import Layout

ADMIN = "admin"
LIMITED = "limited"
"""User with exactly the permissions that a test grants."""
NOBODY = "nobody"
"""User without any permission."""
EXPIRED = "expired"
"""User with a token that the server does not know, like an expired login."""
KNOWN = (ADMIN, LIMITED, NOBODY)


def token(user: str) -> str:
    return f"{user}-token"


def token_file() -> str:
    """Returns the server's token file: token, user, user id, groups."""
    groups = {ADMIN: ',"system:masters"'}
    return "".join(f"{token(user)},{user},{user}{groups.get(user, '')}\n" for user in KNOWN)


def api(layout: Layout, user: str = ADMIN) -> Api:
    return Api(layout.server, str(layout.pki / "ca.crt"), token(user))


def context(user: str) -> str:
    return f"bed-{user}"


def kubeconfig(layout: Layout) -> str:
    """Returns the kubeconfig with all users of one test cluster; the admin is the current one. JSON is valid YAML."""
    users = (*KNOWN, EXPIRED)
    authority = str(layout.pki / "ca.crt")
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context(ADMIN),
        "clusters": [{"name": "bed", "cluster": {"server": layout.server, "certificate-authority": authority}}],
        "users": [{"name": user, "user": {"token": token(user)}} for user in users],
        "contexts": [{"name": context(user), "context": {"cluster": "bed", "user": user}} for user in users],
    }
    return json.dumps(document, indent=1) + "\n"
