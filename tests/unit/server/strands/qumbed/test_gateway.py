"""The gateway key: generated once, stored, and used to seal for subscribers."""

import errno
import json
import stat
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from braidmq.base.errors import EXIT_USAGE, ConfigError
from braidmq.server.config.config import LimitsConfig
from braidmq.server.strands.qumbed import gateway as gateway_module
from braidmq.server.strands.qumbed.gateway import GATEWAY_KEY_FILE, GatewayKey
from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.wal.disk import Disk
from braidmq.wire.qumbed.boxes import Boxes, NotOpenedError, UnusableKeyError

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[4] / "vectors" / "qumbed.json").read_text("utf-8")
)
SECRET: str = VECTORS["sender_secret"]
PUBLIC: str = VECTORS["sender_public"]
SUBSCRIBER = Boxes(bytes.fromhex(VECTORS["recipient_secret"]), boxes_max=4)
OTHER = Boxes(32 * b"o", boxes_max=4)


def disk_with(content: bytes) -> FakeDisk:
    disk = FakeDisk()
    disk.put(GATEWAY_KEY_FILE, content)
    return disk


def test_the_key_is_generated_once() -> None:
    """Its public half may be pinned, so it is the same after every restart and every crash."""
    disk = FakeDisk()
    made = GatewayKey(disk).public_key

    assert made == GatewayKey(disk).public_key
    assert made == GatewayKey(disk.crash(Random(7))).public_key
    assert made != GatewayKey(FakeDisk()).public_key


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    """It holds two lines of 64 digits, and no other file is left beside it."""
    GatewayKey(Disk(tmp_path))
    path = tmp_path / GATEWAY_KEY_FILE

    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert 2 * 65 == len(path.read_bytes())
    assert [path] == list(tmp_path.iterdir())


def test_a_stored_key_is_read() -> None:
    """With or without the newline, and its public key is added where there was none."""
    whole = f"{SECRET}\n{PUBLIC}\n"
    for content in (SECRET, SECRET + "\n", whole, whole.strip()):
        disk = disk_with(content.encode())
        gateway = GatewayKey(disk)

        assert PUBLIC == gateway.public_key.hex()
        assert whole.strip() == disk.content(GATEWAY_KEY_FILE).decode().strip()


@pytest.mark.parametrize("operation", ["open", "pwrite", "fsync", "rename"])
def test_a_key_of_an_earlier_version_is_used_on_a_full_disk(operation: str) -> None:
    """Its public key is added at a later start."""
    disk = disk_with(SECRET.encode())
    disk.fail(operation, errno.ENOSPC, nth=2 if operation == "open" else 1)

    assert PUBLIC == GatewayKey(disk).public_key.hex()
    assert SECRET == disk.content(GATEWAY_KEY_FILE).decode()
    assert PUBLIC == GatewayKey(disk).public_key.hex()
    assert PUBLIC in disk.content(GATEWAY_KEY_FILE).decode()


def test_a_flipped_bit_never_changes_the_identity() -> None:
    """It is refused, or, where X25519 ignores the bit or it is a letter's case, harmless."""
    whole = f"{SECRET}\n{PUBLIC}\n".encode()
    refused = 0
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        disk = disk_with(bytes(changed))
        try:
            assert PUBLIC == GatewayKey(disk).public_key.hex()
        except ConfigError:
            refused += 1

    assert refused > 900


def test_only_the_subscriber_opens_what_is_sealed_for_it() -> None:
    """With the gateway's public key; no nonce is used twice."""
    gateway = GatewayKey(FakeDisk())
    sealed = [gateway.seal_for(SUBSCRIBER.public_key, b"payload") for _ in range(50)]

    assert {b"payload"} == {SUBSCRIBER.open(box, gateway.public_key) for box in sealed}
    assert 50 == len({box[:24] for box in sealed})
    with pytest.raises(NotOpenedError):
        OTHER.open(sealed[0], gateway.public_key)


def test_boxes_are_cached_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each subscriber's key; the limit exceeds the default number of connections."""
    assert LimitsConfig().connections < gateway_module.BOXES_MAX
    monkeypatch.setattr(gateway_module, "BOXES_MAX", 2)
    gateway = GatewayKey(FakeDisk())
    held = []
    for n in (1, 1, 2, 3):
        gateway.seal_for(Boxes(bytes([n]) * 32, boxes_max=1).public_key, b"")
        held.append(gateway.held_boxes)

    assert [1, 1, 2, 2] == held


@pytest.mark.parametrize("key", [b"", 31 * b"k", bytes(32)])
def test_nothing_is_sealed_for_an_unusable_key(key: bytes) -> None:
    """A session refuses such a key earlier; this is the second line of defence."""
    with pytest.raises(UnusableKeyError, match="the public key is"):
        GatewayKey(FakeDisk()).seal_for(key, b"payload")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff", SECRET[:-1].encode(), 2 * SECRET.encode(), 64 * b"0"]
)
def test_a_file_without_a_key_prevents_startup(content: bytes) -> None:
    """A new key would lock out clients that pinned the old one; the file stays as it is."""
    disk = disk_with(content)
    with pytest.raises(
        ConfigError, match=r"gateway\.key: does not hold a private key"
    ) as caught:
        GatewayKey(disk)

    assert EXIT_USAGE == caught.value.exit_code
    assert content == disk.content(GATEWAY_KEY_FILE)
    assert SECRET[:8] not in str(caught.value)


def test_an_unreadable_file_prevents_startup() -> None:
    """Unreadable does not mean absent."""
    disk = disk_with(SECRET.encode())
    disk.fail("open", errno.EACCES)

    with pytest.raises(ConfigError, match=r"gateway\.key: cannot be read: Permission denied"):
        GatewayKey(disk)


@pytest.mark.parametrize("operation", ["open", "pwrite", "truncate", "fsync", "rename"])
def test_a_key_that_cannot_be_saved_is_not_used(operation: str) -> None:
    """A restart would generate another; once the disk works, the key stays the same."""
    disk = FakeDisk()
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(ConfigError, match=r"gateway\.key: cannot be written: No space left"):
        GatewayKey(disk)

    assert not disk.exists(GATEWAY_KEY_FILE)
    assert GatewayKey(disk).public_key == GatewayKey(disk).public_key


def test_a_power_cut_leaves_a_whole_key_or_none() -> None:
    """Wherever it strikes, the next start finds or makes one, and keeps it."""
    for cut in range(1, 7):
        for seed in range(8):
            disk = FakeDisk()
            disk.cut_power_at(cut)
            made = None
            with suppress(PowerCutError):
                made = GatewayKey(disk).public_key
            left = disk.crash(Random(seed))
            found = GatewayKey(left).public_key

            assert made in {None, found}
            assert found == GatewayKey(left).public_key


def test_no_text_shows_the_private_key() -> None:
    """Neither the object's own text nor a log line with the object."""
    gateway = GatewayKey(disk_with(SECRET.encode()))
    gateway.seal_for(SUBSCRIBER.public_key, b"payload")
    with structlog.testing.capture_logs() as logged:
        structlog.get_logger("test").info("started", gateway=gateway)
    text = f"{gateway} {gateway!r} {logged}"

    assert f"GatewayKey({VECTORS['sender_public']})" == repr(gateway)
    for secret in (bytes.fromhex(SECRET), bytes.fromhex(VECTORS["shared_key"])):
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
