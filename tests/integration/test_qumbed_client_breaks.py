"""The client library over Qumbed when the broker or the network fails and recovers."""

import asyncio
import signal
import socket
from pathlib import Path

import pytest

import braidmq
from braidmq.client.options import Choices
from braidmq.client.qumbed import KeyPair
from braidmq.testing.broker import running_broker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import until
from tests.integration.served import Served, served
from tests.integration.test_client import payloads_of
from tests.unit.client.strands import offline

pytestmark = pytest.mark.asyncio

ALICE = KeyPair(bytes(range(1, 33)))
BOB = KeyPair(bytes(range(33, 65)))


def impatient(**more: object) -> Choices:
    """Return options of a client that notices a lost broker quickly."""
    options: Choices = {
        "reconnect_delay": 0.01,
        "reconnect_delay_max": 0.05,
        "keepalive": 0.2,
        "answer_timeout": 0.6,
    }
    return {**options, **more}  # type: ignore[typeddict-item] # the callers pass valid options


class Relay:
    """A UDP relay in front of a broker; while it is muted, it passes nothing back."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._front = self._open()
        self._front.bind(("127.0.0.1", 0))
        self._behind: dict[object, socket.socket] = {}
        self._loop.add_reader(self._front, self._pass_on)
        self.port = int(self._front.getsockname()[1])
        self.is_muted = False
        self.swallowed = 0

    @staticmethod
    def _open() -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setblocking(False)
        return opened

    def _pass_on(self) -> None:
        data, client = self._front.recvfrom(65_536)
        behind = self._behind.get(client)
        if behind is None:
            behind = self._behind[client] = self._open()
            behind.connect(self._server)
            self._loop.add_reader(behind, self._pass_back, behind, client)
        behind.send(data)

    def _pass_back(self, behind: socket.socket, client: tuple[str, int]) -> None:
        data = behind.recv(65_536)
        if self.is_muted:
            self.swallowed += 1
        else:
            self._front.sendto(data, client)

    def close(self) -> None:
        for opened in (self._front, *self._behind.values()):
            self._loop.remove_reader(opened)
            opened.close()


async def test_a_publish_whose_confirmation_is_lost_is_stored_once() -> None:
    """The client resends it on the next connection; the broker recognises the duplicate."""
    async with running_broker() as broker:
        host, port = broker.address("qumbed")
        relay = Relay((host, port))
        url = broker.url("qumbed").replace(f"{host}:{port}", f"127.0.0.1:{relay.port}")
        async with (
            braidmq.connect(broker.url("blip")) as blip,
            blip.subscribe("orders") as stored,
            braidmq.connect(url, **impatient(private_key=ALICE)) as client,
        ):
            for recipient in (None, BOB.public_key):
                relay.is_muted = True
                publishing = asyncio.create_task(
                    client.publish("orders", b"1", recipient=recipient, retry=True)
                )
                await payloads_of(
                    stored, 1
                )  # it is in the log, but its publisher has no confirmation
                assert not publishing.done()
                await offline(client)
                relay.is_muted = False
                receipt = await publishing

                assert receipt.repeated
                assert [] == await stored.fetch(timeout=0)
        assert relay.swallowed
        relay.close()


async def test_clients_survive_a_restart(tmp_path: Path) -> None:
    """They reconnect by themselves, and the subscription continues."""
    clock = FakeClock()
    back = asyncio.Event()
    hurried: dict[str, object] = {"limits": {"drain_s": 0.05}}
    async with running_broker(data_dir=tmp_path, clock=clock, config=hurried) as broker:
        _, port = broker.address("qumbed")
        options = impatient(private_key=BOB, on_reconnect=back.set)
        client = await braidmq.connect(broker.url("qumbed"), **options)
        messages = await client.subscribe("orders")
        await client.publish("orders", b"0")
        assert [b"0"] == await payloads_of(messages, 1)
    config: dict[str, object] = {"qumbed": {"port": port}}
    async with running_broker(data_dir=tmp_path, clock=clock, config=config):
        await back.wait()
        await client.publish("orders", b"1")

        assert [b"1"] == await payloads_of(messages, 1)
        await client.close()


async def test_a_returning_subscriber_gets_what_it_missed(tmp_path: Path) -> None:
    """With `offline_s` the broker keeps a key's position, even across a restart."""
    clock = FakeClock()
    back = asyncio.Event()
    config: dict[str, object] = {"qumbed": {"offline_s": 60}, "limits": {"drain_s": 0.05}}
    async with running_broker(data_dir=tmp_path, clock=clock, config=config) as broker:
        _, port = broker.address("qumbed")
        options = impatient(private_key=BOB, on_reconnect=back.set)
        client = await braidmq.connect(broker.url("qumbed"), **options)
        messages = await client.subscribe("orders")
        await client.publish("orders", b"0")
        assert [b"0"] == await payloads_of(messages, 1)
    elsewhere: dict[str, object] = {"qumbed": {"offline_s": 60}, "limits": {"drain_s": 0.05}}
    async with (
        running_broker(data_dir=tmp_path, clock=clock, config=elsewhere) as broker,
        braidmq.connect(broker.url("blip")) as blip,
    ):
        await blip.publish("orders", b"1")
        await blip.publish("orders", b"2")
    config = {"qumbed": {"offline_s": 60, "port": port}}
    async with running_broker(data_dir=tmp_path, clock=clock, config=config):
        await back.wait()
        await client.publish("orders", b"3")

        # The broker redelivers a message whose arrival was not confirmed when it stopped.
        taken = await payloads_of(messages, 3)
        if taken[0] == b"0":
            taken = [*taken[1:], *await payloads_of(messages, 1)]
        assert [b"1", b"2", b"3"] == taken
        await client.close()


