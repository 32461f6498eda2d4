"""One connection that speaks Qumbed as a client: a QUIC connection with one stream on it.

It knows neither publishers nor subscriptions, and opens no box. On a stream the broker answers
in the order in which it was asked, so an answer belongs to the oldest request.

Qumbed has no PING. The client sends a Discovery first, with the API key, and again as a fence:
the broker answers it after everything before it. QUIC itself checks that the broker is alive.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from braidmq.base.errors import ConfigError
from braidmq.client.connection import Connection, Deliveries, greeted
from braidmq.client.errors import ConnectionFailed, InvalidArgument
from braidmq.client.options import Options
from braidmq.client.replies import Refusal, Replies, Requests
from braidmq.client.url import Endpoint
from braidmq.transport import quic_client
from braidmq.transport.certificates import CertificateFiles, load
from braidmq.transport.quic_client import (
    BAD_CERTIFICATE,
    CLIENT_LIMITS,
    HandshakeError,
    QuicClient,
    Trust,
)
from braidmq.transport.quic_streams import StreamWire
from braidmq.wire.errors import MalformedPayloadError, WireError
from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.messages import Ack, Discovery, Error, Message
from braidmq.wire.qumbed.session import UNAUTHORIZED

PROBES_PER_TIMEOUT: Final = 3
"""QUIC pings that go unanswered before the broker is considered dead."""

HOW_TO_TRUST: Final = (
    "add ?fingerprint=... as the broker prints it at its start, or pass ca_file"
)

Answer = Ack | Error | Discovery

log = logging.getLogger("braidmq.client")


class Receiver(Deliveries):
    """What gets a connection's messages; this one, for publishing, ignores them."""

    def deliver(self, connection: "QumbedConnection", frame: Message) -> None:
        """Take a message that the broker sent."""


class _Question(NamedTuple):
    id: str
    replies: Replies[Answer] | None
    """None: a fence, and the id is its number."""
    at: int = 0
    is_publish: bool = False


class _Questions(Requests[Answer]):
    """Requests in the order in which they were sent, which is that of their answers."""

    def __init__(self) -> None:
        super().__init__()
        self.line: deque[_Question] = deque()

    def __len__(self) -> int:
        return len(self.line)

    def expect(self, request_id: int | str, replies: Replies[Answer], at: int) -> None:
        """Add a request; only publishes have text as their ids."""
        is_publish = isinstance(request_id, str)
        self.line.append(_Question(str(request_id), replies, at, is_publish))

    def drop(self) -> None:
        """Tell all waiters that their answer will not come."""
        line, self.line = self.line, deque()
        for question in line:
            if question.replies is not None:
                question.replies.lose()


class _Stream(asyncio.WriteTransport):
    """Joins a QUIC stream and a connection: each calls the other through it."""

    def __init__(self, client: QuicClient, connection: "QumbedConnection") -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._connection = connection
        self.wire: StreamWire = client.open_stream(lambda _: self)

    # Called by the stream.

    def receive(self, data: bytes) -> None:
        """Pass on received bytes."""
        self._connection.data_received(data)

    def finish_input(self) -> None:
        """End the connection: a broker that has ended its half will answer nothing."""
        self.wire.close_connection()

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Pass on whether there is room."""
        if writable:
            self._connection.resume_writing()
        else:
            self._connection.pause_writing()

    def lost(self) -> None:
        """Pass on the end, and close the QUIC connection with its only stream."""
        reason = self._client.carrier.end_reason
        self._connection.connection_lost(ConnectionError(reason) if reason else None)
        # Not at once: the carrier is calling us and is not done with its own bookkeeping.
        self._loop.call_soon(self.finish)

    # Called by the connection.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send *data*, now or when there is room."""
        self.wire.write(bytes(data))

    def close(self) -> None:
        """Send what is written, then end the stream."""
        self.wire.close()

    def abort(self) -> None:
        """End everything at once."""
        self.wire.close_connection()
        self._loop.call_soon(self.finish)

    def finish(self) -> None:
        """End the QUIC connection and close its socket; calling it again does nothing."""
        self._client.carrier.close()
        self._client.close_socket()
        self._client.carrier.end(0, "")


