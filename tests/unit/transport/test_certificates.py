"""The certificate that a QUIC listener generates once and keeps."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import trustme
from aioquic.quic.configuration import QuicConfiguration

from braidmq.base.errors import ConfigError
from braidmq.transport.certificates import (
    CERTIFICATE_FILE,
    KEY_FILE,
    load,
    load_authority,
    load_or_make,
    use_chain,
)
from braidmq.transport.tls import server_context


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


def flips(path: Path, rng: Random) -> Iterator[int]:
    """Yield bits of a file, each of them flipped while it is looked at."""
    whole = path.read_bytes()
    for _ in range(150):
        bit = rng.randrange(8 * len(whole))
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        yield bit
    path.write_bytes(whole)


@pytest.mark.parametrize("name", [CERTIFICATE_FILE, KEY_FILE])
def test_a_flipped_bit_does_not_change_the_identity(tmp_path: Path, name: str) -> None:
    """It is an error that names the setting, or it changes nothing: whatever the bit means."""
    made = load_or_make("qumbed", tmp_path)
    refused = 0
    for bit in flips(tmp_path / name, Random(7)):
        try:
            assert made == load_or_make("qumbed", tmp_path), bit
        except ConfigError:
            refused += 1

    assert refused > 50
    assert made == load_or_make("qumbed", tmp_path)


def test_a_damaged_file_of_an_operator_is_an_error_too(tmp_path: Path) -> None:
    """Whichever library finds it; nothing but a ConfigError comes out."""
    issued = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    for path in (certificate, key):
        for _ in flips(path, Random(8)):
            for opened in (load, server_context):
                with suppress(ConfigError):
                    opened("qumbed", certificate, key)


@pytest.mark.parametrize("content", [b"", b"canary", b"\xff" * 99])
def test_a_damaged_authority_is_an_error(tmp_path: Path, content: bytes) -> None:
    """At the start, and not when the first peer comes."""
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(authority)
    whole = b"# a comment\n" + 2 * (authority.read_bytes() + b"\n")
    authority.write_bytes(whole)
    assert 2 == load_authority("qumbed", authority).count(b"BEGIN CERTIFICATE")
    authority.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^qumbed\.tls_ca: .*ca\.pem") as caught:
        load_authority("qumbed", authority)

    assert "canary" not in str(caught.value)


def write_chain(directory: Path) -> tuple[Path, Path]:
    """Write a certificate with an intermediate one behind it, and its key."""
    issued = trustme.CA().create_child_ca().issue_cert("localhost")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    return certificate, key


def test_the_whole_chain_is_checked(tmp_path: Path) -> None:
    """Not the first certificate only: the rest is shown to peers as well."""
    certificate, key = write_chain(tmp_path)
    pem = certificate.read_bytes()
    assert 2 == pem.count(b"BEGIN CERTIFICATE")
    load("qumbed", certificate, key)
    second = pem.rindex(b"-----BEGIN")
    for damage in (b"AAA", b"!!!"):  # still PEM but no certificate, and neither
        certificate.write_bytes(pem[:second] + pem[second:].replace(b"MII", damage, 1))
        with pytest.raises(ConfigError, match=r"^qumbed\.tls_cert: .*cert\.pem .* is damaged"):
            load("qumbed", certificate, key)


def test_a_chain_may_have_blank_lines_comments_and_the_key_in_it(tmp_path: Path) -> None:
    """As for the listeners of TCP; all of its certificates are used."""
    certificate, key = write_chain(tmp_path)
    pem = certificate.read_bytes().replace(b"-----BEGIN", b"\n# the next one\n-----BEGIN")
    certificate.write_bytes(pem + b"\n" + key.read_bytes() + b"\n\n")
    files = load("qumbed", certificate, certificate)
    settings = QuicConfiguration(is_client=False)
    use_chain(settings, files.certificate, files.key)
    server_context("blip", certificate, certificate)

    assert 1 == len(settings.certificate_chain)


def test_matching_files_are_loaded(tmp_path: Path) -> None:
    """An operator's own files pass the same check."""
    made = load_or_make("qumbed", tmp_path)

    assert made == load("qumbed", made.certificate, made.key)
