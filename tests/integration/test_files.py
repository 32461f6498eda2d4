"""The files of the real process: who may read them, and what a damaged one says."""

import os
import ssl
from base64 import b64encode
from pathlib import Path

import pytest
import trustme

from tests.integration.served import refused, served

pytestmark = pytest.mark.asyncio

LISTENERS = ("blip", "vibe", "qumbed", "http", "flight")


async def test_every_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """In the data directory, and the ready file; also with a umask that allows more."""
    os_umask = os.umask(0)
    try:
        async with served(tmp_path, config="[wal]\nsnapshot_interval_s = 0.05\n") as broker:
            await broker.ready()
            async with broker.peer() as peer:
                await peer.publish("t", b"1")
            found = sorted((tmp_path / "data").rglob("*"))
            modes = {path.name: path.stat().st_mode & 0o077 for path in found}
            modes["ready.json"] = broker.ready_file.stat().st_mode & 0o077
            assert 0 == await broker.end()
    finally:
        os.umask(os_umask)

    assert {"run.json", "LOCK", "gateway.key", "qumbed.key.pem", "durable"} <= set(modes)
    assert {} == {name: oct(mode) for name, mode in modes.items() if mode}


def damaged_pem(path: Path) -> None:
    """Write a certificate whose public key is not a point of its curve, and its key."""
    issued = trustme.CA().issue_cert("localhost")
    der = bytearray(ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode()))
    point = der.index(b"\x03\x42\x00\x04") + 4  # a bit string that holds a point of P-256
    der[point] ^= 1
    lines = (b"-----BEGIN CERTIFICATE-----", b64encode(der), b"-----END CERTIFICATE-----")
    path.write_bytes(b"\n".join((*lines, issued.private_key_pem.bytes())))


@pytest.mark.parametrize("listener", LISTENERS)
async def test_a_damaged_certificate_is_one_clear_line(tmp_path: Path, listener: str) -> None:
    """Exit 2, with the setting and the file; never an internal error."""
    damaged_pem(tmp_path / "both.pem")
    section = f'tls_cert = "{tmp_path}/both.pem"\ntls_key = "{tmp_path}/both.pem"\n'
    flags = ("--flight", "127.0.0.1:0") if listener == "flight" else ()
    code, line = await refused(tmp_path, *flags, config=f"[{listener}]\n{section}")

    assert 2 == code
    assert line.startswith(f"error: {listener}.tls_cert: ")
    assert "both.pem" in line
    assert "damaged" in line


@pytest.mark.parametrize("listener", LISTENERS)
async def test_a_damaged_certificate_behind_the_first_is_one_clear_line(
    tmp_path: Path, listener: str
) -> None:
    """The listener shows the whole chain to its peers, so all of it must be readable."""
    issued = trustme.CA().create_child_ca().issue_cert("localhost")
    first, second = (pem.bytes() for pem in issued.cert_chain_pems)
    chain = first + second.replace(b"MII", b"AAA", 1)  # still PEM, but no certificate
    (tmp_path / "both.pem").write_bytes(chain + issued.private_key_pem.bytes())
    section = f'tls_cert = "{tmp_path}/both.pem"\ntls_key = "{tmp_path}/both.pem"\n'
    flags = ("--flight", "127.0.0.1:0") if listener == "flight" else ()
    code, line = await refused(tmp_path, *flags, config=f"[{listener}]\n{section}")

    assert 2 == code
    assert line.startswith(f"error: {listener}.tls_cert: ")
    assert "damaged" in line


async def test_a_damaged_authority_is_one_clear_line(tmp_path: Path) -> None:
    """At the start, and not as a traceback when the first client comes."""
    (tmp_path / "ca.pem").write_text("canary")
    config = f'[qumbed]\nauth = "mtls"\ntls_ca = "{tmp_path}/ca.pem"\n'
    code, line = await refused(tmp_path, config=config)

    assert 2 == code
    assert line.startswith("error: qumbed.tls_ca: ")
    assert "canary" not in line


HEX = b"0123456789abcdef"
BASE64 = b"ABCDEFGHIJKLMNOP"
IDENTITIES = {
    "gateway.key": (HEX, 40),
    "qumbed.cert.pem": (BASE64, -80),
    "qumbed.key.pem": (BASE64, 60),
}
"""Characters that occur in each file, and where to look for one: say, in the signature."""


@pytest.mark.parametrize("name", IDENTITIES)
async def test_a_changed_character_does_not_change_the_identity(
    tmp_path: Path, name: str
) -> None:
    """The broker that made the file does not start with another; nothing is overwritten."""
    async with served(tmp_path) as broker:
        await broker.ready()
        assert 0 == await broker.end()
    path = tmp_path / "data" / name
    whole = bytearray(path.read_bytes())
    alphabet, begin = IDENTITIES[name]
    at = next(n for n in range(begin % len(whole), len(whole)) if whole[n] in alphabet)
    whole[at] = alphabet[alphabet.index(whole[at]) ^ 1]
    path.write_bytes(whole)
    code, line = await refused(tmp_path)

    assert (2, bytes(whole)) == (code, path.read_bytes())
    assert "damaged" in line or "do not match" in line
