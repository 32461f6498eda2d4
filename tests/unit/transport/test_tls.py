"""The TLS context of a listener."""

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from braidmq.base.errors import ConfigError
from braidmq.transport.tls import server_context


def certificate_files(directory: Path) -> tuple[Path, Path]:
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    return directory / "cert.pem", directory / "key.pem"


def test_only_tls_1_3_is_offered(tmp_path: Path) -> None:
    """Older versions have known weaknesses."""
    context = server_context("blip", *certificate_files(tmp_path))

    assert ssl.TLSVersion.TLSv1_3 == context.minimum_version


@pytest.mark.parametrize(
    "damage", ["no certificate", "no key", "not PEM", "another's key", "encrypted"]
)
def test_an_error_in_the_files_names_the_setting(tmp_path: Path, damage: str) -> None:
    """It has exit code 2 and quotes nothing of the files."""
    certificate, key = certificate_files(tmp_path)
    if damage == "no certificate":
        certificate.unlink()
    elif damage == "no key":
        key.unlink()
    elif damage == "not PEM":
        key.write_text("canary")
    elif damage == "encrypted":  # OpenSSL must not ask for a password on the terminal
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"canary"),
            )
        )
    else:
        (tmp_path / "other").mkdir()
        _, key = certificate_files(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"blip\.tls_cert: ") as caught:
        server_context("blip", certificate, key)

    assert 2 == caught.value.exit_code
    assert "canary" not in str(caught.value)
