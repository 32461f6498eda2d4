"""The broker as a process of its own: its Qumbed peers, and its memory as the kernel has it."""

import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

from tests.integration.qumbed.peer import Peer
from tests.integration.served import Served

MIB: Final = 1024 * 1024
_AT_ONCE_BYTES: Final = 16 * MIB
_OVERLAP_BYTES: Final = 4_096
"""More than anything that is looked for, so that a cut hides nothing."""


def address(broker: Served, listener: str) -> tuple[str, int]:
    host, _, port = broker.facts()[listener].rpartition(":")
    return host, int(port)


@asynccontextmanager
async def joined(broker: Served) -> AsyncIterator[Peer]:
    """Connect for a while, with a peer that reads all the time."""
    settings = QuicConfiguration(alpn_protocols=["qumbed/1"], verify_mode=ssl.CERT_NONE)
    host, port = address(broker, "qumbed")
    async with connect(host, port, configuration=settings, create_protocol=Peer) as peer:
        assert isinstance(peer, Peer)
        yield peer


def rss_bytes(pid: int) -> int:
    """Return how much memory the process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_of(pid: int) -> Iterator[bytes]:
    """Return everything that the process can read, in pieces that overlap.

    Raises:
        OSError: The kernel does not let us.
    """
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, access, *_ = line.split()
            if not access.startswith("r") or line.endswith(("[vvar]", "[vsyscall]")):
                continue
            at, end = (int(number, 16) for number in span.split("-"))
            while at < end:
                with suppress(OSError):  # it was given back meanwhile, or is a device's
                    yield os.pread(memory.fileno(), min(_AT_ONCE_BYTES, end - at), at)
                at += _AT_ONCE_BYTES - _OVERLAP_BYTES
