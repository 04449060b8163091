"""Makes the certificate and the token of one service, and reads them from its folder.

Each service has its own self-signed certificate. Clients accept only this certificate, which they compare byte by byte.
Container images never contain credentials.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from windlass.errors import MissingExtra, StoreError

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
TOKEN: Final = "token"
"""Names of the files in the folder of a service, and of the entries of its Secret in a cluster."""
FOLDER_VARIABLE: Final = "WINDLASS_SERVICE_DIR"
"""Environment variable of a service's process with the path of its folder."""
INSTALL: Final = "pip install 'cryptography>=46'"
MARGIN_SECONDS: Final = 24 * 3600.0
"""A certificate is valid from this many seconds before now until as many after the service's end, because clocks of
machines differ."""
KEPT_SECONDS: Final = 10 * 365 * 24 * 3600.0
"""Validity in seconds of the certificate of a service without an end."""
TOKEN_BYTES: Final = 32
LOOPBACK: Final = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))


@dataclass(frozen=True, slots=True)
class Credentials:
    """Certificate, key and token of one service."""

    certificate: bytes
    """Self-signed certificate, in PEM."""
    key: bytes = field(repr=False)
    """Private key of the certificate, in PEM without a password."""
    token: str = field(repr=False)
    """Secret that each request must contain."""

    def files(self) -> dict[str, bytes]:
        """Returns the contents of the service's folder, by file name: the data of its Secret in a cluster."""
        return {CERTIFICATE: self.certificate, KEY: self.key, TOKEN: self.token.encode()}


def new_credentials(name: str, now: float, ends_at: float | None) -> Credentials:
    """Makes a self-signed ECDSA P-256 certificate and a token for the service `name`.

    `now` is the current time and `ends_at` the service's end, in Unix seconds; a service without an end gets a
    certificate for ten years. The certificate names the service and the loopback addresses. Raises MissingExtra if
    cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise MissingExtra("services need cryptography for their certificates", INSTALL) from error
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    names = [*map(x509.DNSName, (name, "localhost")), *map(x509.IPAddress, LOOPBACK)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_date(now - MARGIN_SECONDS))
        .not_valid_after(_date((now + KEPT_SECONDS if ends_at is None else ends_at) + MARGIN_SECONDS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Credentials(
        certificate.public_bytes(serialization.Encoding.PEM), encoded, secrets.token_urlsafe(TOKEN_BYTES)
    )


def _date(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def fingerprint(certificate: bytes) -> str:
    """Returns the SHA-256 digest of a certificate in PEM, in hexadecimal. Raises ValueError if it is not PEM."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))).hexdigest()


def read(folder: Path) -> Credentials:
    """Returns the credentials in the folder of a service. Raises StoreError if they cannot be read or are
    incomplete.
    """
    try:
        found = [(folder / name).read_bytes() for name in (CERTIFICATE, KEY, TOKEN)]
        certificate, key, token = found
        fingerprint(certificate)
        return Credentials(certificate, key, token.decode("ascii").strip())
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the credentials of the service in {folder} cannot be read ({error})",
            "close the service, and start it again",
        ) from error
