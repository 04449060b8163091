"""Who may speak to the API server of a bed, and the kubeconfig that has a context for each."""

from __future__ import annotations

import json

from tests.cluster.bed.api import Api
from tests.cluster.bed.layout import Layout

ADMIN = "admin"
LIMITED = "limited"
"""Has the rights that a test gives it, and no other."""
NOBODY = "nobody"
"""Is known and may do nothing."""
EXPIRED = "expired"
"""Shows a token that the server does not know: what an expired login looks like."""
KNOWN = (ADMIN, LIMITED, NOBODY)


def token(user: str) -> str:
    return f"{user}-token"


def token_file() -> str:
    """The server's table: token, user, user id, groups."""
    groups = {ADMIN: ',"system:masters"'}
    return "".join(f"{token(user)},{user},{user}{groups.get(user, '')}\n" for user in KNOWN)


def api(layout: Layout, user: str = ADMIN) -> Api:
    return Api(layout.server, str(layout.pki / "ca.crt"), token(user))


def context(user: str) -> str:
    return f"bed-{user}"


def kubeconfig(layout: Layout) -> str:
    """All users of one bed; the admin is the current one. JSON is YAML too."""
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
