"""Quotas over the real listeners: one greedy key is refused, the others go on.

Each way in is an adapter that publishes to topics of a given name with a given key, and returns
the text of the error, or "" once the message is stored.
"""

import http.client
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from braidmq.base.errors import BraidError
from braidmq.broker.quotas import refusal
from braidmq.broker.snapshots import ROWS_MAX
from braidmq.broker.topics import Topics
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkKey
from braidmq.server.engine.engine import Engine
from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import PATIENCE_S, broker_at, key_config, until
from tests.integration.flights import in_thread, rows
from tests.integration.qumbed import peer as qumbed
from tests.integration.vibe import peer as vibe

pytestmark = pytest.mark.asyncio

Publish = Callable[[str], Awaitable[str]]
Way = Callable[[RunningBroker, str], "AsyncIterator[Publish]"]

ROOM: Final = 5
KEYS: Final = {
    "keys": [
        {
            **key_config("low", "low-key", publish=["low.*"], subscribe=["low.*"]),
            "quotas": {
                "topics": ROOM,
                "queues": ROOM,
                "subscriptions": ROOM,
                "cursors": 2,
                "unfinished_bytes": 100_000,
            },
        },
        key_config("high", "high-key"),
    ]
}


async def by_blip(broker: RunningBroker, key: str) -> AsyncIterator[Publish]:
    """Blip: a NACK 500, or none before the PONG."""
    async with blip.connected(broker, key=key) as peer:

        async def publish(topic: str) -> str:
            peer.send(blip.publish(77, topic, b"new"), blip.ping(78))
            answer = await peer.next()
            if answer.kind == blip.PONG:
                return ""
            assert (blip.NACK, b"\x01\xf4") == (answer.kind, answer.payload[:2])
            await peer.expect(blip.pong(78))
            return answer.payload[4:].decode()

        yield publish


async def by_vibe(broker: RunningBroker, key: str) -> AsyncIterator[Publish]:
    """Vibe: an Error SERVER_ERROR; the queue would be made by the Publish."""
    async with vibe.connected(broker, headers=(("authToken", key),)) as peer:

        async def publish(topic: str) -> str:
            answer = await peer.ask(vibe.PUBLISH, topic, b"1", {})
            assert answer.error_code in {"", "SERVER_ERROR"}
            return answer.error_message

        yield publish


async def by_qumbed(broker: RunningBroker, key: str) -> AsyncIterator[Publish]:
    """Qumbed: an Error SERVER_ERROR."""
    async with qumbed.connected(broker) as peer:
        stream = peer.open()

        async def publish(topic: str) -> str:
            answer = await stream.ask(qumbed.publish(topic, b"new", frame_id=topic, key=key))
            if answer["t"] == qumbed.ACK:
                return ""
            assert "SERVER_ERROR" == answer["e"]["code"]
            return str(answer["e"]["message"])

        yield publish


async def by_http(broker: RunningBroker, key: str) -> AsyncIterator[Publish]:
    """HTTP: 403."""

    async def publish(topic: str) -> str:
        path = f"/api/topics/{topic}/messages"
        status, answer = await in_thread(asked, broker, key, "POST", path, {"payload": 1})
        assert status in {201, 403}
        return str(answer.get("error", ""))

    yield publish


async def by_sink(broker: RunningBroker, key: str) -> AsyncIterator[Publish]:
    """The Spark sink: the batch is refused as a whole."""
    endpoint = Endpoint(broker.endpoint, key)

    async def publish(topic: str) -> str:
        (batch,) = rows(topic)
        stage = await in_thread(endpoint.stage, None, batch.schema, [batch])
        try:
            await in_thread(endpoint.commit, SinkKey(topic, "", 0), [stage.id])
        except BraidError as error:
            return str(error)
        return ""

    yield publish
    endpoint.close()


