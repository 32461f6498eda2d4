"""The client over Qumbed: publishing, keys, unsupported features."""

import asyncio
import ssl
from pathlib import Path

import pytest

import braidmq
from braidmq.client import strand as client_strand
from braidmq.client.options import Options
from braidmq.client.qumbed import KeyPair, TrustList
from braidmq.client.qumbed.strand import API_KEY_BYTES_MAX, QumbedStrand
from braidmq.client.qumbed.subscription import QumbedMessage
from braidmq.client.url import parse
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.messages import Frame
from tests.unit.client.peer import die, quick
from tests.unit.client.qumbed.peer import GATEWAY, Line, Peer
from tests.unit.client.qumbed.people import ALICE, BOB, EVE, with_sign_bit

pytestmark = pytest.mark.asyncio


async def test_a_sealed_message_reaches_its_recipient_only() -> None:
    """It is routed by the recipient's key; the receipt counts the deliveries."""
    async with (
        Peer() as peer,
        braidmq.connect(peer.url, private_key=ALICE) as alice,
        braidmq.connect(peer.url, private_key=BOB) as bob,
        braidmq.connect(peer.url, private_key=EVE) as eve,
        bob.subscribe("orders") as for_bob,
        eve.subscribe("orders") as for_eve,
    ):
        receipt = await alice.publish("orders", b"secret", recipient=BOB.public_key)
        message = await anext(for_bob)

        assert receipt == braidmq.Receipt("orders", 1, durable=True, id=receipt.id, delivered=1)
        assert (b"secret", ALICE.public_key) == (message.payload, message.sender)
        assert [] == await for_eve.fetch(timeout=0)
        (published,) = peer.published
        assert b"secret" not in published.payload
        assert receipt.id == published.id


async def test_a_recipient_may_be_given_in_hex() -> None:
    """As the command line prints it."""
    async with Peer() as peer, braidmq.connect(peer.url, private_key=ALICE) as client:
        await client.publish("orders", b"1", recipient=BOB.public_key.hex().upper())
        (published,) = peer.published

        assert b"1" == BOB.open(published.payload, ALICE.public_key)


@pytest.mark.parametrize(
    "recipient",
    [b"", bytes(32), BOB.public_key[:31], "", "xyz", with_sign_bit(BOB.public_key)],
)
async def test_an_invalid_recipient_key_is_refused(recipient: bytes | str) -> None:
    """Nothing is sent."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.KeyRefused):
            await client.publish("orders", b"1", recipient=recipient)
        with pytest.raises(braidmq.KeyRefused):
            await client.publish_many("orders", [b"1"], recipient=recipient)

        assert [] == peer.payloads()


async def test_a_sender_cannot_be_its_own_recipient() -> None:
    """The receiving side would refuse the message as reflected."""
    async with Peer() as peer, braidmq.connect(peer.url, private_key=ALICE) as client:
        with pytest.raises(braidmq.InvalidArgument, match="its own sender"):
            await client.publish("orders", b"1", recipient=ALICE.public_key)


async def test_an_envelope_needs_a_recipient() -> None:
    """An envelope exists only inside a sealed box."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.InvalidArgument, match="needs a recipient"):
            await client.publish("orders", b"1", envelope=True)


async def test_envelopes_are_numbered_across_all_publishes() -> None:
    """Whether they come from `publish` or `publish_many`, with a schema or without."""
    async with (
        Peer() as peer,
        braidmq.connect(peer.url, private_key=ALICE) as alice,
        braidmq.connect(peer.url, private_key=BOB) as bob,
        bob.subscribe("orders", envelope=True) as envelopes,
    ):
        key = BOB.public_key
        await alice.publish("orders", b"1", recipient=key, envelope=True)
        await alice.publish_many("orders", [b"2", b"3"], recipient=key, envelope=True)
        command = b'{"action": "on"}'
        await alice.publish(
            "orders", command, recipient=key, envelope=True, schema="control.Command"
        )
        seen = [await anext(envelopes) for _ in range(4)]

        assert [b"1", b"2", b"3", command] == [message.payload for message in seen]
        numbers = [one.sequence or 0 for one in seen if isinstance(one, QumbedMessage)]
        assert 4 == len(numbers)
        assert sorted(set(numbers)) == numbers
        assert {} == envelopes.refused


async def test_a_resent_publish_is_stored_once() -> None:
    """It keeps its id, and the broker drops the duplicate."""

    def store_and_die(line: Line, frame: Frame) -> None:
        peer.scripts.clear()
        peer.handle(line, frame)
        line.die()

    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(messages.PUBLISH, store_and_die)
        receipt = await client.publish("orders", b"1", retry=True)
        peer.script(messages.PUBLISH, store_and_die)
        many = await client.publish_many("orders", [b"2", b"3"], retry=True)

        assert receipt.repeated
        assert all(isinstance(one, braidmq.Receipt) for one in many)
        assert [b"1", b"2", b"3"] == peer.payloads()
        assert peer.count(messages.PUBLISH) > 3


