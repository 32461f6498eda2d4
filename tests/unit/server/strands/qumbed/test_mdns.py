"""mDNS: what an announcement says, and both ends of it on the real loopback."""

import asyncio
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from itertools import pairwise

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from zeroconf import InterfaceChoice, IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from braidmq.base.errors import EXIT_IO_ERROR
from braidmq.server.strands.qumbed import mdns
from braidmq.server.strands.qumbed.mdns import (
    ADDRESSES_MAX,
    TXT_STRING_BYTES_MAX,
    Announcer,
    MdnsError,
    Node,
    Reach,
    find,
    node_name,
    reach_of,
    read_text_record,
    text_record,
)
from tests.unit.server.strands.qumbed.pace import hurry

KEY = bytes(range(1, 33))
OTHER_KEY = bytes(range(2, 34))
NAME = "braidmq-0102030405060708-6121"
ROOM = TXT_STRING_BYTES_MAX - len("topics=")
PATIENCE_S = 30

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def own_type(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a service type that nothing else on this machine announces or looks for."""
    hurry(monkeypatch)
    name = f"_q{secrets.token_hex(5)}._udp.local."
    monkeypatch.setattr(mdns, "SERVICE_TYPE", name)
    return name


@asynccontextmanager
async def announcing(
    *topics: str, host: str = "127.0.0.1", port: int = 6121, key: bytes = KEY
) -> AsyncIterator[Announcer]:
    """Announce a node; the body runs once the announcement has been sent."""
    announcer = Announcer(host)
    await announcer.start(port, key, topics)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await announcer.announced.wait()
        yield announcer
    finally:
        await announcer.stop()


async def find_until(condition: Callable[[list[Node]], bool], *, count: int = 1) -> list[Node]:
    """Search until the result meets the condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition(found := await find(PATIENCE_S, count=count)):
            pass
    return found


def labels(name: str) -> bytes:
    """Return a name as DNS encodes it: each part after its length."""
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))


def forge(service_type: str, name: str) -> None:
    """Announce a name that no honest responder would.

    0 | flags 0x8400, an answer | counts 0 1 0 0 | the type | PTR 12 | IN 1 | ttl | size | name
    """
    encoded = labels(name)
    packet = struct.pack(">6H", 0, 0x8400, 0, 1, 0, 0) + labels(service_type)
    packet += struct.pack(">HHIH", 12, 1, 120, len(encoded)) + encoded
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        loopback = socket.inet_aton("127.0.0.1")
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, loopback)
        sender.sendto(packet, ("224.0.0.251", 5353))


# --- what an announcement says --------------------------------------------------------------


def test_a_node_is_named_after_its_key() -> None:
    """It is the same after every restart, and fits a DNS label."""
    assert NAME == node_name(KEY, 6121)
    assert len(NAME) <= 63


def test_the_text_record_has_key_and_topics() -> None:
    """Under the keys that the original uses."""
    assert {"pubkey": KEY.hex(), "topics": "a,sensors/é"} == text_record(
        KEY, ["a", "sensors/é"]
    )
    assert {"pubkey": KEY.hex(), "topics": ""} == text_record(KEY, [])


TOPICS = {
    "one that just fits": ([ROOM * "t"], [ROOM * "t"]),
    "one that does not, and another after it": ([(ROOM + 1) * "t", "a"], ["a"]),
    "two that just fit": ([(ROOM - 2) * "t", "a"], [(ROOM - 2) * "t", "a"]),
    "two that do not": ([(ROOM - 1) * "t", "a"], [(ROOM - 1) * "t"]),
    "counted in bytes": ([ROOM // 2 * "é", "a"], [ROOM // 2 * "é"]),
    "a comma would split a topic": (["a,b", "c"], ["c"]),
    "those beyond the first thousand": ([*(1_000 * [","]), "late"], []),
}


@pytest.mark.parametrize("case", TOPICS)
def test_topics_that_do_not_fit_are_left_out(case: str) -> None:
    """A string of the record has 255 bytes; topics that fit are announced, in order."""
    topics, announced = TOPICS[case]

    assert ",".join(announced) == text_record(KEY, topics)["topics"]


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=99), max_size=9))
def test_announced_topics_are_read_back(topics: list[str]) -> None:
    """Whatever the topics are called: those that fit, in order, and short enough to send."""
    record = {key.encode(): value.encode() for key, value in text_record(KEY, topics).items()}
    key, announced = read_text_record(record)
    places = [topics.index(topic) for topic in dict.fromkeys(announced)]

    assert KEY.hex() == key
    assert len(b"topics=" + record[b"topics"]) <= TXT_STRING_BYTES_MAX
    assert all(one < next_one for one, next_one in pairwise(places))


