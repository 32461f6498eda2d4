"""A fuzzer at every listener of the real broker: valid conversations with faults, and noise.

All listeners are attacked at once, while a healthy client works beside. Nothing may end the
broker, leave a traceback, memory or descriptors behind, or hold the healthy client up.
BRAIDMQ_FUZZ sets the number of rounds, BRAIDMQ_CHAOS_SEED the first seed; a round is replayed
by its seed alone, but for the order in which the broker sees what.
"""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest
import trustme
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from braidmq.base.errors import BraidError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkKey
from tests.chaos import conversations
from tests.chaos.conversations import Conversation
from tests.chaos.watched import Watched, healthy, p99_alone, report
from tests.integration.qumbed.peer import Peer
from tests.integration.served import served
from tests.integration.vibe import peer as vibe

ROUNDS: Final = int(os.environ.get("BRAIDMQ_FUZZ", "1"))
SEED: Final = int(os.environ.get("BRAIDMQ_CHAOS_SEED", "1"))
THROWS: Final = 30
"""Connections to each TCP listener in a round."""

QUIC_CONNECTIONS: Final = 3
QUIC_STREAMS: Final = 8
DATAGRAMS: Final = 40
HEARING_S: Final = 0.03
"""How long a stranger listens before its connection ends."""

Address = tuple[str, int]


def address_of(shown: str) -> Address:
    host, _, port = shown.rpartition(":")
    return host, int(port)


async def throw(
    rng: Random, address: Address, parts: Conversation, *, tls: ssl.SSLContext | None = None
) -> None:
    """Say something to a TCP listener, hear some of the answer, and end in some way."""
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(*address, ssl=tls)
        try:
            await _say(rng, reader, writer, parts)
        finally:
            writer.close()


async def _say(
    rng: Random,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    parts: Conversation,
) -> None:
    for part in parts:
        if writer.is_closing():
            break
        writer.write(part)
        if rng.random() < 0.3:
            await asyncio.wait_for(writer.drain(), 1)
    ending = rng.randrange(3)
    if ending == 0 and writer.can_write_eof():
        writer.write_eof()
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1 << 16), HEARING_S)
    if ending == 1:
        writer.transport.abort()


