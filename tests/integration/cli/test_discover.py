"""`braidmq discover` with real mDNS announcements."""

import asyncio
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from braidmq.cli.main import main
from braidmq.server.strands.qumbed import mdns
from braidmq.server.strands.qumbed.mdns import Announcer
from tests.unit.server.strands.qumbed.pace import hurry

KEY = bytes(range(1, 33))
NAME = "braidmq-0102030405060708-6121"
PATIENCE_S = 30
TRIES = 10


@pytest.fixture(autouse=True)
def own_type(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a service type that no other process on this machine announces or queries."""
    hurry(monkeypatch)
    monkeypatch.setattr(mdns, "SERVICE_TYPE", f"_q{secrets.token_hex(5)}._udp.local.")
    with capture_logs():  # the announcer's lines are not the command's
        yield


@contextmanager
def announced(*topics: str, host: str = "127.0.0.1", port: int = 6121) -> Iterator[None]:
    """Announce a node on its own thread, as the command runs its own event loop."""
    is_announced, is_over = threading.Event(), threading.Event()

    async def run() -> None:
        announcer = Announcer(host)
        await announcer.start(port, KEY, topics)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await announcer.announced.wait()
            is_announced.set()
            await asyncio.to_thread(is_over.wait, PATIENCE_S)
        finally:
            await announcer.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert is_announced.wait(PATIENCE_S)
        yield
    finally:
        is_over.set()
        thread.join(PATIENCE_S)


@pytest.mark.slow
def test_a_node_is_listed_with_address_key_and_topics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As tab-separated lines, or as JSON."""
    ends_soon = ["--count", "1", "--timeout", str(PATIENCE_S)]
    with announced("a", "sensors/\x1b[2J"):
        assert 0 == main(["discover", *ends_soon])
        table = capsys.readouterr()
        assert 0 == main(["discover", "--json", *ends_soon])
        as_json = capsys.readouterr()

    assert (
        "node\taddress\tpublic_key\ttopics\n"
        f"{NAME}\t127.0.0.1:6121\t{KEY.hex()}\ta, sensors/\\x1b[2J\n"
    ) == table.out
    assert [
        {
            "node": NAME,
            "address": "127.0.0.1:6121",
            "addresses": ["127.0.0.1:6121"],
            "public_key": KEY.hex(),
            "topics": ["a", "sensors/\x1b[2J"],
        }
    ] == json.loads(as_json.out)
    assert "" == table.err + as_json.err


@pytest.mark.slow
def test_all_nodes_that_answer_in_time_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --count it listens until the timeout; the list is sorted."""
    rows: list[dict[str, object]] = []
    with announced("a"), announced("b", host="::1", port=7):
        for _ in range(TRIES):  # a second may be too short for both on a busy machine
            assert 0 == main(["discover", "--json", "--timeout", "1"])
            rows = json.loads(capsys.readouterr().out)
            if len(rows) > 1:
                break

    assert [(NAME, "127.0.0.1:6121"), ("braidmq-0102030405060708-7", "[::1]:7")] == [
        (row["node"], row["address"]) for row in rows
    ]
