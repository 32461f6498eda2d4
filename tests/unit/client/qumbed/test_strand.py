"""The client over the Qumbed strand: publishing, keys, what it lacks."""

import asyncio
import ssl
from pathlib import Path

import pytest

import braidmq
from braidmq.client import strand
from braidmq.client.options import Options
from braidmq.client.qumbed import KeyPair, TrustList
from braidmq.client.qumbed.strand import API_KEY_BYTES_MAX, QumbedStrand
from braidmq.client.qumbed.subscription import QumbedMessage
from braidmq.client.url import parse
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.messages import Frame, Publish
from tests.unit.client.peer import die, quick
from tests.unit.client.qumbed.peer import GATEWAY, Line, Peer, refusing
from tests.unit.client.qumbed.people import ALICE, BOB, EVE, with_sign_bit

pytestmark = pytest.mark.asyncio


async def test_a_sealed_message_reaches_its_recipient_only() -> None:
    """It is routed by the recipient's key; the receipt says to how many."""
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


async def test_a_recipient_may_be_given_in_hexadecimal_digits() -> None:
    """As the command line prints it."""
    async with Peer() as peer, braidmq.connect(peer.url, private_key=ALICE) as client:
        await client.publish("orders", b"1", recipient=BOB.public_key.hex().upper())
        (published,) = peer.published

        assert b"1" == BOB.open(published.payload, ALICE.public_key)


@pytest.mark.parametrize(
    "recipient",
    [b"", bytes(32), BOB.public_key[:31], "", "xyz", with_sign_bit(BOB.public_key)],
)
async def test_what_is_no_public_key_is_refused(recipient: bytes | str) -> None:
    """Nothing is sent that somebody else could read."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.KeyRefused):
            await client.publish("orders", b"1", recipient=recipient)
        with pytest.raises(braidmq.KeyRefused):
            await client.publish_many("orders", [b"1"], recipient=recipient)

        assert [] == peer.payloads()


async def test_nobody_writes_to_oneself() -> None:
    """It would be refused as one's own message that comes back."""
    async with Peer() as peer, braidmq.connect(peer.url, private_key=ALICE) as client:
        with pytest.raises(braidmq.InvalidArgument, match="its own sender"):
            await client.publish("orders", b"1", recipient=ALICE.public_key)


async def test_an_envelope_needs_a_recipient() -> None:
    """It lies in a box."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.InvalidArgument, match="needs a recipient"):
            await client.publish("orders", b"1", envelope=True)


async def test_envelopes_are_numbered_over_all_publishes() -> None:
    """Topic and schema are those that they were published with."""
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


async def test_a_publish_that_is_sent_again_is_stored_once() -> None:
    """It has the id that it had, and the broker remembers."""

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


async def test_ids_differ_between_clients() -> None:
    """Without a sender's key they are all that tells messages apart."""
    async with (
        Peer() as peer,
        braidmq.connect(peer.url) as one,
        braidmq.connect(peer.url) as two,
    ):
        ids = {(await client.publish("orders", b"1")).id for client in (one, two) for _ in "ab"}

        assert 4 == len(ids)
        assert 4 == len(peer.published)


async def test_a_schema_is_held_against_every_payload() -> None:
    """One that breaks it is not sent; in `publish_many` it keeps its place."""
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


async def test_a_refused_publish_says_why_and_disturbs_no_other() -> None:
    """Two publishes share a write; one is refused."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.once(messages.PUBLISH, refusing("SCHEMA_UNKNOWN", "unknown schema: x"))
        refused, accepted = await asyncio.gather(
            client.publish("orders", b"1", schema="x"),
            client.publish("orders", b"2"),
            return_exceptions=True,
        )

        assert isinstance(refused, braidmq.PublishRefused)
        assert not isinstance(refused, braidmq.OutcomeUnknown)
        assert ("SCHEMA_UNKNOWN", "unknown schema: x") == (refused.code, refused.text)
        assert isinstance(accepted, braidmq.Receipt)


@pytest.mark.parametrize("code", ["SERVER_ERROR", "RATE_LIMIT"])
async def test_retry_repeats_what_may_go_well_later(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same id."""
    monkeypatch.setattr(strand, "RETRY_DELAY_S", 0.001)
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.once(messages.PUBLISH, refusing(code))
        receipt = await client.publish("orders", b"1", retry=True)
        ids = [frame.id for frame in peer.lines[0].of(messages.PUBLISH)]

        assert receipt.repeated
        assert [receipt.id] * 2 == ids


async def test_retry_does_not_repeat_what_the_broker_forbids() -> None:
    """It would be forbidden again."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.refuse(messages.PUBLISH, "UNAUTHORIZED")
        with pytest.raises(braidmq.PublishRefused):
            await client.publish("orders", b"1", retry=True)

        assert 1 == peer.count(messages.PUBLISH)


async def test_what_was_answered_before_the_break_is_known() -> None:
    """Of one pipeline, the confirmed stay confirmed and the rest is in doubt."""

    def last_words(line: Line, frame: Publish) -> None:
        if frame.payload == b"2":
            line.hang_up()
        else:
            line.send(messages.ack(frame.id, 0))

    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(messages.PUBLISH, last_words)
        results = await client.publish_many("orders", [b"1", b"2", b"3"])
        peer.scripts.clear()

        assert isinstance(results[0], braidmq.Receipt)
        assert isinstance(results[1], braidmq.OutcomeUnknown)


async def test_an_answer_of_another_type_confirms_nothing() -> None:
    """Only an Ack is one."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.script(
            messages.PUBLISH,
            lambda line, frame: line.send(messages.discovery("n", (), b"", "")),
        )
        with pytest.raises(braidmq.OutcomeUnknown, match="not a confirmation"):
            await client.publish("orders", b"1")