class QumbedConnection(Connection[Answer]):
    """An authenticated connection, after :meth:`handshake`."""

    unauthorized_code = UNAUTHORIZED
    _receiver: Receiver

    def __init__(
        self,
        client: QuicClient,
        endpoint: Endpoint,
        options: Options,
        receiver: Receiver,
        on_lost: Callable[["QumbedConnection"], None],
    ) -> None:
        self._questions = _Questions()
        super().__init__(endpoint, options, receiver, on_lost, requests=self._questions)
        self._decoder = frames.FrameDecoder()
        self._stream = _Stream(client, self)
        self.gateway_key = b""
        self.is_paused = False
        self.begin(self._stream)

    async def handshake(self) -> None:
        """Authenticate, and learn the gateway's key; raises as the base class documents."""
        replies = self.request(
            lambda number: messages.discovery(
                "", (), b"", "", frame_id=str(number), key=self._endpoint.key, asks_times=True
            )
        )
        self.flush()
        answer = await self.answer(replies, self._turned_away)
        if not isinstance(answer, Discovery):
            raise ConnectionFailed(self._endpoint.address, "the answer is not that of a broker")
        self.gateway_key = answer.public_key

    @staticmethod
    def refusal_of(answer: Answer) -> Refusal | None:
        """Return the refusal that *answer* is, or None if it is not one."""
        return Refusal(answer.code, answer.message) if isinstance(answer, Error) else None

    async def settle(self) -> bool:
        """Wait until everything handed over is answered; False when the connection breaks."""
        if not self._questions and self._next_fence is None:
            return not self.is_lost
        return await self.fence()[1]

    # --- receiving --------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Stop handling messages and answers for a while; the broker then stops sending."""
        self.is_paused = True
        self._stream.wire.pause_reading()

    def resume_reading(self) -> None:
        """Handle them again, starting with what was received meanwhile."""
        if self.is_paused:
            self.is_paused = False
            self._stream.wire.resume_reading()
            self._loop.call_soon(self._read_on)

    # --- ending -----------------------------------------------------------------------------

    def connection_lost(self, error: Exception | None) -> None:
        """Tell every waiter, after handling what was received before the end."""
        self.is_paused = False
        if not self._reason:  # otherwise the client gave up, and reads nothing more
            with suppress(WireError):
                self._read(b"")
            self._announce()
        super().connection_lost(error)

    async def close(self) -> None:
        """Write what was handed over, then end stream and connection."""
        await super().close()
        self._stream.finish()

    # --- inside -----------------------------------------------------------------------------

    def _read_on(self) -> None:
        if not self.is_lost and not self.is_paused:
            self.data_received(b"")

    def _read(self, data: bytes) -> None:
        decoder = self._decoder
        decoder.receive_data(data)
        while not self.is_paused and (payload := decoder.next_payload()) is not None:
            frame = messages.read_frame(payload)
            if isinstance(frame, Message):
                self._has_deliveries = True
                self._receiver.deliver(self, frame)
            elif isinstance(frame, Ack | Error | Discovery):
                self._answer(frame)
            else:
                raise MalformedPayloadError("a broker does not send frames of this type")

    def _answer(self, answer: Answer) -> None:
        question = self._questions.line[0] if self._questions.line else None
        # An Error names the frame that it refuses. One that does not name the oldest request
        # answers none, and must not take the place of the answer that is still to come.
        if isinstance(answer, Error) and (question is None or answer.id != question.id):
            log.warning("refused by the broker: %s %s", answer.code, answer.message)
            return
        if question is None:
            raise MalformedPayloadError("an answer without a request")
        if question.is_publish and isinstance(answer, Ack) and answer.message_id != question.id:
            raise MalformedPayloadError("an Ack for another message than the oldest")
        self._questions.line.popleft()
        if question.replies is None:
            self._reach(int(question.id))
        else:
            question.replies.take(question.at, answer)

    def _ping(self, number: int) -> bytes:
        name = str(number)
        self._questions.line.append(_Question(name, None))
        return messages.discovery("", (), b"", "", frame_id=name)

    def _probe_after_s(self) -> float | None:
        return None  # QUIC's own pings are cheaper for the broker

    def _silent_s(self, now: float) -> float:
        silent_s = super()._silent_s(now)
        if self._questions.line and self._questions.line[0].is_publish:
            # A broker may let a publisher wait for room in a full queue for any length of
            # time. QUIC's own pings tell whether it is still alive.
            return min(silent_s, time.monotonic() - self._stream.wire.heard_at)
        return silent_s


def trust_of(endpoint: Endpoint, options: Options) -> Trust:
    """Return how to verify the broker's certificate.

    Raises:
        InvalidArgument: More than one way was chosen, or the file does not exist.
    """
    ca_file = None if options.ca_file is None else Path(options.ca_file)
    if (ca_file is not None) + bool(endpoint.fingerprint) + options.insecure > 1:
        raise InvalidArgument("use only one of a fingerprint, ca_file and insecure")
    if ca_file is not None and not ca_file.is_file():
        raise InvalidArgument(f"ca_file: {ca_file} is not a file")
    return Trust(ca_file=ca_file, fingerprint=endpoint.fingerprint, insecure=options.insecure)


def identity_of(options: Options) -> CertificateFiles | None:
    """Return the certificate to show to a broker that asks for one.

    Raises:
        InvalidArgument: It is invalid, or its files cannot be read.
    """
    if options.certificate is None:
        return None
    certificate, key = options.certificate
    try:
        return load("client", Path(certificate), Path(key))
    except ConfigError as error:
        raise InvalidArgument(f"certificate: {error.problem}") from None


async def open_connection(
    endpoint: Endpoint,
    options: Options,
    receiver: Receiver,
    on_lost: Callable[[QumbedConnection], None],
) -> QumbedConnection:
    """Return an authenticated connection to a broker whose certificate was verified.

    Raises:
        AuthenticationFailed: The broker does not accept the credentials.
        ConnectionFailed: There is no broker, it does not speak Qumbed, or its certificate is
            not trusted.
    """
    # The idle timeout leaves time for a keepalive ping and its answer, so that a connection
    # that is merely quiet does not count as dead.
    limits = replace(
        CLIENT_LIMITS,
        handshake_timeout_s=options.connect_timeout,
        idle_timeout_s=options.keepalive + options.answer_timeout,
    )

    async def connect() -> QumbedConnection:
        trust = trust_of(endpoint, options)
        try:
            client = await quic_client.connect(
                endpoint.host,
                endpoint.port,
                trust=trust,
                limits=limits,
                keepalive_s=min(options.keepalive, options.answer_timeout / PROBES_PER_TIMEOUT),
                certificate=identity_of(options),
            )
        except HandshakeError as error:
            if error.code != BAD_CERTIFICATE or trust.fingerprint:
                raise
            reason = f"its certificate is not trusted ({error.reason}): {HOW_TO_TRUST}"
            raise ConnectionFailed(endpoint.address, reason) from None
        return QumbedConnection(client, endpoint, options, receiver, on_lost)

    return await greeted(endpoint, options, connect)
