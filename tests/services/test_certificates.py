"""Certificates of services: what they contain, how long they are valid, and who can read their files."""

from __future__ import annotations

import ipaddress
import ssl
import stat
import sys
from pathlib import Path

import pytest

from windlass.errors import MissingExtra, StoreError
from windlass.services.certificates import fingerprint, new_credentials, read, write

NOW = 1_800_000_000.0
HOUR = 3600.0


def test_certificate_names_the_service_and_outlives_it() -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    made = new_credentials("board-7", NOW, NOW + HOUR, hosts=["board-7.ml.svc", "10.1.2.3"])
    found = x509.load_pem_x509_certificate(made.certificate)
    assert found.not_valid_before_utc.timestamp() < NOW - HOUR
    assert NOW + 2 * HOUR < found.not_valid_after_utc.timestamp() < NOW + 48 * HOUR
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["board-7", "localhost", "board-7.ml.svc"]
    assert ipaddress.ip_address("10.1.2.3") in names.get_values_for_type(x509.IPAddress)
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


def test_folder_is_read_back_and_private_even_over_a_public_file(tmp_path: Path) -> None:
    folder = tmp_path / "services" / "board"
    folder.mkdir(parents=True, mode=0o755)
    (folder / "token").write_text("old")
    (folder / "token").chmod(0o644)
    made = new_credentials("board", NOW, NOW + HOUR)
    write(folder, made)
    assert read(folder) == made
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_link_in_the_folder_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = tmp_path / "board"
    folder.mkdir()
    (folder / "tls.key").symlink_to(victim)
    write(folder, new_credentials("board", NOW, None))
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("damage", ["tls.crt", "token"])
def test_incomplete_folder_is_an_error(tmp_path: Path, damage: str) -> None:
    write(tmp_path, new_credentials("board", NOW, None))
    (tmp_path / damage).write_bytes(b"\xff")
    with pytest.raises(StoreError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / damage).unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        read(tmp_path)


def test_servers_can_use_the_files(tmp_path: Path) -> None:
    write(tmp_path, new_credentials("board", NOW, None))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_missing_cryptography_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra) as error:
        new_credentials("board", NOW, None)
    assert error.value.hint.startswith("pip install 'cryptography")
