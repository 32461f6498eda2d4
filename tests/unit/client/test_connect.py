"""How a client is made."""

import asyncio
import ssl
import sys
from collections.abc import Callable
from typing import Any

import pytest
import trustme
import uvloop

import braidmq
from braidmq.client.surface import Client
from tests.unit.client.blip.peer import Peer
from tests.unit.client.strands import AnyPeer, every_strand

pytestmark = pytest.mark.asyncio


async def test_entering_connects_and_leaving_closes() -> None:
    """The block has a client; after it there is no connection."""
    async with Peer() as peer:
        async with braidmq.connect(peer.url) as client:
            assert isinstance(client, Client)
            assert 1 == len(peer.open_lines())
        await peer.until(lambda: not peer.open_lines())


async def test_awaiting_gives_a_client_to_close_oneself() -> None:
    """Programs that are not one block use it so."""
    async with Peer() as peer:
        client = await braidmq.connect(peer.url)
        await client.ping()
        await client.close()
        await peer.until(lambda: not peer.open_lines())


async def test_an_awaited_client_is_a_context_too() -> None:
    """Whoever writes `async with await connect()` gets what they mean."""
    async with Peer() as peer:
        async with await braidmq.connect(peer.url) as client:
            await client.ping()
        await peer.until(lambda: not peer.open_lines())


async def test_a_key_may_stand_beside_the_url() -> None:
    """So that URLs can be logged."""
    async with Peer() as peer, braidmq.connect(f"blip://127.0.0.1:{peer.port}", key="dev-key"):
        assert 1 == len(peer.open_lines())


async def test_a_wrong_key_fails_without_being_repeated() -> None:
    """No text of the error holds the key."""
    async with Peer() as peer:
        with pytest.raises(braidmq.AuthenticationFailed, match="invalid API key") as caught:
            await braidmq.connect(f"blip://s3cret@127.0.0.1:{peer.port}")

        assert "s3cret" not in f"{caught.value!r} {caught.value.args} {vars(caught.value)}"


@pytest.mark.parametrize("key", ["", "k" * 4086, "é" * 2043])
async def test_a_key_that_no_broker_would_read_is_refused_here(key: str) -> None:
    """It would not fit into the frame that a stranger may send."""
    with pytest.raises(braidmq.InvalidArgument, match="no usable API key"):
        await braidmq.connect("blip://127.0.0.1:1", key=key)


@pytest.mark.parametrize("strand", ["blip", "vibe"])
@pytest.mark.parametrize(
    "option",
    [
        {"private_key": bytes(32)},
        {"trust": "key"},
        {"ca_file": "file"},
        {"insecure": True},
        {"schemas": {"a": {}}},
    ],
)
async def test_options_of_another_strand_are_refused(
    strand: str, option: dict[str, Any]
) -> None:
    """What would be ignored is said at once."""
    named = f"{strand} does not support {next(iter(option))}"
    with pytest.raises(braidmq.NotSupported, match=named):
        braidmq.connect(f"{strand}://k@127.0.0.1", **option)


async def test_a_bad_option_is_refused_before_anything_is_connected() -> None:
    """Mistakes of the program show where they are made."""
    with pytest.raises(braidmq.InvalidArgument, match="keepalive"):
        braidmq.connect("blip://k@127.0.0.1", keepalive=0)


async def test_tls_with_a_context_of_ones_own() -> None:
    """A context is enough; the URL need not say it again."""
    authority = trustme.CA()
    server, client = trustme_contexts(authority, authority)
    async with Peer(tls=server) as peer, braidmq.connect(peer.url, tls=client) as connected:
        assert (await connected.publish("orders", b"1")).durable


async def test_a_certificate_that_is_not_trusted_is_refused() -> None:
    """The key is not sent to whoever answers."""
    server, client = trustme_contexts(trustme.CA(), trustme.CA())
    async with Peer(tls=server) as peer:
        url = peer.url.replace("blip://", "blips://")
        for context in (client, None):
            with pytest.raises(braidmq.ConnectionFailed, match="certificate"):
                await braidmq.connect(url, tls=context)

        assert not any(line.seen for line in peer.lines)


async def test_importing_the_package_loads_no_server() -> None:
    """A program that only publishes does not pay for the broker."""
    heavy = [
        "typer",
        "starlette",
        "uvicorn",
        "pydantic",
        "structlog",
        "rich",
        "msgspec",
        "brotli",
        "nacl",
        "aioquic",
        "jsonschema_rs",
    ]
    code = f"import sys, braidmq; print([m for m in {heavy} if m in sys.modules])"
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await program.communicate()

    assert b"[]" == printed.strip()


async def round_trip(strand: type[AnyPeer]) -> bytes:
    """Publish and receive one message."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        await client.publish("orders", b"1")
        return (await anext(messages)).payload


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@every_strand
async def test_any_event_loop_will_do(
    strand: type[AnyPeer], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The library knows no loop but the one that runs it."""

    def run() -> bytes:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(round_trip(strand))

    assert b"1" == await asyncio.to_thread(run)


async def test_everything_exported_is_there() -> None:
    """The list of names and the names agree."""
    assert all(hasattr(braidmq, name) for name in braidmq.__all__)
    assert braidmq.__version__


def trustme_contexts(
    ours: trustme.CA, theirs: trustme.CA
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a server's context with our certificate, and a client's that trusts theirs."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    theirs.configure_trust(client)
    return server, client
