"""The certificate of a QUIC listener, loaded or generated once. No sockets here."""

import hashlib
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from braidmq.base.errors import ConfigError
from braidmq.wal.disk import Disk, replace_file

CERTIFICATE_FILE: Final = "qumbed.cert.pem"
KEY_FILE: Final = "qumbed.key.pem"
NAMES: Final = ("localhost", "127.0.0.1", "::1")
VALID_DAYS: Final = 20 * 365
"""Peers pin the fingerprint, so nothing is gained by a shorter validity."""

CLOCK_SKEW: Final = timedelta(days=1)
"""A peer's clock may be behind ours by this much."""


class CertificateFiles(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path
    fingerprint: str


def fingerprint(der: bytes) -> str:
    """Return the SHA-256 of a certificate in DER, in lower-case hex."""
    return hashlib.sha256(der).hexdigest()


def load(section: str, certificate: Path, key: Path) -> CertificateFiles:
    """Return the files if they belong together.

    Raises:
        ConfigError: They cannot be read, or do not match; the text repeats no content.
    """
    return CertificateFiles(certificate, key, _checked(section, certificate, key)[1])


def use_chain(settings: QuicConfiguration, certificate: Path, key: Path) -> None:
    """Use a certificate, the rest of its chain, and its key.

    aioquic's own function takes no file with a blank line at its end, or with the key in it.

    Raises:
        OSError: A file cannot be read.
        ValueError, TypeError: Any part of them is damaged, or the key is encrypted.
    """
    chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    for one in chain:
        one.public_key()  # a certificate is parsed as it is read
    settings.certificate, settings.certificate_chain = chain[0], chain[1:]
    settings.private_key = serialization.load_pem_private_key(key.read_bytes(), password=None)


def load_authority(section: str, authority: Path) -> bytes:
    """Return the certificates which vouch for peers, in PEM and nothing else.

    Raises:
        ConfigError: The file cannot be used; the text repeats no content.
    """
    try:
        found = x509.load_pem_x509_certificates(authority.read_bytes())
        pem = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in found)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=pem.decode())
    except (OSError, ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        reason = getattr(error, "strerror", None) or "not a certificate"
        problem = f"{authority} cannot be used, or is damaged: {reason}"
        raise ConfigError(f"{section}.tls_ca", problem) from None
    return pem


def _checked(section: str, certificate: Path, key: Path) -> tuple[x509.Certificate, str]:
    """Return the certificate and its fingerprint if it belongs to the key.

    The rest of its chain is read as well, as the listener does.
    """
    setting = f"{section}.tls_cert"
    try:
        settings = QuicConfiguration(is_client=False)
        use_chain(settings, certificate, key)
        found, private = settings.certificate, settings.private_key
        is_pair = _public_bytes(found.public_key()) == _public_bytes(private.public_key())
        der = found.public_bytes(serialization.Encoding.DER)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(setting, f"cannot be used with its key: {reason}") from None
    except (TypeError, ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        problem = f"{certificate} or {key} is damaged, encrypted or not PEM, or part of it is"
        raise ConfigError(setting, problem) from None
    if not is_pair:
        raise ConfigError(setting, "cannot be used with its key: they do not match")
    return found, fingerprint(der)


def load_or_make(section: str, directory: Path) -> CertificateFiles:
    """Return the directory's self-signed certificate, which is generated the first time.

    The key is written first, so a key without a certificate means that this was interrupted. A
    certificate without its key is a loss, and must not be hidden behind a new identity.

    Raises:
        ConfigError: The files there cannot be used.
        OSError: They could not be written.
    """
    certificate, key = directory / CERTIFICATE_FILE, directory / KEY_FILE
    if not certificate.exists():
        _make(directory)
    elif key.exists():
        key.chmod(0o600)  # for its owner only, however it came to be here
    found, known_as = _checked(section, certificate, key)
    try:
        # It signs itself, so that any changed bit shows; else peers would find another
        # fingerprint than they have pinned, without a word from us.
        found.verify_directly_issued_by(found)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        problem = f"{certificate} is damaged: restore it and {KEY_FILE} from a backup"
        raise ConfigError(f"{section}.tls_cert", problem) from None
    return CertificateFiles(certificate, key, known_as)


def _make(directory: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "BraidMQ")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(
            x509.SubjectAlternativeName([_name(name) for name in NAMES]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    key_pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    disk = Disk(directory)
    disk.make_dir("")
    replace_file(disk, KEY_FILE, key_pem)
    replace_file(disk, CERTIFICATE_FILE, built.public_bytes(serialization.Encoding.PEM))


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _public_bytes(key: object) -> bytes:
    # Every kind of public key has the method; the union of their types has no common name.
    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined]  # the union has no name
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded
