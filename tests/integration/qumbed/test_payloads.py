"""Plain, sealed and opaque payloads, with and without a schema."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at
from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    Peer,
    ack,
    connected,
    core,
    opened,
    public,
    publish,
    sealed,
    unb64,
)

pytestmark = pytest.mark.asyncio

READING: Final = b'{"celsius":22.5,"timestamp_ms":1700000000000,"sensor_id":"node-1"}'
BOX: Final = sealed(READING, ALICE, BOB)
NO_BOX: Final = b"\xff" * 39  # too short to be one

# payload, whether it names a sender, and how it reaches a subscriber; "" means refused
WITHOUT_SCHEMA: Final = {
    "JSON": (READING, False, "gateway"),
    "JSON with a sender": (READING, True, "gateway"),
    "any JSON text": (b" 1 ", True, "gateway"),
    "a box": (BOX, True, "verbatim"),
    "40 bytes with a sender": (b"\xff" * 40, True, "verbatim"),
    "a box without a sender": (BOX, False, "gateway"),
    "39 bytes with a sender": (NO_BOX, True, "gateway"),
    "nothing": (b"", True, "gateway"),
    "text": (b"hello", False, "gateway"),
}
WITH_SCHEMA: Final = {
    "valid JSON": (READING, False, "gateway"),
    "valid JSON with a sender": (READING, True, "gateway"),
    "JSON that lacks a field": (b'{"celsius":1,"timestamp_ms":1}', False, ""),
    "JSON of a wrong type": (READING.replace(b"22.5", b'"22.5"'), True, ""),
    "JSON of 40 bytes and a sender": (b'"%s"' % (b"x" * 60), True, ""),
    "a box": (BOX, True, "verbatim"),
    "a box without a sender": (BOX, False, ""),
    "39 bytes with a sender": (NO_BOX, True, ""),
    "nothing": (b"", True, ""),
}


async def _check(peer: Peer, row: tuple[bytes, bool, str], schema: str) -> None:
    payload, with_sender, outcome = row
    sender = public(ALICE) if with_sender else b""
    reader, writer = peer.open(), peer.open()
    await reader.subscribe("t", BOB)
    request = publish("t", payload, schema, sender=sender, frame_id="x")
    writer.send(request)
    if not outcome:
        text = await writer.expect_error("SCHEMA_INVALID", "x")
        assert text.startswith("sensor.Temperature: ")
        assert "22.5" not in text
        assert ack("x", 1) == await writer.ask(publish("t", b"1", frame_id="x"))
        return
    await writer.expect(ack("x", 1))
    message = await reader.message()
    assert schema == message["m"]["schema_id"]
    if outcome == "verbatim":
        assert payload == unb64(message["m"]["encrypted_payload"])
        assert sender == unb64(message["m"]["sender_public_key"])
    else:
        assert payload == opened(message, BOB)
        assert peer.running is not None
        assert peer.running.gateway_public_key == unb64(message["m"]["sender_public_key"])


@pytest.mark.parametrize("row", WITHOUT_SCHEMA)
async def test_without_a_schema_everything_is_accepted(peer: Peer, row: str) -> None:
    """The broker passes on sealed payloads unchanged; the gateway seals all others."""
    await _check(peer, WITHOUT_SCHEMA[row], "")


@pytest.mark.parametrize("row", WITH_SCHEMA)
async def test_a_schema_is_checked_on_readable_payloads(peer: Peer, row: str) -> None:
    """Plain JSON must be valid, sealed payloads pass, anything else is SCHEMA_INVALID."""
    await _check(peer, WITH_SCHEMA[row], "sensor.Temperature")


@pytest.mark.parametrize("payload", [READING, BOX, b"\xff"])
async def test_an_unknown_schema_is_refused(peer: Peer, payload: bytes) -> None:
    """SCHEMA_UNKNOWN, whatever the payload; the stream stays open."""
    stream = peer.open()
    stream.send(publish("t", payload, "sensor.temperature", frame_id="x"))
    text = await stream.expect_error("SCHEMA_UNKNOWN", "x")

    assert "unknown schema: sensor.temperature" == text
    assert ack("1", 0) == await stream.ask(publish("t", payload))


@pytest.mark.parametrize(
    ("schema", "payload", "is_valid"),
    [
        ("sensor.Humidity", b'{"percent":50,"timestamp_ms":1,"sensor_id":"a"}', True),
        ("sensor.Humidity", b'{"percent":50,"timestamp_ms":1.5,"sensor_id":"a"}', False),
        ("control.Command", b'{"action":"go"}', True),
        ("control.Command", b'{"action":"go","params":{"a":1}}', True),
        ("control.Command", b'{"action":""}', False),
        ("control.Command", b'{"action":"go","params":1}', False),
    ],
)
async def test_the_built_in_schemas_are_available(
    peer: Peer, schema: str, payload: bytes, *, is_valid: bool
) -> None:
    """The original's three, with their required fields."""
    stream = peer.open()
    stream.send(publish("t", payload, schema))
    if is_valid:
        await stream.expect(ack("1", 0))
    else:
        await stream.expect_error("SCHEMA_INVALID")


async def test_schemas_from_a_directory_are_available(tmp_path: Path) -> None:
    """schemas_dir holds JSON Schema files; the file name is the schema's."""
    (tmp_path / "shop.Order.json").write_text('{"type":"object","required":["n"]}')
    async with broker_at(schemas_dir=tmp_path) as broker, connected(broker) as peer:
        stream = peer.open()
        assert ack("1", 0) == await stream.ask(publish("t", b'{"n":1}', "shop.Order"))
        stream.send(publish("t", b"{}", "shop.Order"))
        await stream.expect_error("SCHEMA_INVALID")
        await stream.subscribe("t", ALICE, "shop.Order")


async def test_no_file_holds_the_plaintext_of_a_box(tmp_path: Path) -> None:
    """A canary is in neither the log nor any other file of the broker."""
    canary = b"canary-in-the-box-7c1e"
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        reader, writer = peer.open(), peer.open()
        await reader.subscribe("t", BOB)
        box = sealed(canary, ALICE, BOB)
        await writer.publish("t", box, sender=public(ALICE), frame_id="x")
        assert canary == opened(await reader.message(), BOB)
    everything = list(_files(tmp_path))

    assert any(box in data for data in everything)
    assert not any(canary in data for data in everything)


def _files(directory: Path) -> Iterator[bytes]:
    for path in directory.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


async def test_refused_payloads_are_not_stored(broker: RunningBroker, peer: Peer) -> None:
    """The broker neither publishes nor counts them."""
    stream = peer.open()
    stream.send(publish("t", b"{}", "sensor.Temperature"), publish("t", b"{}", "no"))
    await stream.expect_error("SCHEMA_INVALID")
    await stream.expect_error("SCHEMA_UNKNOWN")

    assert 0 == core(broker).stats.published