WAYS: Final = [by_blip, by_vibe, by_qumbed, by_http, by_sink]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def asked(
    broker: RunningBroker, key: str, method: str, path: str, body: object = None
) -> tuple[int, dict[str, Any]]:
    """Send a request; return status and answer."""
    connection = http.client.HTTPConnection(*broker.address("http"), timeout=PATIENCE_S)
    try:
        sent = {"Authorization": f"Bearer {key}"}
        data = None if body is None else json.dumps(body)
        connection.request(method, path, body=data, headers=sent)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def topics_of(broker: RunningBroker) -> Topics:
    engine = broker.daemon.status.engine
    assert engine is not None
    return engine.broker.topics


def engine_of(broker: RunningBroker) -> Engine:
    engine = broker.daemon.status.engine
    assert engine is not None
    return engine


def running(directory: Path, keys: Any = None) -> Any:  # noqa: ANN401 - a context manager
    return broker_at(directory, auth=keys or KEYS, qumbed={"auth": "key"}, flight={})


@asynccontextmanager
async def opened(way: Way, broker: RunningBroker, key: str) -> AsyncIterator[Publish]:
    """Run an adapter."""
    adapter = way(broker, key)
    yield await anext(adapter)
    async for _ in adapter:
        raise AssertionError("an adapter yields once")


@every_way
async def test_a_key_that_invents_names_is_refused_and_others_go_on(
    tmp_path: Path, way: Way
) -> None:
    """Also after a restart, from a snapshot or from the log alone; old names still work."""
    async with running(tmp_path) as broker:
        async with opened(way, broker, "low-key") as publish:
            first = [await publish(f"low.{n}") for n in range(ROOM + 3)]
        async with opened(way, broker, "high-key") as publish:
            others = [await publish(f"high.{n}") for n in range(ROOM + 3)]
        names = [topic.name for topic in topics_of(broker).all()]
    async with running(tmp_path) as broker, opened(way, broker, "low-key") as publish:
        from_snapshot = [await publish("low.0"), await publish("low.x")]
    shutil.rmtree(tmp_path / "snapshot")
    async with running(tmp_path) as broker, opened(way, broker, "low-key") as publish:
        from_log = [await publish("low.0"), await publish("low.x")]

    quota = "queues" if way is by_vibe else "topics"
    text = refusal(quota, ROOM, "low")
    told = f"publish failed: {text}" if way is by_blip else text
    assert [""] * ROOM + [told] * 3 == first
    assert [""] * (ROOM + 3) == others
    assert 2 * ROOM + 3 == len([name for name in names if not name.startswith("dlq.")])
    assert [["", told]] * 2 == [from_snapshot, from_log]


@every_way
async def test_the_bytes_of_names_are_counted_on_every_way_in(tmp_path: Path, way: Way) -> None:
    """A long name is refused where a short one still fits; a restart counts the same."""
    low = {**KEYS["keys"][0], "quotas": {"topic_name_bytes": 100}}
    keys = {"keys": [low, KEYS["keys"][1]]}
    long = f"low.{'x' * 93}"
    told, used = [], 0
    for _ in range(2):
        async with running(tmp_path, keys) as broker:
            async with opened(way, broker, "low-key") as publish:
                told.append([await publish(name) for name in ("low.1", long, "low.2")])
            used = topics_of(broker).accounts.of("low").used("topic_name_bytes")
    async with running(tmp_path, keys) as broker, opened(way, broker, "high-key") as publish:
        others = [await publish(long), await publish("h" * 200)]

    text = refusal("topic_name_bytes", 100, "low")
    assert [["", f"publish failed: {text}" if way is by_blip else text, ""]] * 2 == told
    assert (["", ""], len("low.1low.2")) == (others, used)