async def test_the_gateways_key_is_known_while_connected() -> None:
    """So that it can be compared with what the broker printed."""
    async with Peer() as peer, braidmq.connect(peer.url, private_key=ALICE) as client:
        assert (ALICE.public_key, GATEWAY.public_key) == (
            client.public_key,
            client.gateway_public_key,
        )
        await client.close()
        assert b"" == client.gateway_public_key


async def test_what_qumbed_lacks_is_named() -> None:
    """An option that would be ignored is refused instead."""
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


async def test_what_cannot_be_subscribed_to_is_refused() -> None:
    """Before anything is connected."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.InvalidArgument, match="prefetch must be at least 1"):
            client.subscribe("orders", prefetch=0)
        with pytest.raises(braidmq.InvalidArgument, match="a topic has"):
            client.subscribe("")
        with pytest.raises(braidmq.InvalidArgument, match="lone surrogates"):
            client.subscribe("orders", schema="\ud800")

        assert 1 == len(peer.lines)


@pytest.mark.parametrize("form", ["pair", "bytes", "hex", "file", "other"])
async def test_a_private_key_comes_in_many_forms(form: str, tmp_path: Path) -> None:
    """A key pair, 32 bytes, hexadecimal digits, or the file that `keygen` writes."""

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


async def test_without_a_key_there_is_a_new_one() -> None:
    """Nobody else has it, and it is enough for what the gateway seals."""
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
async def test_a_private_key_that_cannot_be_used_is_refused(key: bytes | str | Path) -> None:
    """When it is connected, and without repeating it."""
    with pytest.raises(braidmq.KeyRefused):
        await braidmq.connect("qumbed://127.0.0.1:1", private_key=key)


async def test_senders_are_learned_on_first_use(tmp_path: Path) -> None:
    """With a trust list that keeps a file, the first sender of a topic is the one."""
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
    "trust", [[], "nobody", [b"short"], ALICE.public_key[:31]], ids=lambda one: repr(one)[:9]
)
async def test_a_trust_that_cannot_be_used_is_refused(trust: list[bytes] | str | bytes) -> None:
    """A list of nobody would be a mistake, and a key that is none too."""
    with pytest.raises(braidmq.InvalidArgument):
        await braidmq.connect("qumbed://127.0.0.1:1", trust=trust)


async def test_a_key_of_any_length_is_not_sent() -> None:
    """It has to fit into a frame."""
    with pytest.raises(braidmq.InvalidArgument, match="an API key has at most"):
        await braidmq.connect("qumbed://h", key="k" * (API_KEY_BYTES_MAX + 1))


async def test_a_key_that_fits_is_judged_by_the_broker() -> None:
    """However long it looks as JSON."""
    async with Peer() as peer:
        with pytest.raises(braidmq.AuthenticationFailed):
            await braidmq.connect(peer.url, key="\n" * API_KEY_BYTES_MAX)


async def test_a_key_with_lone_surrogates_is_refused() -> None:
    """It has no bytes to be sent as."""
    with pytest.raises(braidmq.InvalidArgument, match="lone surrogates"):
        await braidmq.connect("qumbed://h", key="\ud800")


async def test_a_tls_context_is_of_other_strands() -> None:
    """QUIC brings its own TLS."""
    with pytest.raises(braidmq.NotSupported, match="qumbed does not support tls"):
        await braidmq.connect("qumbed://h", tls=ssl.create_default_context())


async def test_two_ways_to_know_a_broker_are_one_too_many() -> None:
    """Told before anything is connected."""
    with pytest.raises(braidmq.InvalidArgument, match="use only one of"):
        await braidmq.connect(f"qumbed://h?fingerprint={64 * '0'}", insecure=True)


async def test_another_broker_in_the_place_of_ours_is_not_connected_to() -> None:
    """Also when a connection is made again."""
    async with Peer() as peer:
        other = parse(peer.url.partition("?")[0] + f"?fingerprint={64 * '0'}")
        with pytest.raises(braidmq.ConnectionFailed, match="fingerprint"):
            await QumbedStrand(other, Options()).open()

        assert [] == peer.lines


async def test_a_callback_that_takes_its_time_delays_no_reconnect() -> None:
    """It runs in a turn of its own."""
    told = asyncio.Event()
    never = asyncio.Event()

    async def slow(error: braidmq.ConnectionLost) -> None:
        told.set()
        await never.wait()

    options = quick(on_disconnect=slow)
    async with Peer() as peer, braidmq.connect(peer.url, **options) as client:
        peer.once(messages.PUBLISH, die)
        receipt = await client.publish("orders", b"1", retry=True)
        await told.wait()
        never.set()

        assert receipt.repeated
