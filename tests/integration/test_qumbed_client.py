"""The client library over Qumbed against the real broker, in one process."""

import asyncio
from pathlib import Path

import pytest

import braidmq
from braidmq.client.options import Options
from braidmq.client.qumbed import KeyPair, TrustList
from braidmq.client.qumbed.connection import Receiver, open_connection
from braidmq.client.qumbed.envelope import Sealer
from braidmq.client.qumbed.subscription import QumbedSubscription
from braidmq.client.url import parse
from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.wire.qumbed import messages as frames
from tests.integration.test_client import payloads_of

pytestmark = pytest.mark.asyncio

ALICE = KeyPair(bytes(range(1, 33)))
BOB = KeyPair(bytes(range(33, 65)))
EVE = KeyPair(bytes(range(65, 97)))


async def republish(
    broker: RunningBroker, topic: str, sealed: bytes, sender: bytes, schema: str = ""
) -> None:
    """Publish a box that another client sealed, as an eavesdropper could."""
    endpoint = parse(broker.url("qumbed"))
    stranger = await open_connection(endpoint, Options(), Receiver(), lambda _: None)
    answer = await stranger.ask(lambda _: frames.publish(topic, sealed, schema, b"", sender))
    assert isinstance(answer, frames.Ack)
    await stranger.close()


async def test_published_messages_reach_the_subscriber_in_order() -> None:
    """More messages than any window holds: each arrives exactly once."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed")) as client,
        client.subscribe("orders") as messages,
    ):
        sent = [b"%d" % number for number in range(5000)]
        receipts = await client.publish_many("orders", sent)

        assert [braidmq.Receipt] * 5000 == [type(receipt) for receipt in receipts]
        assert sent == await payloads_of(messages, 5000)
        assert [] == await messages.fetch(timeout=0)
        assert {} == messages.refused


async def test_a_confirmed_message_can_be_fetched_at_once() -> None:
    """The broker delivers a message before it confirms the publish."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed")) as client,
        client.subscribe("orders") as messages,
    ):
        for number in range(50):
            await client.publish("orders", b"%d" % number)
            (message,) = await messages.fetch(timeout=0)

            assert b"%d" % number == message.payload


async def test_a_sealed_message_is_opened_by_its_recipient_only() -> None:
    """The broker routes it by the recipient's key, and it names the sender."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed"), private_key=ALICE) as alice,
        braidmq.connect(broker.url("qumbed"), private_key=BOB) as bob,
        braidmq.connect(broker.url("qumbed"), private_key=EVE) as eve,
        bob.subscribe("orders") as for_bob,
        eve.subscribe("orders") as for_eve,
    ):
        receipt = await alice.publish("orders", b"secret", recipient=BOB.public_key)
        await alice.publish("orders", b"for all")
        secret, open_to_all = await anext(for_bob), await anext(for_bob)

        assert 1 == receipt.delivered
        assert (b"secret", ALICE.public_key, False) == (
            secret.payload,
            secret.sender,
            secret.sealed_by_gateway,
        )
        assert (b"for all", broker.gateway_public_key, True) == (
            open_to_all.payload,
            open_to_all.sender,
            open_to_all.sealed_by_gateway,
        )
        assert [b"for all"] == await payloads_of(for_eve, 1)


async def test_a_client_refuses_boxes_sealed_for_another_recipient() -> None:
    """With `route = "all"`, as in the original, every subscriber gets every box."""
    config: dict[str, object] = {"qumbed": {"route": "all"}}
    async with (
        running_broker(config=config) as broker,
        braidmq.connect(broker.url("qumbed"), private_key=ALICE) as alice,
        braidmq.connect(broker.url("qumbed"), private_key=EVE) as eve,
        eve.subscribe("orders") as messages,
    ):
        await alice.publish("orders", b"secret", recipient=BOB.public_key)
        await alice.publish("orders", b"for all")

        assert [b"for all"] == await payloads_of(messages, 1)
        assert {"not_opened": 1} == messages.refused


async def test_messages_from_untrusted_senders_are_refused(tmp_path: Path) -> None:
    """Trust is a list of keys or the first on a topic; the gateway needs it as well."""
    learning = TrustList(first_use=tmp_path / "trust.json")
    async with running_broker() as broker:
        url = broker.url("qumbed")
        async with (
            braidmq.connect(url, private_key=ALICE) as alice,
            braidmq.connect(url, private_key=EVE) as eve,
            braidmq.connect(url, private_key=BOB, trust=[ALICE.public_key]) as bob,
            braidmq.connect(url, private_key=BOB, trust=learning) as other,
            bob.subscribe("orders") as pinned,
            other.subscribe("orders") as learned,
        ):
            await alice.publish("orders", b"1", recipient=BOB.public_key)
            await eve.publish("orders", b"2", recipient=BOB.public_key)
            await eve.publish("orders", b"3")
            await alice.publish("orders", b"4", recipient=BOB.public_key)

            for messages in (pinned, learned):
                assert [b"1", b"4"] == await payloads_of(messages, 2)
                assert {"untrusted": 2} == messages.refused


async def test_a_reflected_message_is_refused() -> None:
    """Sent back under the client's own name or, in an envelope, under its recipient's."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed"), private_key=BOB) as bob,
        bob.subscribe("orders") as messages,
    ):
        sealer = Sealer(BOB, now_ms=1)
        own = sealer.seal(b"to Alice", ALICE.public_key, topic="orders", now_ms=1)
        await republish(broker, "orders", own, ALICE.public_key)
        await republish(
            broker, "orders", BOB.seal(b"to Alice", ALICE.public_key), BOB.public_key
        )
        await bob.publish("orders", b"the last")

        assert [b"the last"] == await payloads_of(messages, 1)
        assert {"reflected": 2} == messages.refused


