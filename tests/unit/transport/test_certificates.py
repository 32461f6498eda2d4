"""The certificate that a QUIC listener makes once and keeps."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.transport.certificates import CERTIFICATE_FILE, KEY_FILE, load, load_or_make


def test_it_is_made_once_and_kept(tmp_path: Path) -> None:
    """The fingerprint that peers pin outlives a restart."""
    first = load_or_make("qumbed", tmp_path / "new")

    assert first == load_or_make("qumbed", tmp_path / "new")
    assert 64 == len(first.fingerprint)
    assert first.fingerprint.lower() == first.fingerprint


def test_the_key_is_for_its_owner_only(tmp_path: Path) -> None:
    """0600 when made, and again when somebody has opened it up."""
    made = load_or_make("qumbed", tmp_path)
    assert 0o600 == made.key.stat().st_mode & 0o777
    made.key.chmod(0o644)
    load_or_make("qumbed", tmp_path)

    assert 0o600 == made.key.stat().st_mode & 0o777


def test_a_making_that_was_interrupted_is_done_again(tmp_path: Path) -> None:
    """A key alone is what a crash between the two writes leaves."""
    load_or_make("qumbed", tmp_path)
    (tmp_path / CERTIFICATE_FILE).unlink()

    assert load_or_make("qumbed", tmp_path).certificate.exists()


@pytest.mark.parametrize("damage", ["no key", "not PEM", "another's key"])
def test_what_cannot_be_used_names_the_setting(tmp_path: Path, damage: str) -> None:
    """A lost key is an error, not a new identity; nothing of the files is repeated."""
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


def test_files_that_belong_together_are_loaded(tmp_path: Path) -> None:
    """An operator's own files go through the same check."""
    made = load_or_make("qumbed", tmp_path)

    assert made == load("qumbed", made.certificate, made.key)