@pytest.mark.parametrize("unknown", ["SERVER_ERROR", "lost"])
@pytest.mark.parametrize("then_busy", [False, True])
async def test_an_envelope_that_may_be_stored_is_sent_again_under_its_id(
    unknown: str, then_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new id would be a new message to the broker, which would store it twice."""
    monkeypatch.setattr(client_strand, "RETRY_DELAY_S", 0.001)

    def store_and_fail(line: Line, frame: Frame) -> None:
        (die if unknown == "lost" else peer.refusing(unknown))(line, frame)
        peer.handle(line, frame)  # its Ack comes too late
        if then_busy:  # which says nothing about the attempt before
            peer.once(messages.PUBLISH, peer.refusing("RATE_LIMIT"))

    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.once(messages.PUBLISH, store_and_fail)
        await client.publish(
            "orders", b"1", recipient=BOB.public_key, envelope=True, retry=True
        )
        sent = [frame.id for line in peer.lines for frame in line.of(messages.PUBLISH)]

        assert 1 == len(peer.published)
        assert [peer.published[0].id] * (3 if then_busy else 2) == sent


async def test_an_envelope_that_was_refused_is_sealed_afresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its number would soon be behind the receiver's replay window."""
    monkeypatch.setattr(client_strand, "RETRY_DELAY_S", 0.001)
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.once(messages.PUBLISH, peer.refusing("RATE_LIMIT"))
        await client.publish(
            "orders", b"1", recipient=BOB.public_key, envelope=True, retry=True
        )
        first, second = peer.lines[0].of(messages.PUBLISH)

        assert first.id != second.id
        assert [second.id] == [published.id for published in peer.published]


async def test_every_payload_is_validated_against_the_schema() -> None:
    """An invalid one is not sent; in `publish_many` its error keeps its place."""
    schemas = {"our.Number": {"type": "integer"}}
    async with Peer() as peer, braidmq.connect(peer.url, schemas=schemas) as client:
        with pytest.raises(braidmq.InvalidArgument, match=r"schema 'our.Number': \$ breaks"):
            await client.publish("orders", b'"1"', schema="our.Number")
        results = await client.publish_many("orders", [b"1", b"1.5", b"2"], schema="our.Number")

        assert [braidmq.Receipt, braidmq.NotSent, braidmq.Receipt] == [
            type(result) for result in results
        ]
        assert [b"1", b"2"] == peer.payloads()
        assert {"our.Number"} == {published.schema_id for published in peer.published}


async def test_an_answer_of_another_type_confirms_nothing() -> None:
    """Only an Ack confirms a publish."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.script(
            messages.PUBLISH,
            lambda line, frame: line.send(messages.discovery("n", (), b"", "")),
        )
        with pytest.raises(braidmq.OutcomeUnknown, match="not a confirmation"):
            await client.publish("orders", b"1")


async def test_the_gateway_key_is_known_while_connected() -> None:
    """It can be compared with the key that the broker printed."""
    async with Peer() as peer, braidmq.connect(peer.url, private_key=ALICE) as client:
        assert (ALICE.public_key, GATEWAY.public_key) == (
            client.public_key,
            client.gateway_public_key,
        )
        await client.close()
        assert b"" == client.gateway_public_key


async def test_features_that_qumbed_lacks_are_refused() -> None:
    """An option is never ignored silently."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        for attempt in (
            client.publish("orders", b"1", ttl=1.0),
            client.publish("orders", b"1", headers={}),
            client.publish("orders", b"1", priority=0),
            client.publish("orders", b"1", qos=0),
            client.publish_many("orders", [b"1"], qos=0),
            client.stats(),
            client.declare_queue("jobs"),
            client.queue_info("jobs"),
            client.list_queues(),
            client.delete_queue("jobs"),
        ):
            with pytest.raises(braidmq.NotSupported, match="qumbed does not support"):
                await attempt
        for options in (
            {"qos": 0},
            {"subscription_id": 1},
            {"on_gap": lambda gone, new: None},
        ):
            with pytest.raises(braidmq.NotSupported, match="qumbed does not support"):
                client.subscribe("orders", **options)