async def test_an_envelope_cannot_be_replayed_or_retargeted() -> None:
    """Not on its own topic, not on another topic, not with another schema."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed"), private_key=ALICE) as alice,
        braidmq.connect(broker.url("qumbed"), private_key=BOB) as bob,
        bob.subscribe("doors") as doors,
        bob.subscribe("windows") as windows,
    ):
        command, schema = b'{"action": "open"}', "control.Command"
        await alice.publish(
            "doors", command, recipient=BOB.public_key, schema=schema, envelope=True
        )
        assert [command] == await payloads_of(doors, 1)
        box = stored_box(broker, "doors")
        await republish(broker, "doors", box, ALICE.public_key, schema)
        await republish(broker, "doors", box, ALICE.public_key)
        await republish(broker, "windows", box, ALICE.public_key, schema)
        await alice.publish("doors", b"the last")
        await alice.publish("windows", b"the last")

        assert [b"the last"] == await payloads_of(doors, 1)
        assert [b"the last"] == await payloads_of(windows, 1)
        assert {"replayed": 1, "retargeted": 1} == doors.refused
        assert {"retargeted": 1} == windows.refused


def stored_box(broker: RunningBroker, topic: str) -> bytes:
    """Return the only box of a topic from the log, as an attacker with the disk reads it."""
    name = topic.encode()
    (segment,) = (broker.data_dir / "wal").glob("*.wal")
    stored = segment.read_bytes()
    assert b"open" not in stored
    at = stored.index(name) + len(name)
    # Nonce, tag, and the envelope: its header, both strings with lengths, the payload.
    size = 24 + 16 + 49 + 2 + len(name) + 2 + len("control.Command") + len('{"action": "open"}')
    for start in range(at, at + 16):
        try:
            BOB.open(stored[start : start + size], ALICE.public_key)
        except braidmq.NotOpened:
            continue
        return stored[start : start + size]
    raise AssertionError("the log does not hold the box")


async def test_sender_broker_and_receiver_all_check_the_schema() -> None:
    """The receiver checks sealed payloads, which the broker cannot read."""
    schema = "control.Command"
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed"), private_key=ALICE) as alice,
        braidmq.connect(broker.url("qumbed"), private_key=BOB) as bob,
        bob.subscribe("doors", schema=schema) as messages,
    ):
        with pytest.raises(braidmq.InvalidArgument, match=r"\$.action is missing"):
            await alice.publish("doors", b"{}", schema=schema)
        with pytest.raises(braidmq.PublishRefused, match="SCHEMA_UNKNOWN"):
            await alice.publish("doors", b"{}", schema="no.such")
        with pytest.raises(braidmq.SubscriptionRefused, match="SCHEMA_UNKNOWN"):
            await bob.subscribe("doors", schema="no.such")
        await alice.publish("doors", b"{}", recipient=BOB.public_key)
        await alice.publish("doors", b'{"action": "open"}', recipient=BOB.public_key)

        assert [b'{"action": "open"}'] == await payloads_of(messages, 1)
        assert {"schema": 1} == messages.refused
        assert isinstance(messages, QumbedSubscription)
        assert [b"{}"] == [message.payload for message in messages.quarantine]


async def test_all_strands_exchange_messages() -> None:
    """In all six directions; the gateway seals for Qumbed what other strands publish."""
    async with running_broker() as broker:
        gateway = broker.gateway_public_key
        async with (
            braidmq.connect(broker.url("qumbed"), trust=gateway) as qumbed,
            braidmq.connect(broker.url("vibe")) as vibe,
            braidmq.connect(broker.url("blip")) as blip,
            qumbed.subscribe("orders") as over_qumbed,
            vibe.subscribe("orders") as over_vibe,
            blip.subscribe("orders") as over_blip,
        ):
            sent = [b"\x00\xff", b'{"n": 2}', b'{"n": 3}', b"\xff" * 100]
            await blip.publish("orders", sent[0])
            await vibe.publish("orders", sent[1])
            await qumbed.publish("orders", sent[2])
            await qumbed.publish("orders", sent[3])

            for messages in (over_qumbed, over_vibe, over_blip):
                assert sent == await payloads_of(messages, 4)
            assert {} == over_qumbed.refused


async def test_a_slow_handler_gets_everything_and_delays_no_other() -> None:
    """It reads from the log at its own pace; memory holds only windows and `prefetch`."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed")) as client,
        client.subscribe("orders", prefetch=1) as slow,
        client.subscribe("orders") as quick,
    ):
        sent = [b"%d" % number + bytes(4000) for number in range(500)]
        await client.publish_many("orders", sent)

        assert sent == await payloads_of(quick, 500)
        assert isinstance(slow, QumbedSubscription)
        assert slow.waiting <= 1
        assert sent == await payloads_of(slow, 500)


