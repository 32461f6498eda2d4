"""Opening sealed payloads: only with the right key, and only on the topic they are for."""

import base64
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.envelope import Sealer
from braidmq.columnar.decoding.unsealing import NotUnsealedError, Unsealing
from braidmq.wire.qumbed.envelopes import Envelope, write_envelope

SENDER, READER, STRANGER = KeyPair.generate(), KeyPair.generate(), KeyPair.generate()
PAYLOAD = b'{"celsius":21.5}'


def text_of(keys: KeyPair) -> bytes:
    return base64.b64encode(keys.public_key)


def sealed(topic: str = "t", schema_id: str = "s", *, sender: KeyPair = SENDER) -> bytes:
    sealer = Sealer(sender, now_ms=1)
    return sealer.seal(PAYLOAD, READER.public_key, topic=topic, schema_id=schema_id, now_ms=1)


def unsealing(keys: KeyPair = READER, trusted: list[bytes] | None = None) -> Unsealing:
    return Unsealing(keys.reveal_private_key(), trusted=trusted)


def test_the_right_key_opens_with_and_without_an_envelope() -> None:
    """What comes out is the payload that was sealed."""
    plain_box = SENDER.seal(PAYLOAD, READER.public_key)

    for box in (sealed(), plain_box):
        opened = unsealing().open(box, text_of(SENDER), topic="t", schema_id=b"s")
        assert PAYLOAD == opened
    trusting = unsealing(trusted=[SENDER.public_key])
    assert PAYLOAD == trusting.open(sealed(), text_of(SENDER), topic="t", schema_id=b"s")
    empty = SENDER.seal(b"", READER.public_key)
    assert b"" == unsealing().open(empty, text_of(SENDER), topic="t", schema_id=b"")


def test_a_payload_that_is_not_sealed_is_passed_on() -> None:
    """JSON text is not sealed, and a box has at least forty bytes."""
    for payload in (b'{"text":"' + b"x" * 100 + b'"}', b"short"):
        assert payload == unsealing().open(payload, text_of(SENDER), topic="t", schema_id=b"")


@pytest.mark.parametrize(
    ("payload", "names_sender"),
    [
        (b'{"text":"' + b"x" * 100 + b'"}', True),
        (b'{"text":"' + b"x" * 100 + b'"}', False),
        (b"short", True),
        (b"", False),
        (b"\xff" * 100, False),
        (sealed(), False),
    ],
    ids=["claimed", "plain", "short and claimed", "empty", "binary", "without its sender"],
)
def test_a_payload_that_is_not_sealed_is_not_trusted(
    payload: bytes, names_sender: bool
) -> None:
    """Whoever its message names as sender: anyone may write the header."""
    trusting = unsealing(trusted=[SENDER.public_key])
    sender = text_of(SENDER) if names_sender else None

    with pytest.raises(NotUnsealedError, match="is not sealed"):
        trusting.open(payload, sender, topic="t", schema_id=b"s")
    assert payload == unsealing().open(payload, sender, topic="t", schema_id=b"s")


def enveloped(envelope: bytes) -> bytes:
    return SENDER.seal(envelope, READER.public_key)


OTHER_SENDER = write_envelope(Envelope(STRANGER.public_key, 1, 1, b"t", b"s", PAYLOAD))
REFUSED = {
    "another reader": (STRANGER, sealed(), text_of(SENDER), "does not open"),
    "another sender": (READER, sealed(), text_of(STRANGER), "does not open"),
    "damaged": (READER, sealed()[:-1] + b"\xff\xff", text_of(SENDER), "does not open"),
    "own key": (READER, sealed(sender=READER), text_of(READER), "the reader's own"),
    "another topic": (READER, sealed("u"), text_of(SENDER), "another topic"),
    "another schema": (READER, sealed("t", "u"), text_of(SENDER), "another schema"),
    "reflected": (READER, enveloped(OTHER_SENDER), text_of(SENDER), "by another"),
    "cut off": (READER, enveloped(OTHER_SENDER[:40]), text_of(SENDER), "truncated"),
    "cut in the topic": (READER, enveloped(OTHER_SENDER[:51]), text_of(SENDER), "truncated"),
    "not base64": (READER, sealed(), b"????", "not base64"),
    "not a key": (READER, sealed(), b"AAAA", "not 32 bytes"),
    "a key of low order": (READER, sealed(), base64.b64encode(bytes(32)), "low order"),
    "a key that is not canonical": (
        READER,
        sealed(),
        base64.b64encode(b"\xf5" + b"\xff" * 31),
        "canonical",
    ),
}


@pytest.mark.parametrize(("reader", "box", "sender", "reason"), REFUSED.values(), ids=REFUSED)
def test_everything_else_stays_sealed(
    reader: KeyPair, box: bytes, sender: bytes, reason: str
) -> None:
    """The reason says why, and repeats nothing of the payload."""
    with pytest.raises(NotUnsealedError, match=reason):
        unsealing(reader).open(box, sender, topic="t", schema_id=b"s")


def test_a_box_of_an_untrusted_sender_is_not_opened() -> None:
    """A box proves that its sender holds a key, not who the sender is."""
    trusting = unsealing(trusted=[STRANGER.public_key])

    with pytest.raises(NotUnsealedError, match="not trusted"):
        trusting.open(sealed(), text_of(SENDER), topic="t", schema_id=b"s")


def test_the_key_is_read_from_its_owners_file(tmp_path: Path) -> None:
    """As `braidmq keygen` writes it; a file that others can read is refused."""
    path = tmp_path / "key"
    path.write_text(READER.reveal_private_key().hex() + "\n")
    path.chmod(0o600)
    opened = Unsealing.from_file(path).open(
        sealed(), text_of(SENDER), topic="t", schema_id=b"s"
    )
    assert PAYLOAD == opened

    path.chmod(0o644)
    with pytest.raises(ConfigError, match="accessible to other users"):
        Unsealing.from_file(path)
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(ConfigError, match="does not hold"):
        Unsealing.from_file(path)
    with pytest.raises(ConfigError, match="not a file"):
        Unsealing.from_file(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Unsealing.from_file(tmp_path / "none")


def test_invalid_keys_are_refused() -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match="private_key"):
        Unsealing(b"short")
    for key in (b"short", bytes(32), b"\xf5" + b"\xff" * 31):
        with pytest.raises(ConfigError, match="trusted_keys"):
            unsealing(trusted=[key])
