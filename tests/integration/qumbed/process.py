"""Helpers for a broker in its own process: Qumbed peers, and a view of its memory."""

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
_CHUNK_BYTES: Final = 16 * MIB
_OVERLAP_BYTES: Final = 4_096
"""Longer than any needle, so that no chunk boundary hides one."""


def address(broker: Served, listener: str) -> tuple[str, int]:
    host, _, port = broker.facts()[listener].rpartition(":")
    return host, int(port)


@asynccontextmanager
async def joined(broker: Served) -> AsyncIterator[Peer]:
    """Connect a peer that reads all the time."""
    settings = QuicConfiguration(alpn_protocols=["qumbed/1"], verify_mode=ssl.CERT_NONE)
    host, port = address(broker, "qumbed")
    async with connect(host, port, configuration=settings, create_protocol=Peer) as peer:
        assert isinstance(peer, Peer)
        yield peer


def rss_bytes(pid: int) -> int:
    """Return the resident memory of the process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_of(pid: int) -> Iterator[bytes]:
    """Yield all the memory that the process can read, in overlapping chunks.

    Raises:
        OSError: The kernel does not permit it.
    """
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, access, *_ = line.split()
            if not access.startswith("r") or line.endswith(("[vvar]", "[vsyscall]")):
                continue
            at, end = (int(number, 16) for number in span.split("-"))
            while at < end:
                with suppress(OSError):  # freed in the meantime, or a device's
                    yield os.pread(memory.fileno(), min(_CHUNK_BYTES, end - at), at)
                at += _CHUNK_BYTES - _OVERLAP_BYTES