async def test_a_handler_may_call_the_broker() -> None:
    """A handler does not block the reading of the socket, so the answer can arrive."""
    async with running_broker() as broker, braidmq.connect(broker.url("qumbed")) as client:
        messages = await client.subscribe("orders", prefetch=1)
        await client.publish_many("orders", [b"1", b"2", b"3"])
        copied = []
        async with client.subscribe("copies") as copies:
            async for message in messages:
                await client.publish("copies", message.payload)
                copied += await payloads_of(copies, 1)
                if len(copied) == 3:
                    await messages.close()

        assert [b"1", b"2", b"3"] == copied


async def test_an_unexpected_certificate_is_refused() -> None:
    """By its fingerprint or, without one, by the system's certificate authorities."""
    async with running_broker() as broker:
        host, port = broker.address("qumbed")
        for pin, reason in ((f"?fingerprint={64 * '0'}", "fingerprint"), ("", "self-signed")):
            with pytest.raises(braidmq.ConnectionFailed, match=reason):
                await braidmq.connect(f"qumbed://{host}:{port}{pin}")
        async with braidmq.connect(f"qumbed://{host}:{port}", insecure=True) as client:
            assert await client.ping() > 0


async def test_a_broker_with_key_authentication_refuses_unknown_keys() -> None:
    """The client does not retry with a key that was refused."""
    config: dict[str, object] = {"qumbed": {"auth": "key"}}
    async with running_broker(config=config) as broker:
        async with braidmq.connect(broker.url("qumbed")) as client:
            await client.publish("orders", b"1")
        for key in ("unknown", ""):
            with pytest.raises(braidmq.AuthenticationFailed, match="UNAUTHORIZED"):
                await braidmq.connect(broker.url("qumbed", key))


async def test_a_message_too_large_for_a_frame_is_refused_before_it_is_sent() -> None:
    """The broker accepts and delivers the largest message that the client sends."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed"), private_key=ALICE) as alice,
        braidmq.connect(broker.url("qumbed"), private_key=BOB) as bob,
        bob.subscribe("orders") as messages,
    ):
        for recipient in (None, BOB.public_key):
            size = 1024 * 1024
            while True:
                try:
                    await alice.publish("orders", bytes(size), recipient=recipient)
                except braidmq.InvalidArgument:
                    size -= 1_000 if size > 786_200 else 1
                else:
                    break

            assert size > 785_000
            assert [bytes(size)] == await payloads_of(messages, 1)


def blocking_round_trip(broker: RunningBroker) -> list[tuple[bytes, bytes | None]]:
    """Publish and receive without an event loop."""
    with (
        braidmq.sync.connect(broker.url("qumbed"), private_key=ALICE) as alice,
        braidmq.sync.connect(broker.url("qumbed"), private_key=BOB) as bob,
        bob.subscribe("orders") as messages,
    ):
        alice.publish_many("orders", [b"1", b"2"], recipient=BOB.public_key, envelope=True)
        seen = []
        for message in messages:
            with message.process():
                seen.append((message.payload, message.sender))
            if len(seen) == 2:
                break
        return seen


async def test_the_blocking_client_works_against_the_real_broker() -> None:
    """The same round trip from a thread without an event loop."""
    async with running_broker() as broker:
        seen = await asyncio.to_thread(blocking_round_trip, broker)

        assert [(b"1", ALICE.public_key), (b"2", ALICE.public_key)] == seen


async def test_a_retry_seals_its_envelopes_again() -> None:
    """Old ones could arrive more than a replay window late, and count as replays."""
    config: dict[str, object] = {"limits": {"messages_per_s": 2000}}
    async with (
        running_broker(config=config) as broker,
        braidmq.connect(broker.url("qumbed"), private_key=ALICE) as sender,
        braidmq.connect(broker.url("qumbed"), private_key=BOB) as reader,
        reader.subscribe("orders") as messages,
    ):
        sent = [b"%d" % number for number in range(8000)]
        clock = asyncio.ensure_future(_let_time_pass(broker))
        receipts = await sender.publish_many(
            "orders", sent, recipient=BOB.public_key, envelope=True, retry=True
        )
        clock.cancel()

        assert [braidmq.Receipt] * 8000 == [type(receipt) for receipt in receipts]
        async with asyncio.timeout(20):
            assert sorted(sent) == sorted(await payloads_of(messages, 8000))
        assert {} == messages.refused


async def _let_time_pass(broker: RunningBroker) -> None:
    while True:
        await asyncio.sleep(0.01)
        broker.clock.advance(0.05)
