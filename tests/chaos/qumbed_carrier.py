"""What carries a Qumbed client of the rig: one stream of a QUIC connection of its own."""

import asyncio
from typing import Final

from braidmq.testing.qumbed_clients import QumbedClient, QumbedFollower
from braidmq.transport.quic import QuicLimits
from braidmq.transport.quic_client import QuicClient, Trust, connect
from braidmq.wire.qumbed import frames, messages
from tests.chaos.rig import ANSWER_TIMEOUT_S, Carrier

LIMITS: Final = QuicLimits(stream_window_bytes=16 * 1024, connection_window_bytes=64 * 1024)
"""Small windows: one who reads nothing for a moment fills them."""


class QumbedCarrier(Carrier):
    """Carries a client that speaks Qumbed; to its stream it is the connection."""

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
        """Return one whose handshake is done; it has no client yet."""
        trust = Trust(fingerprint=fingerprint)
        return cls(await connect("127.0.0.1", port, trust=trust, limits=LIMITS))

    # What the stream says.

    def receive(self, data: bytes) -> None:
        assert self.client is not None
        self.heard_bytes += len(data)
        self._decoder.receive_data(data)
        try:
            while (payload := self._decoder.next_payload()) is not None:
                self.client.receive(messages.read_frame(payload))
        except Exception as error:  # noqa: BLE001 - the loop would swallow it; whoever waits raises it
            self._fault = error
            self.gone.set()
        self.heard.set()

    def finish_input(self) -> None:
        self.gone.set()
        self.heard.set()

    def set_writable(self, writable: bool) -> None:
        pass  # bursts are small, and wait for their answers

    def lost(self) -> None:
        self.finish_input()

    # What the rig does.

    def send(self, data: bytes) -> None:
        self._wire.write(data)

    async def answered(self, unanswered_max: int) -> None:
        """Wait until at most so much is unanswered, reading or not as the client wants."""
        is_paused = isinstance(self.client, QumbedFollower) and self.client.is_paused
        if is_paused and not self._reads_on:
            self._wire.pause_reading()
            return
        self._wire.resume_reading()
        await super().answered(unanswered_max)
        self.raise_fault()

    def raise_fault(self) -> None:
        """Raise what a frame did to the client, if any did."""
        if self._fault is not None:
            raise self._fault

    def read_on(self) -> None:
        """Read whatever comes, from now on."""
        self._reads_on = True
        self._wire.resume_reading()

    async def leave(self) -> None:
        """Say that no more is wanted, and hear all that was sent before."""
        self.read_on()
        self._wire.finish_output()
        await asyncio.wait_for(self.gone.wait(), ANSWER_TIMEOUT_S)
        self.raise_fault()

    def abort(self) -> None:
        """Break the connection off."""
        self._quic.carrier.close()
        self._quic.close_socket()
        self._quic.carrier.end(0, "")
        self.gone.set()
