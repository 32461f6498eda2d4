"""Discovery on the local network by mDNS: the Qumbed strand announced, and others found.

    _qumbed._udp.local.        PTR  braidmq-<key id>-<port>._qumbed._udp.local.
    braidmq-<key id>-<port>... SRV  port, and a host name of the node's own
                               A/AAAA  where the strand listens
                               TXT  pubkey=<64 hexadecimal digits>  topics=<name>,<name>

Every machine on the network sees an announcement, and any can forge one: it is a hint and
proves nothing. A strand on the loopback is announced on the loopback only.

The Discovery frame is something else: a client requests it over a connection (wire/qumbed).
"""

import asyncio
import logging
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from typing import Final

import ifaddr
import structlog
from zeroconf import (
    DNSQuestionType,
    InterfaceChoice,
    IPVersion,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from braidmq.base.errors import EXIT_IO_ERROR, BraidError
from braidmq.transport.binding import shown
from braidmq.wire.qumbed.boxes import key_id

SERVICE_TYPE: Final = "_qumbed._udp.local."

TXT_STRING_BYTES_MAX: Final = 255
"""One `key=value` of a TXT record: its length is stored in a byte."""

TOPICS_LOOKED_AT_MAX: Final = 1_000
"""Topics that are tried for a place in the record; as many as a Discovery frame has."""

ADDRESSES_MAX: Final = 16
"""Addresses that are announced: all records must fit into one datagram."""

NODES_MAX: Final = 1_000
"""Nodes that are listed; forged names must not make the list grow without bound."""

UPDATE_PAUSE_S: Final = 10.0
"""Pause between announcements of changed topics: each goes to every machine."""

STOP_S: Final = 2.0
"""Timeout for the goodbye, which takes 0.25 s: a stuck network must not delay the stop."""

_LOOPBACK: Final = "127.0.0.1"
_TO_ALL: Final = DNSQuestionType.QM
"""Ask for multicast answers: a unicast answer reaches an arbitrary program, see node_name."""

_TOPICS: Final = "topics"
_PUBLIC_KEY: Final = "pubkey"
_HEX_KEY: Final = re.compile(rb"[0-9A-Fa-f]{64}")

_log = structlog.get_logger(__name__)

# It logs every odd datagram, and every interface without multicast.
logging.getLogger("zeroconf").setLevel(logging.CRITICAL)


class MdnsError(BraidError):
    """This machine has no network that mDNS can use, or another program holds the port."""

    exit_code = EXIT_IO_ERROR

    def __init__(self, reason: str) -> None:
        super().__init__(f"mDNS cannot be used here: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Node:
    """A relay that announced itself; nothing of it is authenticated."""

    name: str
    addresses: tuple[str, ...]
    """host:port, IPv6 in brackets, IPv4 first."""
    public_key: str
    """64 hexadecimal digits in lower case, or nothing."""
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """The networks on which an address is announced, and the addresses announced."""

    interfaces: list[str] | InterfaceChoice
    ip_version: IPVersion
    addresses: tuple[str, ...]


def node_name(public_key: bytes, port: int) -> str:
    """Return the name of the node with this gateway key: the same after every restart.

    On one machine the port distinguishes several brokers. Probing for a free name would not:
    the answer goes to any one of the programs that share the mDNS port.
    """
    return f"braidmq-{key_id(public_key).hex()}-{port}"


def text_record(public_key: bytes, topics: Iterable[str]) -> dict[str, str]:
    """Return the TXT record; topics with a comma, or that do not fit, are left out."""
    room = TXT_STRING_BYTES_MAX - len(_TOPICS) - len("=")
    told: list[str] = []
    for topic in islice(topics, TOPICS_LOOKED_AT_MAX):
        size = len(topic.encode()) + (1 if told else 0)
        if size <= room and topic and "," not in topic:
            told.append(topic)
            room -= size
    return {_PUBLIC_KEY: public_key.hex(), _TOPICS: ",".join(told)}


def read_text_record(properties: Mapping[bytes, bytes | None]) -> tuple[str, tuple[str, ...]]:
    """Return public key and topics of a TXT record, each empty where it has none."""
    key = properties.get(_PUBLIC_KEY.encode()) or b""
    topics = (properties.get(_TOPICS.encode()) or b"").decode("utf-8", "replace")
    return (
        key.decode("ascii").lower() if _HEX_KEY.fullmatch(key) else "",
        tuple(filter(None, topics.split(","))),
    )


def reach_of(address: str) -> Reach:
    """Return where a strand that listens on *address* is announced."""
    listens = ip_address(address.partition("%")[0])
    if listens.is_loopback:
        # IPv6 has no multicast on the loopback; an IPv6 address is announced over IPv4.
        return Reach([_LOOPBACK], IPVersion.V4Only, (str(listens),))
    is_v6 = listens.version == 6  # noqa: PLR2004 - the number is the protocol's name
    version = IPVersion.All if is_v6 else IPVersion.V4Only
    if listens.is_unspecified:
        return Reach(InterfaceChoice.All, version, _own_addresses(with_v6=is_v6))
    interfaces = InterfaceChoice.All if is_v6 else [str(listens)]
    return Reach(interfaces, version, (str(listens),))


def _own_addresses(*, with_v6: bool) -> tuple[str, ...]:
    """Return the addresses at which others reach this machine, or the loopback's."""
    found: list[str] = []
    for adapter in ifaddr.get_adapters():
        for own in adapter.ips:
            text = own.ip if isinstance(own.ip, str) else own.ip[0]
            address = ip_address(text)
            # A link-local IPv6 address is useless without the name of the client's interface.
            is_usable = own.is_IPv4 or (with_v6 and not address.is_link_local)
            if is_usable and not address.is_loopback:
                found.append(text)
    return tuple(found[:ADDRESSES_MAX]) or (_LOOPBACK,)


def _open(interfaces: list[str] | InterfaceChoice, version: IPVersion) -> AsyncZeroconf:
    try:
        try:
            return AsyncZeroconf(interfaces=interfaces, ip_version=version)
        except OSError:
            if version is not IPVersion.All:
                raise
        # A kernel without IPv6.
        return AsyncZeroconf(interfaces=interfaces, ip_version=IPVersion.V4Only)
    except OSError as error:
        raise MdnsError(error.strerror or str(error)) from None
    except RuntimeError as error:
        raise MdnsError(str(error)) from None


class Announcer:
    """Announces one strand for as long as it serves; *host* is what the strand is bound to.

    Failures are only logged: the broker works without mDNS.
    """

    def __init__(self, host: str) -> None:
        self.announced = asyncio.Event()  # the announcement is complete
        self.name = ""
        """The node's name, with a number appended if another machine has it already."""
        self._host = host
        # Not the machine's name, for which another responder answers; nor the node's, which
        # another machine may have: their addresses would be mixed up.
        self._host_name = f"braidmq-{secrets.token_hex(8)}.local."
        self._port = 0
        self._public_key = b""
        self._addresses: tuple[str, ...] = ()
        self._text: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._mdns: AsyncZeroconf | None = None
        self._telling: asyncio.Task[None] | None = None

    async def start(self, port: int, public_key: bytes, topics: Iterable[str]) -> None:
        """Start announcing, in the background: it takes two seconds."""
        loop = asyncio.get_running_loop()
        self._port, self._public_key = port, public_key
        self._text = text_record(public_key, topics)
        self.name = node_name(public_key, port)
        try:
            found = await loop.getaddrinfo(self._host, port, type=socket.SOCK_DGRAM)
            reach = reach_of(str(found[0][4][0]))
            self._mdns = _open(reach.interfaces, reach.ip_version)
        except (MdnsError, OSError) as error:
            _log.warning("not announced", host=self._host, reason=str(error))
            return
        self._addresses = reach.addresses
        self._telling = asyncio.create_task(self._tell(self._mdns))

    def update(self, topics: Iterable[str]) -> None:
        """Announce the topics if they have changed; cheap to call often."""
        if self._telling is None:
            return
        text = text_record(self._public_key, topics)
        if text != self._text:
            self._text = text
            self._changed.set()

    async def stop(self) -> None:
        """Withdraw the announcement, and leave the network."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])
            self._telling = None
        mdns, self._mdns = self._mdns, None
        if mdns is None:
            return
        try:
            async with asyncio.timeout(STOP_S):
                await mdns.async_close()
        except (OSError, TimeoutError, ZeroconfError) as error:
            _log.warning("announcement not withdrawn", node=self.name, reason=str(error))

    async def _tell(self, mdns: AsyncZeroconf) -> None:
        try:
            info = self._info()
            await (await mdns.async_register_service(info, allow_name_change=True))
            self.name = info.name.removesuffix(f".{SERVICE_TYPE}")
            _log.info("announced", node=self.name, addresses=self._addresses)
            self.announced.set()
            while True:
                await self._changed.wait()
                self._changed.clear()
                await (await mdns.async_update_service(self._info()))
                await asyncio.sleep(UPDATE_PAUSE_S)  # a rate limit
        except (OSError, ZeroconfError) as error:
            _log.warning("not announced", node=self.name, reason=str(error) or repr(error))

    def _info(self) -> AsyncServiceInfo:
        return AsyncServiceInfo(
            SERVICE_TYPE,
            f"{self.name}.{SERVICE_TYPE}",
            port=self._port,
            properties=self._text,
            server=self._host_name,
            parsed_addresses=list(self._addresses),
        )


async def find(timeout_s: float, *, count: int | None = None) -> list[Node]:
    """Return the nodes found within *timeout_s*, or sooner once there are *count*.

    Raises:
        MdnsError: This machine cannot listen.
    """
    mdns = _open(InterfaceChoice.All, IPVersion.All)
    listener = _Listener(mdns, count)
    browser = AsyncServiceBrowser(
        mdns.zeroconf, SERVICE_TYPE, handlers=[listener.hear], question_type=_TO_ALL
    )
    try:
        async with asyncio.timeout(timeout_s):
            await listener.has_enough.wait()
    except TimeoutError:
        pass
    finally:
        await browser.async_cancel()
        await listener.stop()
        await mdns.async_close()
    return sorted(listener.nodes.values(), key=lambda node: node.name)


class _Listener:
    """Collects announced names, and resolves them."""

    def __init__(self, mdns: AsyncZeroconf, count: int | None) -> None:
        self.nodes: dict[str, Node] = {}
        self.has_enough = asyncio.Event()
        self._mdns = mdns
        self._count = count
        self._asking: dict[str, asyncio.Task[None]] = {}

    def hear(
        self,
        zeroconf: Zeroconf,
        service_type: str,
        name: str,
        state_change: ServiceStateChange,
    ) -> None:
        """Handle a change of a name; zeroconf passes its arguments by keyword."""
        del zeroconf, service_type
        if state_change is ServiceStateChange.Removed:
            self.nodes.pop(name, None)
        elif name not in self._asking and len(self.nodes) + len(self._asking) < NODES_MAX:
            task = asyncio.get_running_loop().create_task(self._ask(name))
            self._asking[name] = task
            task.add_done_callback(lambda _: self._asking.pop(name, None))

    async def stop(self) -> None:
        """Cancel the queries that are under way."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    async def _ask(self, name: str) -> None:
        try:
            info = await self._mdns.async_get_service_info(
                SERVICE_TYPE, name, question_type=_TO_ALL
            )
        except (OSError, ZeroconfError):
            return  # the name in the record is not valid
        if info is None or info.port is None:
            return
        self.nodes[name] = _node(info, info.port)
        if self._count is not None and len(self.nodes) >= self._count:
            self.has_enough.set()


def _node(info: AsyncServiceInfo, port: int) -> Node:
    public_key, topics = read_text_record(info.properties)
    addresses = info.parsed_scoped_addresses(IPVersion.V4Only)
    addresses += info.parsed_scoped_addresses(IPVersion.V6Only)
    return Node(
        info.name.removesuffix(f".{SERVICE_TYPE}"),
        tuple(shown(address, port) for address in addresses),
        public_key,
        topics,
    )