async def test_a_kept_subscription_continues_for_the_same_key() -> None:
    """With `keep`, a client that returns in time has missed nothing."""
    config: dict[str, object] = {"qumbed": {"offline_s": 60}}
    async with (
        running_broker(config=config) as broker,
        braidmq.connect(broker.url("qumbed")) as publisher,
    ):
        for keep, expected in ((True, [b"1", b"2"]), (False, [b"2"])):
            keys = KeyPair.generate()
            async with braidmq.connect(broker.url("qumbed"), private_key=keys) as client:
                async with client.subscribe("orders", keep=keep):
                    pass
                await publisher.publish("orders", b"1")
                async with client.subscribe("orders") as messages:
                    await publisher.publish("orders", b"2")

                    assert expected == await payloads_of(messages, len(expected))


def qumbed_url(facts: dict[str, str]) -> str:
    return f"qumbed://dev-key@{facts['qumbed']}?fingerprint={facts['qumbed_fingerprint']}"


async def kill(broker: Served) -> None:
    """Kill a broker."""
    assert -signal.SIGKILL == await broker.end(signal.SIGKILL)


@pytest.mark.slow
async def test_clients_survive_a_kill(tmp_path: Path) -> None:
    """Confirmed messages are stored once, and the client resends the others."""
    lost = asyncio.Event()
    back = asyncio.Event()
    options = impatient(
        private_key=BOB, on_disconnect=lambda _: lost.set(), on_reconnect=back.set
    )
    config = "[qumbed]\noffline_s = 60\n"
    async with served(tmp_path, config=config) as broker:
        facts = await broker.ready()
        client = await braidmq.connect(qumbed_url(facts), **options)
        messages = await client.subscribe("orders")
        await client.publish_many("orders", [b"%d" % number for number in range(100)])
        seen = await payloads_of(messages, 100)
        await kill(broker)
    await lost.wait()
    waiting = asyncio.create_task(
        client.publish_many("orders", [b"%d" % n for n in range(100, 200)], retry=True)
    )
    async with served(tmp_path, "--qumbed", facts["qumbed"], config=config) as broker:
        again = await broker.ready()
        assert facts["qumbed_fingerprint"] == again["qumbed_fingerprint"]
        await back.wait()
        assert [braidmq.Receipt] * 100 == [type(one) for one in await waiting]
        while seen[-1] != b"199":
            seen += await payloads_of(messages, 1)

        # After a kill the broker may redeliver the last messages, but skips none.
        assert [b"%d" % number for number in range(200)] == list(dict.fromkeys(seen))
        await client.close()


@pytest.mark.slow
async def test_publishing_across_kills_stores_everything_once(tmp_path: Path) -> None:
    """With `retry`, whatever the broker was doing when it was killed."""
    sent = [b"%d" % number for number in range(600)]
    address, number = "", 0
    client: braidmq.Client | None = None
    publishing: asyncio.Task[list[braidmq.Receipt | braidmq.PublishError]] | None = None
    for kills_left in (2, 1, 0):
        flags = ["--qumbed", address] if address else []
        async with served(tmp_path, *flags) as broker:
            facts = await broker.ready()
            blip_url = f"blip://dev-key@{facts['blip']}"
            if client is None:
                address = facts["qumbed"]
                async with braidmq.connect(blip_url) as blip:
                    kept = await blip.subscribe("orders", keep=True)
                    number = kept.subscription_id
                client = await braidmq.connect(qumbed_url(facts), **impatient())
                publishing = asyncio.create_task(publish_one_by_one(client, sent))
            assert publishing is not None
            if kills_left:
                await until_stored(broker, 100)
                await kill(broker)
                continue
            assert [braidmq.Receipt] * len(sent) == [type(one) for one in await publishing]
            async with (
                braidmq.connect(blip_url) as blip,
                blip.subscribe("orders", subscription_id=number) as stored,
            ):
                assert sent == await payloads_of(stored, len(sent))
                assert [] == await stored.fetch(timeout=0)
            await client.close()


async def publish_one_by_one(
    client: braidmq.Client, payloads: list[bytes]
) -> list[braidmq.Receipt | braidmq.PublishError]:
    return [await client.publish("orders", payload, retry=True) for payload in payloads]


async def until_stored(broker: Served, count: int) -> None:
    """Wait until the durable mark shows that the log has grown by *count* records."""
    marks = broker.ready_file.parent / "data" / "wal" / "durable"
    begin = int.from_bytes(marks.read_bytes()[:8], "little") if marks.exists() else 0
    await until(lambda: int.from_bytes(marks.read_bytes()[:8], "little") >= begin + count)