async def fuzz_tcp(
    rng: Random,
    address: Address,
    valid: list[Conversation],
    *,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Attack one TCP listener; with *tls*, inside of TLS and outside."""

    async def some(count: int) -> None:
        for _ in range(count):
            parts = conversations.mutated(rng, rng.choice(valid))
            if rng.random() < 0.2:
                parts = conversations.noise(rng)
            inside = tls if tls is not None and rng.random() < 0.3 else None
            await throw(rng, address, parts, tls=inside)

    await asyncio.gather(*(some(THROWS // 3) for _ in range(3)))


async def fuzz_quic(rng: Random, address: Address) -> None:
    """Attack the streams of real QUIC connections."""
    settings = QuicConfiguration(alpn_protocols=["qumbed/1"], verify_mode=ssl.CERT_NONE)
    for _ in range(QUIC_CONNECTIONS):
        with suppress(OSError):
            async with connect(*address, configuration=settings, create_protocol=Peer) as peer:
                assert isinstance(peer, Peer)
                for _ in range(QUIC_STREAMS):
                    stream = peer.open()
                    valid = conversations.qumbed_conversation()
                    for part in conversations.mutated(rng, valid):
                        stream.send(part)
                    if rng.random() < 0.5:
                        stream.finish()
                await asyncio.sleep(HEARING_S)


async def fuzz_datagrams(rng: Random, address: Address) -> None:
    """Attack QUIC below its connections: first packets with faults, and noise."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(DATAGRAMS):
            settings = QuicConfiguration(alpn_protocols=["qumbed/1"])
            client = QuicConnection(configuration=settings)
            client.connect(address, now=time.monotonic())
            first = [data for data, _ in client.datagrams_to_send(now=time.monotonic())]
            parts = conversations.mutated(rng, first) if rng.random() < 0.7 else first
            for data in parts if rng.random() < 0.8 else conversations.noise(rng):
                sender.sendto(data[:1400], address)
            await asyncio.sleep(0)


async def recorded(address: Address, talk: Callable[[Address], None]) -> Conversation:
    """Return what a client says to a listener while *talk* uses it, each write a part."""
    said: Conversation = []
    piping: set[asyncio.Task[None]] = set()

    async def pipe(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: Conversation
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                heard.append(data)
                writer.write(data)
        finally:
            writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*address)
        piping.add(asyncio.create_task(pipe(reader, far_writer, said)))
        piping.add(asyncio.create_task(pipe(far_reader, writer, [])))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    async with server:
        await asyncio.to_thread(talk, server.sockets[0].getsockname()[:2])
        for task in piping:
            task.cancel()
        await asyncio.gather(*piping, return_exceptions=True)
    return said


def use_flight(address: Address) -> None:
    """Read and write over Flight, as Spark does."""
    endpoint = Endpoint(f"grpc://{address[0]}:{address[1]}", "dev-key")
    schema = pa.schema([("value", pa.binary())])
    rows = pa.record_batch([pa.array([b"1", b"2"], pa.binary())], schema=schema)
    stage = endpoint.stage("fuzz", schema, iter([rows]))
    endpoint.commit(SinkKey("11111111-1111-1111-1111-111111111111", "", 0), [stage.id])
    with suppress(BraidError):
        endpoint.read(topics=["fuzz"])


class Attack:
    """The addresses of a broker and what is said to each."""

    def __init__(
        self, facts: dict[str, Any], flight: Conversation, tls: ssl.SSLContext
    ) -> None:
        self._at = {
            name: address_of(facts[name])
            for name in ("blip", "vibe", "qumbed", "http", "flight")
        }
        self._flight = flight
        self._tls = tls

    async def round(self, seed: int) -> None:
        """Attack everything at once."""
        rng = Random(seed)
        dialects = [conversations.vibe_conversation(one) for one in (vibe.V1_0, vibe.V1_1)]
        await asyncio.gather(
            fuzz_tcp(rng, self._at["blip"], [conversations.blip_conversation()], tls=self._tls),
            fuzz_tcp(rng, self._at["vibe"], dialects),
            fuzz_tcp(rng, self._at["http"], [conversations.http_conversation()]),
            fuzz_tcp(rng, self._at["flight"], [self._flight]),
            fuzz_quic(rng, self._at["qumbed"]),
            fuzz_datagrams(rng, self._at["qumbed"]),
        )


def certificate(directory: Path) -> tuple[str, ssl.SSLContext]:
    """Return the settings of a broker's certificate, and a client's context for it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    directory.mkdir(exist_ok=True)
    cert, key = directory / "cert.pem", directory / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return f'[blip]\ntls_cert = "{cert}"\ntls_key = "{key}"\n', context


async def fuzzed(directory: Path, rounds: int) -> None:
    section, tls = certificate(directory)
    config = section + "[limits]\nhandshake_timeout_s = 2.0\n"
    async with served(directory, "--flight", "127.0.0.1:0", config=config) as broker:
        facts = await broker.ready()
        url = f"vibe://dev-key@{facts['vibe']}"
        alone_ms = await p99_alone(url)
        flight = await recorded(address_of(facts["flight"]), use_flight)
        watched = Watched(broker)
        attack = Attack(facts, flight, tls)
        async with healthy(url) as client:
            for number in range(rounds):
                await attack.round(SEED + number)
                watched.rss_bytes()
                assert [] == watched.complaints(), f"seed {SEED + number}"
        report(f"{rounds} rounds of fuzzing", alone_ms, client)
        await watched.check()
        assert 0 == await broker.end()
        assert [] == watched.complaints()


@pytest.mark.slow
@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_no_listener_is_harmed_by_what_strangers_say(tmp_path: Path) -> None:
    """Every listener at once, with and without TLS, while a healthy client works."""
    asyncio.run(fuzzed(tmp_path, ROUNDS))