FOREIGN_RECORDS: dict[str, tuple[dict[bytes, bytes | None], tuple[str, tuple[str, ...]]]] = {
    "nothing": ({}, ("", ())),
    "keys without values": ({b"pubkey": None, b"topics": None}, ("", ())),
    "upper case": ({b"pubkey": b"AB" * 32}, ("ab" * 32, ())),
    "too short a key": ({b"pubkey": b"ab" * 31}, ("", ())),
    "too long a key": ({b"pubkey": b"ab" * 33}, ("", ())),
    "not hexadecimal": ({b"pubkey": b"zz" * 32}, ("", ())),
    "a newline": ({b"pubkey": b"ab" * 32 + b"\n"}, ("", ())),
    "not UTF-8": ({b"topics": b"\xff,a"}, ("", ("\ufffd", "a"))),
    "empty names": ({b"topics": b",a,,b,"}, ("", ("a", "b"))),
}


@pytest.mark.parametrize("case", FOREIGN_RECORDS)
def test_a_foreign_record_is_read_as_far_as_possible(case: str) -> None:
    """No announcement, however malformed, raises an error."""
    record, read = FOREIGN_RECORDS[case]

    assert read == read_text_record(record)


REACHES = {
    "127.0.0.1": Reach(["127.0.0.1"], IPVersion.V4Only, ("127.0.0.1",)),
    "127.9.8.7": Reach(["127.0.0.1"], IPVersion.V4Only, ("127.9.8.7",)),
    "::1": Reach(["127.0.0.1"], IPVersion.V4Only, ("::1",)),
    "198.51.100.7": Reach(["198.51.100.7"], IPVersion.V4Only, ("198.51.100.7",)),
    "2001:db8::1": Reach(InterfaceChoice.All, IPVersion.All, ("2001:db8::1",)),
    "fe80::1%eth0": Reach(InterfaceChoice.All, IPVersion.All, ("fe80::1",)),
}


@pytest.mark.parametrize("address", REACHES)
def test_a_strand_is_announced_where_it_listens(address: str) -> None:
    """A strand on the loopback is not announced to the network."""
    assert REACHES[address] == reach_of(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])  # noqa: S104 - nothing is bound
def test_a_strand_on_all_interfaces_is_announced_with_the_machines_addresses(
    address: str,
) -> None:
    """Never with the wildcard, and with the loopback only where there is no other address."""
    reach = reach_of(address)
    addresses = [ip_address(one) for one in reach.addresses]

    assert InterfaceChoice.All == reach.interfaces
    assert 0 < len(addresses) <= ADDRESSES_MAX
    assert not any(one.is_unspecified for one in addresses)
    assert ("127.0.0.1",) == reach.addresses or not any(one.is_loopback for one in addresses)
    assert address == "::" or all(one.version == 4 for one in addresses)