async def test_a_batch_of_rows_is_refused_before_it_stops_others(tmp_path: Path) -> None:
    """Its intent would wait for the quota, and no other batch could begin."""
    async with running(tmp_path) as broker:
        low, high = (Endpoint(broker.endpoint, key) for key in ("low-key", "high-key"))
        (batch,) = rows(*(f"low.{n}" for n in range(ROOM + 1)))
        stage = await in_thread(low.stage, None, batch.schema, [batch])
        with pytest.raises(BraidError, match="quota topics = 5 of 'low'"):
            await in_thread(low.commit, SinkKey("q", "", 0), [stage.id])
        (fitting,) = rows(*2 * [f"low.{n}" for n in range(ROOM)])
        stage = await in_thread(low.stage, None, fitting.schema, [fitting])
        await in_thread(low.commit, SinkKey("q", "", 0), [stage.id])
        (other,) = rows("high.1")
        stage = await in_thread(high.stage, None, other.schema, [other])
        await in_thread(high.commit, SinkKey("r", "", 0), [stage.id])
        low.close()
        high.close()


async def test_subscriptions_are_counted_over_both_strands_that_have_them(
    tmp_path: Path,
) -> None:
    """Ending one makes room; another key has its own quota; a restart forgets nothing."""
    async with running(tmp_path) as broker:
        async with blip.connected(broker, key="low-key") as peer:
            for number in range(ROOM - 1):
                await peer.subscribe(f"low.{number}")
            async with qumbed.connected(broker) as follower:
                stream = follower.open()
                key = qumbed.public(qumbed.ALICE)
                assert (
                    qumbed.ACK
                    == (await stream.ask(qumbed.subscribe("low.q", key, key="low-key")))["t"]
                )
                again = await stream.ask(qumbed.subscribe("low.q", key, frame_id="2"))
                assert qumbed.ACK == again["t"]  # it replaces the first
                refused = await stream.ask(qumbed.subscribe("low.0", key, frame_id="3"))
                peer.send(blip.subscribe(7, "low.0"))
                text = f"subscribe failed: {refusal('subscriptions', ROOM, 'low')}"
                await peer.expect(blip.nack(7, 500, text))
            account = topics_of(broker).accounts.of("low")
            await until(lambda: account.used("subscriptions") < ROOM)
            await peer.subscribe("low.1")
        async with blip.connected(broker, key="high-key") as peer:
            await peer.subscribe("high.1")
    assert refusal("subscriptions", ROOM, "low") == refused["e"]["message"]
    async with running(tmp_path) as broker, blip.connected(broker, key="low-key") as peer:
        peer.send(blip.subscribe(7, "low.0"))
        await peer.expect(blip.nack(7, 500, text))


async def test_cursors_are_counted_per_principal(tmp_path: Path) -> None:
    """One key cannot take the places of all others; removing one makes room."""
    async with running(tmp_path) as broker:
        low, high = (Endpoint(broker.endpoint, key) for key in ("low-key", "high-key"))
        for name in ("a", "b"):
            await in_thread(low.open_cursor, name)
        with pytest.raises(BraidError, match="quota cursors = 2 of 'low' is used up"):
            await in_thread(low.open_cursor, "c")
        await in_thread(high.open_cursor, "c")
        await in_thread(low.remove_cursor, "a")
        await in_thread(low.open_cursor, "d")
        low.close()
        high.close()


async def test_queries_of_the_sink_are_counted_per_principal(tmp_path: Path) -> None:
    """The one too many is refused by name; those that are there go on, after a restart too."""
    quotas = {"sink_queries": 2}

    async def committed(broker: RunningBroker, key: str, query: str, batch: int) -> str:
        endpoint = Endpoint(broker.endpoint, key)
        try:
            await in_thread(endpoint.commit, SinkKey(query, "", batch), [])
        except BraidError as error:
            return str(error)
        finally:
            endpoint.close()
        return ""

    async with broker_at(tmp_path, auth=KEYS, quotas=quotas, flight={}) as broker:
        answers = [await committed(broker, "low-key", query, 1) for query in "abc"]
        other = await committed(broker, "high-key", "d", 1)
    async with broker_at(tmp_path, auth=KEYS, quotas=quotas, flight={}) as broker:
        again = [await committed(broker, "low-key", query, 2) for query in "abc"]
        used = topics_of(broker).accounts.of("low").used("sink_queries")

    assert ["", ""] == answers[:2] == again[:2]
    assert refusal("sink_queries", 2, "low") in answers[2]
    assert answers[2] == again[2]
    assert ("", 2) == (other, used)