async def test_invalid_subscribe_arguments_are_refused() -> None:
    """Before the subscription connects."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.InvalidArgument, match="prefetch must be at least 1"):
            client.subscribe("orders", prefetch=0)
        with pytest.raises(braidmq.InvalidArgument, match="a topic has"):
            client.subscribe("")
        with pytest.raises(braidmq.InvalidArgument, match="lone surrogates"):
            client.subscribe("orders", schema="\ud800")

        assert 1 == len(peer.lines)


@pytest.mark.parametrize("form", ["pair", "bytes", "hex", "file", "other"])
async def test_a_private_key_is_accepted_in_many_forms(form: str, tmp_path: Path) -> None:
    """A key pair, 32 bytes, hex digits, the file that `keygen` writes, or a custom object."""

    class Safe:
        def reveal_private_key(self) -> bytes:
            return ALICE.reveal_private_key()

    raw = ALICE.reveal_private_key()
    file = tmp_path / "qumbed.key"
    file.touch(0o600)
    file.write_text(raw.hex() + "\n")
    forms: dict[str, KeyPair | bytes | str | Path | Safe] = {
        "pair": ALICE,
        "bytes": raw,
        "hex": raw.hex(),
        "file": file,
        "other": Safe(),
    }
    async with Peer() as peer, braidmq.connect(peer.url, private_key=forms[form]) as client:
        assert ALICE.public_key == client.public_key


async def test_without_a_private_key_a_new_one_is_generated() -> None:
    """It is enough to receive messages that the gateway seals."""
    async with (
        Peer() as peer,
        braidmq.connect(peer.url) as one,
        braidmq.connect(peer.url) as two,
        one.subscribe("orders") as messages_,
    ):
        assert one.public_key != two.public_key
        await two.publish("orders", b"1")
        assert (await anext(messages_)).sealed_by_gateway


@pytest.mark.parametrize("key", [b"short", "none", bytes(32), Path("nowhere")])
async def test_an_unusable_private_key_is_refused(key: bytes | str | Path) -> None:
    """Before the client connects."""
    with pytest.raises(braidmq.KeyRefused):
        await braidmq.connect("qumbed://127.0.0.1:1", private_key=key)


async def test_senders_are_learned_on_first_use(tmp_path: Path) -> None:
    """With a trust file, a topic's first sender is trusted and later ones are not."""
    trust = TrustList(first_use=tmp_path / "trust.json")
    async with (
        Peer() as peer,
        braidmq.connect(peer.url, private_key=BOB, trust=trust) as bob,
        braidmq.connect(peer.url, private_key=ALICE) as alice,
        braidmq.connect(peer.url, private_key=EVE) as eve,
        bob.subscribe("orders") as messages_,
    ):
        await alice.publish("orders", b"1", recipient=BOB.public_key)
        await eve.publish("orders", b"2", recipient=BOB.public_key)
        await alice.publish("orders", b"3", recipient=BOB.public_key)

        assert [b"1", b"3"] == [(await anext(messages_)).payload for _ in range(2)]
        assert {"untrusted": 1} == messages_.refused
        assert (ALICE.public_key,) == trust.learned("orders")


@pytest.mark.parametrize(
    "trust", [[], "no key", [b"short"], ALICE.public_key[:31]], ids=lambda one: repr(one)[:9]
)
async def test_an_unusable_trust_list_is_refused(trust: list[bytes] | str | bytes) -> None:
    """It is empty or holds an invalid key."""
    with pytest.raises(braidmq.InvalidArgument):
        await braidmq.connect("qumbed://127.0.0.1:1", trust=trust)


async def test_an_api_key_that_is_too_long_is_refused() -> None:
    """It must fit into a frame."""
    with pytest.raises(braidmq.InvalidArgument, match="an API key has at most"):
        await braidmq.connect("qumbed://h", key="k" * (API_KEY_BYTES_MAX + 1))


async def test_the_longest_api_key_is_sent_to_the_broker() -> None:
    """Even if JSON escapes make it longer."""
    async with Peer() as peer:
        with pytest.raises(braidmq.AuthenticationFailed):
            await braidmq.connect(peer.url, key="\n" * API_KEY_BYTES_MAX)


async def test_an_api_key_with_lone_surrogates_is_refused() -> None:
    """It cannot be encoded as UTF-8."""
    with pytest.raises(braidmq.InvalidArgument, match="lone surrogates"):
        await braidmq.connect("qumbed://h", key="\ud800")


async def test_a_tls_context_is_refused() -> None:
    """QUIC brings its own TLS."""
    with pytest.raises(braidmq.NotSupported, match="qumbed does not support tls"):
        await braidmq.connect("qumbed://h", tls=ssl.create_default_context())


async def test_two_ways_to_verify_a_broker_are_refused() -> None:
    """Before the client connects."""
    with pytest.raises(braidmq.InvalidArgument, match="use only one of"):
        await braidmq.connect(f"qumbed://h?fingerprint={64 * '0'}", insecure=True)


async def test_a_broker_with_another_fingerprint_is_not_connected_to() -> None:
    """The strand checks it whenever it opens a connection."""
    async with Peer() as peer:
        other = parse(peer.url.partition("?")[0] + f"?fingerprint={64 * '0'}")
        with pytest.raises(braidmq.ConnectionFailed, match="fingerprint"):
            await QumbedStrand(other, Options()).open()

        assert [] == peer.lines


async def test_a_slow_callback_does_not_delay_the_reconnect() -> None:
    """It runs in its own task."""
    called = asyncio.Event()
    released = asyncio.Event()

    async def slow(error: braidmq.ConnectionLost) -> None:
        called.set()
        await released.wait()

    options = quick(on_disconnect=slow)
    async with Peer() as peer, braidmq.connect(peer.url, **options) as client:
        peer.once(messages.PUBLISH, die)
        receipt = await client.publish("orders", b"1", retry=True)
        await called.wait()
        released.set()

        assert receipt.repeated
