"""Certificates of services: what they contain, how long they are valid, and what servers and clients read of them."""

from __future__ import annotations

import ipaddress
import ssl
import sys
from pathlib import Path

import pytest

from windlass.errors import MissingExtra, StoreError
from windlass.services.certificates import Credentials, fingerprint, new_credentials, read

NOW = 1_800_000_000.0
HOUR = 3600.0


def test_certificate_names_the_service_and_outlives_it() -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    made = new_credentials("board-7", NOW, NOW + HOUR)
    found = x509.load_pem_x509_certificate(made.certificate)
    assert found.not_valid_before_utc.timestamp() < NOW - HOUR
    assert NOW + 2 * HOUR < found.not_valid_after_utc.timestamp() < NOW + 48 * HOUR
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["board-7", "localhost"]
    assert ipaddress.ip_address("127.0.0.1") in names.get_values_for_type(x509.IPAddress)
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_certificate_of_a_service_without_an_end_is_valid_for_years() -> None:
    from cryptography import x509

    found = x509.load_pem_x509_certificate(new_credentials("kept", NOW, None).certificate)
    assert found.not_valid_after_utc.timestamp() > NOW + 9 * 365 * 24 * HOUR


def test_each_service_gets_credentials_of_its_own() -> None:
    one, other = new_credentials("a", NOW, None), new_credentials("a", NOW, None)
    assert fingerprint(one.certificate) != fingerprint(other.certificate)
    assert one.key != other.key
    assert one.token != other.token
    assert one.token not in repr(one)
    assert "PRIVATE" not in repr(one)


def written(folder: Path) -> Credentials:
    """Writes new credentials to a folder."""
    made = new_credentials("board", NOW, None)
    for name, data in made.files().items():
        (folder / name).write_bytes(data)
    return made


def test_folder_is_read_back(tmp_path: Path) -> None:
    assert written(tmp_path) == read(tmp_path)


@pytest.mark.parametrize("damage", ["tls.crt", "token"])
def test_incomplete_folder_is_an_error(tmp_path: Path, damage: str) -> None:
    written(tmp_path)
    (tmp_path / damage).write_bytes(b"\xff")
    with pytest.raises(StoreError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / damage).unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        read(tmp_path)


def test_servers_can_use_the_files(tmp_path: Path) -> None:
    written(tmp_path)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_missing_cryptography_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra) as error:
        new_credentials("board", NOW, None)
    assert error.value.hint.startswith("pip install 'cryptography")
