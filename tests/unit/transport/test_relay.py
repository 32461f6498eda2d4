"""Relays: bytes between peers and a server with a Unix socket, over real sockets."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest
import trustme

from braidmq.transport.relay import CHUNK_BYTES, STRANGER_BYTES, Allowance, Relay, Relayed
from tests.unit.server.flight.waiting import until

PREFACE = b"hello\n"
EACH = 3 * CHUNK_BYTES


class World:
    """A relay for strangers, one for known peers, and a server whose ends come by a queue."""

    def __init__(self, path: Path, tls: ssl.SSLContext | None, together: int) -> None:
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path / "s"))
        self.server.listen()
        self.server.settimeout(20)
        self.allowance = Allowance(EACH, together)
        self.strangers = Relay("strangers", self.allowance)
        self.known = Relay("known")
        self.closed: SimpleQueue[Relayed] = SimpleQueue()
        self._tls = tls
        self.ends = ExitStack()

    def connected(self) -> tuple[socket.socket, Relayed]:
        """Return a peer's socket, and its connection at the relay."""
        ours, theirs = socket.socketpair()
        self.ends.enter_context(theirs)
        theirs.settimeout(20)
        ours.setblocking(False)
        peer: socket.socket = ours
        if self._tls is not None:
            peer = self._tls.wrap_socket(ours, server_side=True, do_handshake_on_connect=False)
        relayed = Relayed(peer, preface=PREFACE, connect=self._connect, closed=self.closed.put)
        self.strangers.carry(relayed)
        return theirs, relayed

    def _connect(self, _relayed: Relayed) -> socket.socket:
        inner = socket.socket(socket.AF_UNIX)
        inner.setblocking(False)
        inner.connect(self.server.getsockname())
        return inner

    def accepted(self) -> socket.socket:
        found, _ = self.server.accept()
        found.settimeout(20)
        return self.ends.enter_context(found)


@contextmanager
def world(
    path: Path, tls: ssl.SSLContext | None = None, together: int = EACH
) -> Iterator[World]:
    found = World(path, tls, together)
    try:
        yield found
    finally:
        found.strangers.close()
        found.known.close()
        found.server.close()
        found.ends.close()


def received(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := end.recv(size - len(data))):
        data += more
    return data


def ended(end: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        return end.recv(1) == b""
    return True


def noise(size: int) -> bytes:
    return bytes(number % 251 for number in range(1021)) * (size // 1021 + 1)


@pytest.mark.parametrize("secure", [False, True])
def test_bytes_arrive_as_they_were_sent(tmp_path: Path, secure: bool) -> None:
    """In both directions at once, more than any buffer holds, plain and with TLS."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("there").configure_cert(context)
    up, down = noise(5 * CHUNK_BYTES), noise(7 * CHUNK_BYTES)
    with world(tmp_path, context if secure else None) as found:
        peer, relayed = found.connected()
        if secure:
            trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            authority.configure_trust(trust)
            peer = found.ends.enter_context(trust.wrap_socket(peer, server_hostname="there"))
        peer.sendall(PREFACE)
        server = found.accepted()
        assert PREFACE == received(server, len(PREFACE))
        relayed.open_up(found.known)
        sending = Thread(target=server.sendall, args=(down,))
        sending.start()
        reading: SimpleQueue[bytes] = SimpleQueue()
        thread = Thread(target=lambda: reading.put(received(peer, len(down))))
        thread.start()
        sending_up = Thread(target=peer.sendall, args=(up,))
        if secure:  # one thread at a time may use a client's TLS
            thread.join()
        sending_up.start()

        assert up == received(server, len(up))
        assert down == reading.get(timeout=20)
        for one in (sending, thread, sending_up):
            one.join()
        server.close()
        assert ended(peer)
        assert relayed is found.closed.get(timeout=20)


def test_the_server_is_told_that_the_peer_has_ended(tmp_path: Path) -> None:
    """And its answer still arrives."""
    with world(tmp_path) as found:
        peer, _ = found.connected()
        peer.sendall(PREFACE)
        peer.shutdown(socket.SHUT_WR)
        server = found.accepted()
        assert PREFACE == received(server, 100)
        server.sendall(b"bye")
        server.close()

        assert b"bye" == received(peer, 100)


@pytest.mark.parametrize("said", [b"", b"hel", b"help!", b"\x16\x03\x01"])
def test_the_server_never_hears_of_a_peer_without_the_preface(
    tmp_path: Path, said: bytes
) -> None:
    """It costs one descriptor, and another protocol is refused at its first byte."""
    with world(tmp_path) as found:
        peer, relayed = found.connected()
        peer.sendall(said)
        if PREFACE.startswith(said):
            peer.shutdown(socket.SHUT_WR)

        assert ended(peer)
        assert relayed is found.closed.get(timeout=20)
        assert relayed.server is None


def flood(peer: socket.socket) -> None:
    """Send more than a stranger may, until the connection is closed."""
    with suppress(OSError):
        peer.sendall(bytes(20 * CHUNK_BYTES))


def test_a_stranger_is_heard_up_to_its_allowance(tmp_path: Path) -> None:
    """Even if the server reads on; once it is known, everything arrives."""
    with world(tmp_path) as found:
        peer, relayed = found.connected()
        peer.sendall(PREFACE)
        server = found.accepted()
        sending = Thread(target=peer.sendall, args=(bytes(3 * EACH),))
        sending.start()
        most = STRANGER_BYTES + EACH
        assert most + len(PREFACE) == len(received(server, most + len(PREFACE)))
        until(lambda: 0 == found.allowance.left)
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.recv(1)
        server.settimeout(20)
        relayed.open_up(found.known)

        assert 3 * EACH - most == len(received(server, 3 * EACH - most))
        sending.join()
        until(lambda: EACH == found.allowance.left)


def test_strangers_share_what_is_beyond_the_first_bytes(tmp_path: Path) -> None:
    """One that asks in vain goes on when another is gone; small requests need nothing of it."""
    with world(tmp_path, together=CHUNK_BYTES) as found:
        greedy, first = found.connected()
        greedy.sendall(PREFACE)
        hears_greedy = found.accepted()
        sending = Thread(target=lambda: flood(greedy))
        sending.start()
        received(hears_greedy, len(PREFACE) + STRANGER_BYTES + CHUNK_BYTES)
        until(lambda: 0 == found.allowance.left)

        modest, _ = found.connected()
        modest.sendall(PREFACE + bytes(STRANGER_BYTES))
        hears_modest = found.accepted()
        size = len(PREFACE) + STRANGER_BYTES
        assert size == len(received(hears_modest, size))
        modest.sendall(b"more")
        first.abort()
        assert b"more" == received(hears_modest, 4)
        sending.join()


def test_a_connection_is_aborted_from_any_thread(tmp_path: Path) -> None:
    """A stranger's, a known peer's, and one that is being handed over."""
    with world(tmp_path) as found:
        for is_known in (False, True):
            peer, relayed = found.connected()
            if is_known:
                relayed.open_up(found.known)
            relayed.abort()

            assert relayed is found.closed.get(timeout=20)
            assert ended(peer)
