"""Authentication (none, key and mtls) and permissions, on one stream and on several."""

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest
import trustme

import braidmq
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at, key_config, until
from tests.integration.qumbed.peer import (
    ALICE,
    Peer,
    ack,
    connected,
    discovery,
    opened,
    public,
    publish,
    raw,
    subscribe,
    unsubscribe,
)

pytestmark = pytest.mark.asyncio

KEYS: Final = {
    "keys": [
        key_config("all", "good-key"),
        key_config("some", "some-key", publish=["open.*"], subscribe=["open.*", "news"]),
    ]
}


def broker_with_keys() -> AbstractAsyncContextManager[RunningBroker]:
    return broker_at(qumbed={"auth": "key"}, auth=KEYS)


async def test_no_key_is_needed_in_development(peer: Peer) -> None:
    """qumbed.auth = "none" is the default there; the broker ignores any key."""
    stream = peer.open()

    assert ack("1", 0) == await stream.ask(publish("t", b"1"))
    assert ack("2", 0) == await peer.open().ask(publish("t", b"1", key="whatever"))


async def test_a_key_on_the_first_frame_is_enough() -> None:
    """`k` on each stream's first frame; the broker ignores it on later ones."""
    async with broker_with_keys() as broker, connected(broker) as peer:
        one, two = peer.open(), peer.open()
        assert ack() == await one.ask(subscribe("t", public(ALICE), key="good-key"))
        assert ack("1", 1) == await one.ask(publish("t", b"1"))
        assert ack("2", 1) == await one.ask(publish("t", b"2", key="wrong"))
        assert ack("3", 1) == await two.ask(publish("t", b"3", key="good-key"))
        assert ack("4", 1) == await two.ask(publish("t", b"4"))
        assert [b"1", b"2", b"3", b"4"] == [
            opened(await one.message(), ALICE) for _ in range(4)
        ]


async def test_the_dev_key_is_accepted_in_development() -> None:
    """As well as the configured keys."""
    async with broker_with_keys() as broker, connected(broker) as peer:
        assert ack("1", 0) == await peer.open().ask(publish("t", b"1", key="dev-key"))


@pytest.mark.parametrize("key", ["", "wrong", "good-key "])
@pytest.mark.parametrize(
    "request_of",
    [
        lambda key: publish("t", b"1", frame_id="x", key=key),
        lambda key: subscribe("t", public(ALICE), frame_id="x", key=key),
        lambda key: unsubscribe("t", frame_id="x", key=key),
        lambda key: discovery(frame_id="x", key=key),
    ],
    ids=["publish", "subscribe", "unsubscribe", "discovery"],
)
async def test_a_wrong_key_closes_the_connection(request_of: object, key: str) -> None:
    """After the UNAUTHORIZED; the broker handles none of the frames behind it."""
    assert callable(request_of)
    async with broker_with_keys() as broker, connected(broker) as peer:
        stream = peer.open()
        stream.send(request_of(key), publish("t", b"1", key="good-key"))
        await stream.expect_error("UNAUTHORIZED", "x")
        await peer.expect_close()

        assert b"" == bytes(stream.buffer)
        assert (1, "UNAUTHORIZED") == (peer.close_code, peer.close_reason)
        assert 0 == broker.daemon.status.metrics().messages_published
        assert 1 == broker.daemon.status.metrics().authentication_failures["qumbed"]
        refused = broker.daemon.status.listeners[-1].refused
        await until(lambda: refused == {"unauthenticated": 1})