# --- both ends, on the loopback -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_announced_node_is_found(new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its own name, on either event loop, among any other nodes."""
    if new_loop is not asyncio.new_event_loop:
        hurry(monkeypatch)  # the other one waits as it does outside of tests
    key = secrets.token_bytes(32)

    async def run() -> None:
        async with announcing("a", "sensors/é", key=key):
            found = await find_until(
                lambda nodes: node_name(key, 6121) in {n.name for n in nodes}
            )
            expected = Node(
                node_name(key, 6121), ("127.0.0.1:6121",), key.hex(), ("a", "sensors/é")
            )
            assert expected in found

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.usefixtures("own_type")
async def test_two_nodes_with_one_key_are_two_nodes() -> None:
    """A copied data directory: each node has its own name, address and topics."""
    async with AsyncExitStack() as both:
        await both.enter_async_context(announcing("a"))
        second = await both.enter_async_context(announcing("b", host="::1", port=7))

        assert [
            Node(NAME, ("127.0.0.1:6121",), KEY.hex(), ("a",)),
            Node(node_name(KEY, 7), ("[::1]:7",), KEY.hex(), ("b",)),
        ] == await find(PATIENCE_S, count=2)
        second.update(["c"])
        found = await find_until(lambda nodes: ("b",) != nodes[-1].topics, count=2)
        assert [("a",), ("c",)] == [node.topics for node in found]


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.usefixtures("own_type")
async def test_changed_topics_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first change at once, further ones after a pause; the last one stays."""
    monkeypatch.setattr(mdns, "UPDATE_PAUSE_S", 0.3)
    async with announcing("a") as announcer:
        announcer.update(["a", "b"])
        await find_until(lambda nodes: nodes[0].topics == ("a", "b"))
        announcer.update(["c"])
        announcer.update(["d"])
        announcer.update(["d"])

        (found,) = await find_until(lambda nodes: nodes[0].topics != ("a", "b"))
        assert ("d",) == found.topics


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.usefixtures("own_type")
async def test_topics_that_change_during_the_start_are_not_forgotten() -> None:
    """The daemon need not wait for the announcement."""
    announcer = Announcer("localhost")
    await announcer.start(6121, KEY, ["early"])
    announcer.update(["late"])
    try:
        (found,) = await find_until(lambda nodes: nodes[0].topics == ("late",))
        assert NAME == found.name
    finally:
        await announcer.stop()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_node_that_stops_says_goodbye(own_type: str) -> None:
    """Others forget it at once, not when its records expire."""
    heard: list[ServiceStateChange] = []
    changed = asyncio.Event()

    def hear(
        zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        heard.append(state_change)
        changed.set()

    other = AsyncZeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    browser = AsyncServiceBrowser(other.zeroconf, own_type, handlers=[hear])
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with announcing():
                await changed.wait()
                assert {ServiceStateChange.Added} == set(heard)
            while heard[-1] != ServiceStateChange.Removed:
                changed.clear()
                await changed.wait()
    finally:
        await browser.async_cancel()
        await other.async_close()


@pytest.mark.asyncio
@pytest.mark.usefixtures("own_type")
async def test_it_can_be_stopped_before_the_announcement_is_sent() -> None:
    """And twice, and before it was started: a daemon that fails to start stops everything."""
    announcer = Announcer("127.0.0.1")
    await announcer.stop()
    await announcer.start(6121, KEY, ["a"])
    async with asyncio.timeout(PATIENCE_S):
        await announcer.stop()
        await announcer.stop()

    assert not announcer.announced.is_set()


@pytest.mark.asyncio
# zeroconf drops a socket that it cannot use; the garbage collector closes it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_unusable_network_is_only_logged() -> None:
    """No interface has this address; the broker serves without mDNS."""
    announcer = Announcer("198.51.100.7")
    with capture_logs() as lines:
        await announcer.start(6121, KEY, ["a"])
    announcer.update(["b"])
    await announcer.stop()

    assert ["not announced"] == [line["event"] for line in lines]
    assert "mDNS cannot be used here: " in lines[0]["reason"]
    assert KEY.hex() not in str(lines)
    assert not announcer.announced.is_set()


def test_unusable_mdns_is_an_io_error() -> None:
    """The command exits with the conventional code."""
    assert EXIT_IO_ERROR == MdnsError("no network").exit_code
    assert "mDNS cannot be used here: no network" == str(MdnsError("no network"))


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_foreign_node_is_listed_with_what_can_be_read(
    own_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it announces; an invalid name is skipped silently."""
    info = AsyncServiceInfo(
        own_type,
        f"a strängêr.{own_type}",
        port=9,
        properties={b"pubkey": b"none", b"topics": b"\xff"},
        server=f"{secrets.token_hex(8)}.local.",
        parsed_addresses=["::1", "127.0.0.1"],
    )
    other = AsyncZeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    finding = asyncio.create_task(find(PATIENCE_S, count=1))
    try:
        await other.zeroconf.async_wait_for_start()  # by then the search listens as well
        forge(own_type, f"\x1b[2J.{own_type}")
        forge(own_type, "no._tcp.local.")
        await other.async_register_service(info)
        found = await finding
    finally:
        await other.async_close()

    assert [
        Node("a strängêr", ("127.0.0.1:9", "[::1]:9"), "", ("\ufffd",)),
    ] == found
    assert [] == [line for line in caplog.records if line.name == "asyncio"]


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.usefixtures("own_type")
async def test_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up names cannot make it grow for ever."""
    monkeypatch.setattr(mdns, "NODES_MAX", 1)
    async with announcing(), announcing(key=OTHER_KEY), asyncio.timeout(PATIENCE_S):
        while not (found := await find(1.0, count=2)):
            pass

    assert 1 == len(found)


@pytest.mark.asyncio
@pytest.mark.usefixtures("own_type")
async def test_without_nodes_the_list_is_empty() -> None:
    """After the given time, and without an error."""
    assert [] == await find(0.2)
