"""Connecting: `braidmq.connect` and its options."""

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
    """The connection lives exactly as long as the block."""
    async with Peer() as peer:
        async with braidmq.connect(peer.url) as client:
            assert isinstance(client, Client)
            assert 1 == len(peer.open_lines())
        await peer.until(lambda: not peer.open_lines())


async def test_awaiting_returns_a_client_that_the_caller_closes() -> None:
    """For programs that do not fit into one block."""
    async with Peer() as peer:
        client = await braidmq.connect(peer.url)
        await client.ping()
        await client.close()
        await peer.until(lambda: not peer.open_lines())


async def test_an_awaited_client_is_a_context_manager_too() -> None:
    """`async with await connect()` works as well."""
    async with Peer() as peer:
        async with await braidmq.connect(peer.url) as client:
            await client.ping()
        await peer.until(lambda: not peer.open_lines())


async def test_the_key_may_be_given_apart_from_the_url() -> None:
    """URLs without keys can be logged."""
    async with Peer() as peer, braidmq.connect(f"blip://127.0.0.1:{peer.port}", key="dev-key"):
        assert 1 == len(peer.open_lines())


async def test_an_authentication_error_does_not_contain_the_key() -> None:
    """Neither its text nor its attributes do."""
    async with Peer() as peer:
        with pytest.raises(braidmq.AuthenticationFailed, match="invalid API key") as caught:
            await braidmq.connect(f"blip://s3cret@127.0.0.1:{peer.port}")

        assert "s3cret" not in f"{caught.value!r} {caught.value.args} {vars(caught.value)}"


@pytest.mark.parametrize("key", ["", "k" * 4086, "é" * 2043])
async def test_a_key_that_no_broker_would_accept_is_refused_by_the_client(key: str) -> None:
    """It is empty, or too long for the frame that an unauthenticated client may send."""
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
    """An option that would be ignored is an error."""
    named = f"{strand} does not support {next(iter(option))}"
    with pytest.raises(braidmq.NotSupported, match=named):
        braidmq.connect(f"{strand}://k@127.0.0.1", **option)


async def test_a_bad_option_is_refused_before_connecting() -> None:
    """The error is raised by the call that holds the mistake."""
    with pytest.raises(braidmq.InvalidArgument, match="keepalive"):
        braidmq.connect("blip://k@127.0.0.1", keepalive=0)


async def test_tls_with_a_custom_context() -> None:
    """A context is enough; the URL's scheme need not ask for TLS too."""
    authority = trustme.CA()
    server, client = trustme_contexts(authority, authority)
    async with Peer(tls=server) as peer, braidmq.connect(peer.url, tls=client) as connected:
        assert (await connected.publish("orders", b"1")).durable


async def test_an_untrusted_certificate_is_refused() -> None:
    """The client does not send its key to an unverified server."""
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
async def test_the_client_works_on_any_event_loop(
    strand: type[AnyPeer], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The library depends on no particular event loop."""

    def run() -> bytes:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(round_trip(strand))

    assert b"1" == await asyncio.to_thread(run)


async def test_every_exported_name_exists() -> None:
    """`__all__` matches the package's attributes."""
    assert all(hasattr(braidmq, name) for name in braidmq.__all__)
    assert braidmq.__version__


def trustme_contexts(
    ours: trustme.CA, theirs: trustme.CA
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a server context certified by *ours*, and a client's that trusts *theirs*."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    theirs.configure_trust(client)
    return server, client
