"""Connects a Qumbed client of the rig: one stream on a QUIC connection of its own."""

import asyncio
from typing import Final

from braidmq.testing.qumbed_clients import QumbedClient, QumbedFollower
from braidmq.transport.quic import QuicLimits
from braidmq.transport.quic_client import QuicClient, Trust, connect
from braidmq.wire.qumbed import frames, messages
from tests.chaos.rig import ANSWER_TIMEOUT_S, Carrier

LIMITS: Final = QuicLimits(stream_window_bytes=16 * 1024, connection_window_bytes=64 * 1024)
"""Small windows, which a client that stops reading fills quickly."""


class QumbedCarrier(Carrier):
    """The connection of a Qumbed client; it also serves as its stream's handler."""

    client: QumbedClient | None = None

    def __init__(self, quic: QuicClient) -> None:
        super().__init__()
        self.heard_bytes = 0
        self._quic = quic
        self._wire = quic.open_stream(lambda _: self)
        self._decoder = frames.FrameDecoder()
        self._fault: Exception | None = None
        self._reads_on = False

    @classmethod
    async def connect(cls, port: int, fingerprint: str) -> "QumbedCarrier":
        """Return a carrier whose handshake is done; it has no client yet."""
        trust = Trust(fingerprint=fingerprint)
        return cls(await connect("127.0.0.1", port, trust=trust, limits=LIMITS))

    # Called by the stream.

    def receive(self, data: bytes) -> None:
        assert self.client is not None
        self.heard_bytes += len(data)
        self._decoder.receive_data(data)
        try:
            while (payload := self._decoder.next_payload()) is not None:
                self.client.receive(messages.read_frame(payload))
        except Exception as error:  # noqa: BLE001 - the loop would swallow it; `raise_fault` raises it
            self._fault = error
            self.gone.set()
        self.heard.set()

    def finish_input(self) -> None:
        self.gone.set()
        self.heard.set()

    def set_writable(self, writable: bool) -> None:
        pass  # bursts are small, and the client waits for the answers

    def lost(self) -> None:
        self.finish_input()

    # Called by the rig.

    def send(self, data: bytes) -> None:
        self._wire.write(data)

    async def answered(self, unanswered_max: int) -> None:
        """Wait until at most *unanswered_max* requests are open, unless reading is paused."""
        is_paused = isinstance(self.client, QumbedFollower) and self.client.is_paused
        if is_paused and not self._reads_on:
            self._wire.pause_reading()
            return
        self._wire.resume_reading()
        await super().answered(unanswered_max)
        self.raise_fault()

    def raise_fault(self) -> None:
        """Raise the exception that a frame caused in the client, if any."""
        if self._fault is not None:
            raise self._fault

    def read_on(self) -> None:
        """Read everything from now on, whatever the client wants."""
        self._reads_on = True
        self._wire.resume_reading()

    async def leave(self) -> None:
        """End the stream, and read everything that was sent before."""
        self.read_on()
        self._wire.finish_output()
        await asyncio.wait_for(self.gone.wait(), ANSWER_TIMEOUT_S)
        self.raise_fault()

    def abort(self) -> None:
        """Drop the connection."""
        self._quic.carrier.close()
        self._quic.close_socket()
        self._quic.carrier.end(0, "")
        self.gone.set()
