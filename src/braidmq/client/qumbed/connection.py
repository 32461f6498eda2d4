"""One connection that speaks Qumbed as a client: a QUIC connection with one stream on it.

It knows no publisher and no subscription, and opens no box. On a stream the broker answers in
the order in which it was asked, so the oldest question is the one that an answer is for.

Qumbed has no PING. A Discovery is what is asked first, with the API key, and again as a fence:
it is answered behind everything before it. That the broker is there, QUIC finds out by itself.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from braidmq.base.errors import ConfigError
from braidmq.client.connection import Connection, greeted
from braidmq.client.errors import AuthenticationFailed, ConnectionFailed, InvalidArgument
from braidmq.client.options import Options
from braidmq.client.replies import Refusal, Replies
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
"""QUIC asks so often whether the broker is there before it is taken for dead."""

HOW_TO_TRUST: Final = (
    "add ?fingerprint=... as the broker tells it at its start, or name a ca_file"
)

Answer = Ack | Error | Discovery

log = logging.getLogger("braidmq.client")


def refusal_of(answer: Answer) -> Refusal | None:
    """Return the refusal that *answer* is, if it is one."""
    return Refusal(answer.code, answer.message) if isinstance(answer, Error) else None


class Post(Protocol):
    """A message laid out: its Publish frame, and the id in it."""

    id: str
    frame: bytes


class Tenant:
    """Whom a connection is for; this one wants nothing to do with messages."""

    def deliver(self, connection: "QumbedConnection", frame: Message) -> None:
        """Take a message that the broker sent."""

    def delivered(self) -> None:
        """Learn that for now no more messages are at hand."""


class _Question(NamedTuple):
    id: str
    replies: Replies[Answer] | None
    """None: a fence, and the id is its number."""
    at: int = 0
    is_publish: bool = False


class _Stream:
    """A stream as a connection's transport, and the connection as what the stream carries."""

    def __init__(self, client: QuicClient, connection: "QumbedConnection") -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._connection = connection
        self._is_finished = False
        self.wire: StreamWire = client.open_stream(lambda _: self)

    # What the stream calls.

    def receive(self, data: bytes) -> None:
        """Hand on what came."""
        self._connection.data_received(data)

    def finish_input(self) -> None:
        """Leave: a broker that says no more will answer nothing."""
        self.wire.close_connection()

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Hand on whether there is room."""
        if writable:
            self._connection.resume_writing()
        else:
            self._connection.pause_writing()

    def lost(self) -> None:
        """Hand on the end; the rest of the QUIC connection goes with it."""
        reason = self._client.carrier.end_reason
        self._connection.connection_lost(ConnectionError(reason) if reason else None)
        self._loop.call_soon(self.finish)

    # What the connection calls.

    def write(self, data: bytes) -> None:
        """Send *data*, now or when there is room."""
        self.wire.write(data)

    def close(self) -> None:
        """Send what is written, then end the stream."""
        self.wire.close()

    def abort(self) -> None:
        """End everything at once."""
        self.wire.close_connection()
        self._loop.call_soon(self.finish)

    def finish(self) -> None:
        """Close the socket, with a last word to the broker if there was none."""
        if not self._is_finished:
            self._is_finished = True
            self._client.carrier.close()
            self._client.close_socket()
            self._client.carrier.end(0, "")


class QumbedConnection(Connection[Refusal]):
    """An authenticated connection, after :meth:`handshake`."""

    def __init__(
        self,
        client: QuicClient,
        endpoint: Endpoint,
        options: Options,
        tenant: Tenant,
        on_lost: Callable[["QumbedConnection"], None],
    ) -> None:
        super().__init__(endpoint, options, on_lost, 0)
        self._tenant = tenant
        self._decoder = frames.FrameDecoder()
        self._questions: deque[_Question] = deque()
        self._stream = _Stream(client, self)
        self.gateway_key = b""
        self.is_paused = False
        self.begin(self._stream)

    # --- sending ----------------------------------------------------------------------------

    def publish(self, posts: Sequence[Post]) -> Replies[Answer]:
        """Hand messages over; return what will come of each."""
        replies: Replies[Answer] = Replies(len(posts))
        if self.is_lost:
            replies.lose()
        elif posts:
            self._asking()
            for at, post in enumerate(posts):
                self._questions.append(_Question(post.id, replies, at, is_publish=True))
                self.send(post.frame)
        return replies

    def request(self, write: Callable[[str], bytes]) -> Replies[Answer]:
        """Send the frame that *write* makes for an id; return what will come of it."""
        replies: Replies[Answer] = Replies(1)
        if self.is_lost:
            replies.lose()
            return replies
        number = str(self.next_id())
        self._asking()
        self._questions.append(_Question(number, replies))
        self.send(write(number))
        return replies

    async def ask(self, write: Callable[[str], bytes]) -> Answer:
        """Send the frame that *write* makes for an id; return the answer, perhaps an Error.

        Raises:
            ConnectionLost: The connection broke first, or was dropped since the broker is
                there and yet has not answered within `answer_timeout`.
        """
        replies = self.request(write)
        try:
            async with asyncio.timeout(self._options.answer_timeout):
                await replies.done
        except TimeoutError:
            self.abort(f"no answer within {self._options.answer_timeout:g} s")
        (answer,) = replies.answers
        if answer is None:
            raise self.lost()
        return answer

    async def handshake(self) -> None:
        """Say who we are, and learn the gateway's key.

        Raises:
            AuthenticationFailed: The broker does not know the key.
            ConnectionFailed: It refused for another reason, or answers as no broker does.
            ConnectionLost: It hung up.
        """
        replies = self.request(
            lambda number: messages.discovery(
                "", (), b"", "", frame_id=number, key=self._endpoint.key
            )
        )
        self.flush()
        await replies.done
        (answer,) = replies.answers
        if answer is None:
            raise self.lost()
        if (refusal := refusal_of(answer)) is not None:
            kind = AuthenticationFailed if refusal.code == UNAUTHORIZED else ConnectionFailed
            raise kind(self._endpoint.address, f"{refusal.code} {refusal.text}")
        if not isinstance(answer, Discovery):
            raise ConnectionFailed(self._endpoint.address, "it did not answer as a broker does")
        self.gateway_key = answer.public_key

    async def settle(self) -> bool:
        """Wait until everything handed over is answered; False when the connection breaks."""
        if not self._questions and self._next_fence is None:
            return not self.is_lost
        return await self.fence()[1]

    # --- receiving --------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Hand on no more messages, nor answers, for a while; the broker then waits."""
        self.is_paused = True
        self._stream.wire.pause_reading()

    def resume_reading(self) -> None:
        """Hand them on again: first, soon, what is here."""
        if self.is_paused:
            self.is_paused = False
            self._stream.wire.resume_reading()
            self._loop.call_soon(self._read_on)

    # --- ending -----------------------------------------------------------------------------

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everyone who waits; what has come until now is still handed on."""
        self.is_paused = False
        if not self._reason:  # it was not we who gave up
            with suppress(WireError):
                self._read(b"")
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
        deliveries = False
        try:
            while not self.is_paused and (payload := decoder.next_payload()) is not None:
                frame = messages.read_frame(payload)
                if isinstance(frame, Message):
                    deliveries = True
                    self._tenant.deliver(self, frame)
                elif isinstance(frame, Ack | Error | Discovery):
                    self._answer(frame)
                else:
                    raise MalformedPayloadError("a broker does not send frames of this type")
        finally:
            if deliveries:
                self._tenant.delivered()

    def _answer(self, answer: Answer) -> None:
        question = self._questions[0] if self._questions else None
        if isinstance(answer, Error) and (question is None or answer.id != question.id):
            log.warning("the broker says: %s %s", answer.code, answer.message)
            return
        if question is None:
            raise MalformedPayloadError("an answer to nothing")
        if question.is_publish and isinstance(answer, Ack) and answer.message_id != question.id:
            raise MalformedPayloadError("an Ack for another message than the oldest")
        self._questions.popleft()
        if question.replies is None:
            self._reach(int(question.id))
        else:
            question.replies.take(question.at, answer)

    def _ping(self, number: int) -> bytes:
        name = str(number)
        self._questions.append(_Question(name, None))
        return messages.discovery("", (), b"", "", frame_id=name)

    def _has_requests(self) -> bool:
        return bool(self._questions)

    def _drop_requests(self) -> None:
        questions, self._questions = self._questions, deque()
        for question in questions:
            if question.replies is not None:
                question.replies.lose()

    def _probe_after_s(self) -> float | None:
        return None  # QUIC's own pings cost the broker next to nothing

    def _silent_s(self, now: float) -> float:
        silent_s = super()._silent_s(now)
        if self._questions and self._questions[0].is_publish:
            # A publisher may be made to wait for room in its queue for any time, and the broker
            # is not dead meanwhile: it answers QUIC's pings.
            return min(silent_s, time.monotonic() - self._stream.wire.heard_at)
        return silent_s


def trust_of(endpoint: Endpoint, options: Options) -> Trust:
    """Return whom we take for the broker.

    Raises:
        InvalidArgument: More than one way to tell was chosen, or the file is not there.
    """
    ca_file = None if options.ca_file is None else Path(options.ca_file)
    if (ca_file is not None) + bool(endpoint.fingerprint) + options.insecure > 1:
        raise InvalidArgument("a broker is known by a fingerprint, by ca_file, or insecure")
    if ca_file is not None and not ca_file.is_file():
        raise InvalidArgument(f"ca_file: {ca_file} is not a file")
    return Trust(ca_file=ca_file, fingerprint=endpoint.fingerprint, insecure=options.insecure)


def identity_of(options: Options) -> CertificateFiles | None:
    """Return the certificate that we show when we are asked.

    Raises:
        InvalidArgument: It cannot be used.
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
    tenant: Tenant,
    on_lost: Callable[[QumbedConnection], None],
) -> QumbedConnection:
    """Return a connection to the broker that we trust, authenticated.

    Raises:
        AuthenticationFailed: The broker does not know us.
        ConnectionFailed: There is no broker, it does not speak Qumbed, or is another.
    """
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
        return QumbedConnection(client, endpoint, options, tenant, on_lost)

    return await greeted(endpoint, options, connect)
