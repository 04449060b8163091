"""Creates the keys and certificates of a test cluster: one CA, and one certificate for all servers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.bed import operators
from tests.cluster.bed.layout import API_ADDRESS, MOST_BEDS

WEBHOOKS = tuple(dict.fromkeys(each.host for each in operators.EVERY if each.service))
"""Host names of the Services through which the API server calls operators' webhooks."""
AUTHORITY_NAMES = tuple(dict.fromkeys(each.authority for each in operators.EVERY if each.authority))
"""CA names: an operator that rotates certificates accepts an existing CA only if it has the operator's name for it."""
LIFE_DAYS = 3650


def make(folder: Path) -> None:
    """Writes ca.crt, ca.key, tls.crt, tls.key, sa.key and sa.pub into `folder`."""
    folder.mkdir(parents=True)
    _authority(folder)
    _server(folder)
    _openssl(folder, "genrsa", "-traditional", "-out", "sa.key", "2048")
    _openssl(folder, "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")


def _authority(folder: Path) -> None:
    names = ",".join(f"DNS:{name}" for name in AUTHORITY_NAMES)
    _openssl(folder, "genrsa", "-traditional", "-out", "ca.key", "2048")
    _openssl(
        folder, "req", "-x509", "-new", "-key", "ca.key", "-out", "ca.crt", "-subj", "/CN=bed", "-days", str(LIFE_DAYS),
        "-addext", f"subjectAltName={names}", "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
    )  # fmt: skip


def _server(folder: Path) -> None:
    """Creates a certificate for the API server of any test cluster, with all its addresses, and for every webhook."""
    addresses = [API_ADDRESS, "127.0.0.1", *(f"10.200.{index}.2" for index in range(MOST_BEDS))]
    hosts = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", *WEBHOOKS]
    names = ",".join([*(f"DNS:{host}" for host in hosts), *(f"IP:{address}" for address in addresses)])
    (folder / "tls.ext").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth\n")
    _openssl(folder, "genrsa", "-traditional", "-out", "tls.key", "2048")
    _openssl(folder, "req", "-new", "-key", "tls.key", "-subj", "/CN=bed", "-out", "tls.csr")
    _openssl(
        folder, "x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", str(LIFE_DAYS), "-extfile", "tls.ext", "-out", "tls.crt",
    )  # fmt: skip


def _openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)