async def test_dedup_ids_of_one_principal_make_the_broker_forget_none_of_another(
    tmp_path: Path,
) -> None:
    """Over restarts too; nothing is refused, and the greedy one forgets its own early."""
    ids = [str(number) for number in range(20)]
    token = "authToken"
    async with running(tmp_path) as broker:
        engine_of(broker).broker.dedup.room = 60
        async with (
            vibe.connected(broker, headers=((token, "high-key"),)) as high,
            vibe.connected(broker, headers=((token, "low-key"),)) as low,
        ):
            for dedup_id in ids:
                await high.publish("mine", b"1", dedupId=dedup_id)
            for number in range(200):
                await low.publish(f"low.{number % 4}", b"1", dedupId=f"x{number}")
            for dedup_id in ids:
                await high.publish("mine", b"1", dedupId=dedup_id)
            await low.publish("low.0", b"1", dedupId="x0")
            counts = [await high.counts("mine"), await low.counts("low.0")]
        remembered = len(engine_of(broker).broker.dedup)

    assert [(20, 0), (51, 0)] == counts
    assert 60 == remembered


async def test_use_and_limits_are_shown(tmp_path: Path) -> None:
    """One's own, or all of them for an administrator; refusals are a metric by quota."""
    async with running(tmp_path) as broker:
        async with opened(by_http, broker, "low-key") as publish:
            for number in range(ROOM + 1):
                await publish(f"low.{number}")
        own, every = [
            (await in_thread(asked, broker, key, "GET", "/api/quotas"))[1]["principals"]
            for key in ("low-key", "dev-key")
        ]
        metrics = broker.daemon.status.metrics()

    assert ["low"] == [row["principal"] for row in own]
    assert {"used": ROOM, "limit": ROOM} == own[0]["quotas"]["topics"]
    assert {"used": 5 * ROOM, "limit": 16 * 1024 * 1024} == own[0]["quotas"]["topic_name_bytes"]
    assert ["dev", "high", "low"] == [row["principal"] for row in every]
    assert 1 == metrics.quota_refusals["topics"]


async def test_dead_letters_are_charged_to_the_owner_of_the_queue(tmp_path: Path) -> None:
    """And never refused: a queue's dead letters are not stuck because of a quota."""
    async with running(tmp_path) as broker:
        async with vibe.connected(broker, headers=(("authToken", "low-key"),)) as peer:
            for number in range(ROOM):
                await peer.publish(f"low.{number}", b"1")
            await peer.subscribe("low.0")
            delivered = await peer.delivered()
            peer.ack(delivered.id, result="reject")
            assert vibe.PONG == (await peer.ask(vibe.PING)).kind
        account = topics_of(broker).accounts.of("low")

        assert (ROOM + 1, ROOM + 1) == (account.used("topics"), account.used("queues"))


# Topics that are gone.


async def test_a_publisher_that_knew_a_deleted_topic_reaches_the_new_one(
    tmp_path: Path,
) -> None:
    """On both strands that remember topics; consumers of the new one get the message."""
    async with (
        running(tmp_path) as broker,
        blip.connected(broker, key="high-key") as peer,
        qumbed.connected(broker) as qumbed_peer,
    ):
        stream = qumbed_peer.open()
        frame = qumbed.publish("t", b"1", frame_id="1", key="high-key")
        assert qumbed.ACK == (await stream.ask(frame))["t"]
        peer.send(blip.publish(1, "t", b"old"), blip.ping(2))
        await peer.expect(blip.pong(2))
        status, _ = await in_thread(asked, broker, "dev-key", "DELETE", "/api/topics/t")
        subscription = await peer.subscribe("t")
        peer.send(blip.publish(3, "t", b"new"), blip.ping(4))
        await peer.expect(blip.pong(4))
        await stream.ask(qumbed.publish("t", b"newer", frame_id="2", key="high-key"))
        topic = topics_of(broker).find("t")
        assert topic is not None
        counted = (status, topic.message_count, len(topic.subscriptions))
        del subscription
    async with running(tmp_path) as broker:
        found = topics_of(broker).find("t")

    assert (200, 2, 1) == counted
    assert found is not None
    assert 2 == found.message_count