async def test_a_wrong_key_on_one_stream_closes_all_streams_of_the_connection() -> None:
    """Publishes that were acknowledged before stay; other connections continue."""
    async with (
        broker_with_keys() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        right, wrong, stays = peer.open(), peer.open(), other.open()
        await stays.publish("t", b"0", key="good-key")
        assert "2" == (await right.publish("t", b"1", key="good-key"))["message_id"]
        wrong.send(publish("t", b"2"))
        await wrong.expect_error("UNAUTHORIZED")
        await peer.expect_close()

        assert "3" == (await stays.publish("t", b"3"))["message_id"]


async def test_a_malformed_first_frame_closes_only_its_stream() -> None:
    """It is a BAD_FRAME, not a wrong key."""
    async with broker_with_keys() as broker, connected(broker) as peer:
        stream = peer.open()
        stream.send(raw(b"{"))
        await stream.expect_error("BAD_FRAME")
        await stream.expect_end()

        assert ack("1", 0) == await peer.open().ask(publish("t", b"1", key="good-key"))


async def test_a_forbidden_topic_is_refused_and_the_stream_stays_open() -> None:
    """UNAUTHORIZED for a topic that the key may not use; the connection stays open."""
    async with broker_with_keys() as broker, connected(broker) as peer:
        one, two = peer.open(), peer.open()
        one.send(publish("closed", b"1", frame_id="x", key="some-key"))
        await one.expect_error("UNAUTHORIZED", "x")
        one.send(publish("news", b"1"), subscribe("closed", public(ALICE), frame_id="y"))
        await one.expect_error("UNAUTHORIZED")
        await one.expect_error("UNAUTHORIZED", "y")
        assert ack() == await one.ask(subscribe("news", public(ALICE)))
        assert ack("1", 0) == await one.ask(publish("open.a", b"1"))
        assert ack("2", 1) == await two.ask(publish("news", b"2", key="good-key"))

        assert b"2" == opened(await one.message(), ALICE)


class Authority:
    """A certificate authority that issues certificates as files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def identity(self, name: str, *, not_after: datetime | None = None) -> tuple[Path, Path]:
        """Return a certificate with that common name, and its key."""
        made = self._ca.issue_cert("client.example", common_name=name, not_after=not_after)
        chain, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return chain, key


def broker_with_mtls(
    authority: Authority,
) -> AbstractAsyncContextManager[RunningBroker]:
    return broker_at(
        qumbed={"auth": "mtls", "tls_ca": authority.file},
        auth={"keys": [key_config("ada", "good-key", publish=["open.*"])]},
    )


async def _assert_refused(broker: RunningBroker, peer: Peer) -> None:
    stream = peer.open()
    stream.send(publish("open.a", b"1", frame_id="x", key="good-key"))
    await stream.expect_error("UNAUTHORIZED", "x")
    await peer.expect_close()

    assert 0 == broker.daemon.status.metrics().messages_published


async def test_a_certificate_names_the_principal(tmp_path: Path) -> None:
    """mtls: the common name selects the key entry, whose permissions apply."""
    authority = Authority(tmp_path)
    async with (
        broker_with_mtls(authority) as broker,
        connected(broker, identity=authority.identity("ada")) as peer,
    ):
        for number in (1, 2):
            stream = peer.open()
            assert ack(str(number), 0) == await stream.ask(publish("open.a", b"1"))
            stream.send(publish("closed", b"1"))
            await stream.expect_error("UNAUTHORIZED")


async def test_a_connection_without_a_certificate_is_refused(tmp_path: Path) -> None:
    """Even with a valid key."""
    authority = Authority(tmp_path)
    async with (
        broker_with_mtls(authority) as broker,
        connected(broker) as peer,
    ):
        await _assert_refused(broker, peer)


async def test_a_certificate_with_an_unknown_name_is_refused(tmp_path: Path) -> None:
    """No key entry has that name."""
    authority = Authority(tmp_path)
    async with (
        broker_with_mtls(authority) as broker,
        connected(broker, identity=authority.identity("bob")) as peer,
    ):
        await _assert_refused(broker, peer)


async def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    """It has the right name and issuer, but its time is over."""
    authority = Authority(tmp_path)
    expired = authority.identity("ada", not_after=datetime(2001, 1, 1))  # noqa: DTZ001 - as trustme takes it
    async with (
        broker_with_mtls(authority) as broker,
        connected(broker, identity=expired) as peer,
    ):
        await _assert_refused(broker, peer)


async def test_a_certificate_of_an_untrusted_authority_is_refused(tmp_path: Path) -> None:
    """It has the right name, but tls_ca did not issue it."""
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    async with (
        broker_with_mtls(authority) as broker,
        connected(broker, identity=other.identity("ada")) as peer,
    ):
        await _assert_refused(broker, peer)


async def test_our_client_presents_its_certificate(tmp_path: Path) -> None:
    """`certificate=` authenticates it; without one the broker refuses the connection."""
    authority = Authority(tmp_path)
    async with broker_with_mtls(authority) as broker:
        url = broker.url("qumbed")
        mine = authority.identity("ada")
        async with braidmq.connect(url, certificate=mine) as client:
            assert (await client.publish("open.a", b"1")).durable
        with pytest.raises(braidmq.AuthenticationFailed):
            await braidmq.connect(url)
        with pytest.raises(braidmq.InvalidArgument, match="certificate"):
            await braidmq.connect(url, certificate=(mine[1], mine[0]))
