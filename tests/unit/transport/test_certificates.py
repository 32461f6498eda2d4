"""The certificate that a QUIC listener generates once and keeps."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.transport.certificates import CERTIFICATE_FILE, KEY_FILE, load, load_or_make


def test_the_certificate_is_generated_once_and_kept(tmp_path: Path) -> None:
    """The fingerprint that clients pin survives a restart."""
    first = load_or_make("qumbed", tmp_path / "new")

    assert first == load_or_make("qumbed", tmp_path / "new")
    assert 64 == len(first.fingerprint)
    assert first.fingerprint.lower() == first.fingerprint


def test_only_the_owner_can_read_the_key(tmp_path: Path) -> None:
    """It gets mode 0600 when generated, and again if the mode was widened."""
    made = load_or_make("qumbed", tmp_path)
    assert 0o600 == made.key.stat().st_mode & 0o777
    made.key.chmod(0o644)
    load_or_make("qumbed", tmp_path)

    assert 0o600 == made.key.stat().st_mode & 0o777


def test_an_interrupted_generation_is_repeated(tmp_path: Path) -> None:
    """A crash between the two writes leaves a key without a certificate."""
    load_or_make("qumbed", tmp_path)
    (tmp_path / CERTIFICATE_FILE).unlink()

    assert load_or_make("qumbed", tmp_path).certificate.exists()


@pytest.mark.parametrize("damage", ["no key", "not PEM", "another's key"])
def test_an_error_in_the_files_names_the_setting(tmp_path: Path, damage: str) -> None:
    """A lost key is an error, not a new identity; the error quotes nothing of the files."""
    made = load_or_make("qumbed", tmp_path)
    if damage == "no key":
        made.key.unlink()
    elif damage == "not PEM":
        made.key.write_text("canary")
    else:
        other = load_or_make("qumbed", tmp_path / "other")
        (tmp_path / KEY_FILE).write_bytes(other.key.read_bytes())
    with pytest.raises(ConfigError, match=r"qumbed\.tls_cert: ") as caught:
        load_or_make("qumbed", tmp_path)

    assert "canary" not in str(caught.value)


def test_matching_files_are_loaded(tmp_path: Path) -> None:
    """An operator's own files pass the same check."""
    made = load_or_make("qumbed", tmp_path)

    assert made == load("qumbed", made.certificate, made.key)