async def test_retention_lets_topics_be_forgotten(tmp_path: Path) -> None:
    """When their messages are gone from the log: names and quota come back by themselves."""
    clock = FakeClock()
    wal = {"segment_bytes": 64 * 1024, "retention_bytes": 1}
    async with broker_at(tmp_path, clock, auth=KEYS, wal=wal) as broker:
        engine = engine_of(broker)
        account = topics_of(broker).accounts.of("low")
        async with blip.connected(broker, key="low-key") as peer:
            for number in range(ROOM):
                peer.send(blip.publish(number, f"low.{number}", bytes(70_000)), blip.ping(9))
                await peer.expect(blip.pong(9))
            used = account.used("topics")
            for _ in range(2):  # retention keeps what the older of two snapshots needs
                peer.send(blip.publish(7, "low.0", b"more"), blip.ping(9))
                await peer.expect(blip.pong(9))
                engine.take_snapshot()
                await until(engine.is_committed)
            await until(lambda: topics_of(broker).floor_id > ROOM)
            for _ in range(3):
                clock.advance(61)
                engine.tick()
            peer.send(blip.publish(8, "low.new", b"x"), blip.ping(9))
            await peer.expect(blip.pong(9))

    assert ROOM == used
    assert ["low.0", "low.new"] == [topic.name for topic in topics_of(broker).all()]


async def test_topics_that_are_forgotten_while_a_snapshot_is_taken_stay_so(
    tmp_path: Path,
) -> None:
    """Those that it had already come back idle, and are forgotten again; the quota is right.

    One that another principal has made again meanwhile is that principal's.
    """
    clock = FakeClock()
    directory, crashed = tmp_path / "one", tmp_path / "two"

    def pass_idle(engine: Engine) -> None:
        for seconds in (61, 2, 2):  # each turn of maintenance looks at a part of them
            clock.advance(seconds)
            engine.tick()

    async with broker_at(directory, clock, auth=KEYS) as broker:
        engine, topics = engine_of(broker), topics_of(broker)
        async with blip.connected(broker, key="high-key") as peer:
            peer.send(blip.publish(1, "kept", b"x"), blip.ping(2))
            await peer.expect(blip.pong(2))
            for number in range(ROWS_MAX + 500):
                topics.make(f"low.{number}", topics.accounts.of("low"))
            pass_idle(engine)
            engine.take_snapshot()  # its first turn; the next ones follow other events
            pass_idle(engine)
            pass_idle(engine)
            left_behind = len(topics)
            peer.send(blip.publish(3, "low.7", b"x"), blip.ping(4))
            await peer.expect(blip.pong(4))
            await until(lambda: any((directory / "snapshot").glob("*.snap")))
            shutil.copytree(directory, crashed)
    async with broker_at(crashed, clock, auth=KEYS) as broker:
        engine, topics = engine_of(broker), topics_of(broker)
        low, high = topics.accounts.of("low"), topics.accounts.of("high")
        found = (len(topics), low.used("topics"), high.used("topics"))
        for _ in range(3):
            pass_idle(engine)
        left = sorted(topic.name for topic in topics.all())

        assert 1 == left_behind
        assert (ROWS_MAX, ROWS_MAX - 2, 2) == found
        assert (["kept", "low.7"], 0) == (left, low.used("topics"))
