"""QUIC streams as wires, like those of TCP, and the QUIC connection that they share.

A carrier is one QUIC connection with its streams; an endpoint is a UDP socket with its
carriers. In one turn of the event loop an endpoint reads many datagrams and passes on what they
contain, with one call per stream; then each carrier with output transmits once.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from aioquic.quic import events

from braidmq.transport.door import Place
from braidmq.transport.quic import BoundedConnection, QuicLimits
from braidmq.transport.quic_endpoint import Address, Endpoint
from braidmq.transport.tcp import Carried

INTERNAL_ERROR: Final = 1

MakeStream = Callable[["StreamWire"], Carried | None]


class StreamWire:
    """One bidirectional stream, with the methods of a TCP wire, on a shared connection."""

    def __init__(self, carrier: "Carrier", stream_id: int) -> None:
        self.carrier = carrier
        self.stream_id = stream_id
        self.carried: Carried | None = None
        self.arrived: list[bytes] = []  # in order, not passed on yet
        self.input_ended = False  # by the peer's FIN, after what arrived
        self.is_finish_told = False
        self.is_paused = False
        self.is_output_ended = False  # our FIN is written
        self.is_closing = False  # nothing more is read
        self.is_stopped = False  # by the peer, which may still send
        self.is_over = False  # `lost` was called, or will be soon
        self.written_bytes = 0
        self._received_bytes = 0
        self.told_below = -1  # report room at this many unacknowledged bytes; -1: do not

    @property
    def peer_address(self) -> str:
        """The peer's host, without its port."""
        return self.carrier.peer_address

    @property
    def heard_at(self) -> float:
        """When the connection's last datagram arrived, by the monotonic clock."""
        return self.carrier.heard_at

    def write(self, data: bytes) -> None:
        """Send *data*, now or when there is room; drop it if the peer has stopped us."""
        # Dropped data counts too: a caller that waits for its arrival must not be told
        # that it arrived.
        self.written_bytes += len(data)
        if data and not (self.is_output_ended or self.is_over):
            self.carrier.write(self, data)

    def unsent_bytes(self) -> int:
        """Return how much the peer has not acknowledged, of all streams of the connection."""
        return 0 if self.is_over else self.carrier.unsent_bytes

    def stream_unsent_bytes(self) -> int:
        """Return how much the peer has not acknowledged of this stream alone."""
        return 0 if self.is_over else self.carrier.quic.unacknowledged_bytes(self.stream_id)

    def received_bytes(self) -> int:
        """Return how much of what was written has arrived, from the beginning without a gap.

        Of a lost stream, it is what was known at its end.
        """
        self._received_bytes = max(
            self._received_bytes, self.carrier.quic.received_bytes(self.stream_id)
        )
        return self._received_bytes

    def tell_below(self, size: int) -> None:
        """Have `set_writable(True)` called once at most *size* bytes are unacknowledged.

        Only this stream's bytes count, but the connection's output must have room, too.
        """
        self.told_below = size

    def pause_reading(self) -> None:
        """Deliver no data for a while; the peer can then send no more than its window."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Deliver data again, starting soon with what has arrived meanwhile."""
        if self.is_paused:
            self.is_paused = False
            if not self.is_over:
                self.carrier.look_at(self)

    def finish_output(self) -> None:
        """Send what is written, then end our half; the peer's half is still read.

        Once the peer has ended its half, too, the stream is over.
        """
        if not self.is_output_ended and not self.is_over:
            self.carrier.finish_output(self)

    def close(self) -> None:
        """Send what is written, then end the stream; further input is dropped."""
        if not self.is_closing and not self.is_over:
            self.is_closing = True
            self.carrier.close_stream(self)

    def abort(self) -> None:
        """Reset the stream at once."""
        if not self.is_over:
            self.carrier.abort_stream(self)

    def close_connection(self) -> None:
        """Close the connection with all its streams at once."""
        self.carrier.close()

    def drain_connection(self, code: int = 0, reason: str = "") -> None:
        """Send what is written on every stream, then close the connection."""
        self.carrier.drain(code, reason)

    def greeted(self, name: str) -> bool:
        """Cancel the handshake timeout; as the connection's own."""
        return self.carrier.greeted(name)

    def _is_done(self) -> bool:
        return self.is_closing or self.is_over

    def deliver(self) -> None:
        """Pass on what arrived, in one piece; called by the carrier."""
        carried = self.carried
        if carried is None or self.is_paused or self._is_done():
            return
        if self.arrived:
            data = self.arrived[0] if len(self.arrived) == 1 else b"".join(self.arrived)
            self.arrived = []
            self.carrier.quic.consume(self.stream_id, len(data))
            carried.receive(data)
        # Asked again: `receive` may have paused or closed the stream.
        if self.input_ended and not self.is_finish_told and not self.is_paused:
            self.is_finish_told = True
            if not self._is_done():
                carried.finish_input()


class Carrier:
    """One QUIC connection and its streams."""

    def __init__(
        self,
        endpoint: Endpoint,
        quic: BoundedConnection,
        limits: QuicLimits,
        *,
        address: Address,
        make_stream: MakeStream | None,
        place: Place | None = None,
    ) -> None:
        self.quic = quic
        self._place = place  # at the door; None on a client
        self.unsent_bytes = 0
        # A socket for IPv6 and IPv4 shows IPv4 peers as mapped addresses.
        self.peer_address = str(address[0]).removeprefix("::ffff:")
        self.heard_at = time.monotonic()
        self.is_ended = False
        self.is_shaken = False
        self.is_draining = False  # closes when the last stream has ended
        self._drained_with = (0, "")
        self.end_reason = ""
        self.end_code = 0
        self.wires: dict[int, StreamWire] = {}
        self.stopped_early: set[int] = set()  # streams that have said nothing yet
        self._endpoint = endpoint
        self._limits = limits
        self._make_stream = make_stream
        self._is_writable = True
        self._is_closed = False  # by us; the peer is being told
        self._pending: dict[StreamWire, None] = {}  # with something to hand on
        self._losing: list[StreamWire] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        if make_stream is not None:
            self._deadline = endpoint.loop.call_later(
                limits.handshake_timeout_s, self.close, 0, "no request in time"
            )

    # Called by streams.

    def write(self, wire: StreamWire, data: bytes) -> None:
        """Send *data* on a stream at the end of the turn."""
        if wire.is_stopped or not self.quic.send(wire.stream_id, data):
            wire.is_stopped = True
            self._endpoint.dropped_writes += 1
            return
        self.unsent_bytes += len(data)
        self._endpoint.transmit_soon(self)
        if self._is_writable and self.unsent_bytes > self._limits.output_buffer_bytes:
            self._set_writable(False)  # noqa: FBT003 - as carried.set_writable

    def look_at(self, wire: StreamWire) -> None:
        """Pass on, soon, what a stream holds."""
        self._pending[wire] = None
        self._endpoint.handle_soon(self)

    def finish_output(self, wire: StreamWire) -> None:
        """End our half of a stream after what was written."""
        wire.is_output_ended = True
        if not wire.is_stopped and not self.quic.send(wire.stream_id, b"", ends=True):
            wire.is_stopped = True
        self._endpoint.transmit_soon(self)

    def close_stream(self, wire: StreamWire) -> None:
        """End a stream after what was written."""
        wire.finish_output()
        if wire.is_stopped:
            self.abort_stream(wire)
            return
        if self._make_stream is None:
            # A STOP_SENDING would overtake our output, so it waits for the acknowledgement.
            self.quic.consume(wire.stream_id, sum(map(len, wire.arrived)))
        else:
            self.quic.stop_reading(wire.stream_id)
        wire.arrived.clear()

    def abort_stream(self, wire: StreamWire) -> None:
        """Reset a stream; its `lost` is called soon."""
        self.quic.discard_output(wire.stream_id)
        self.quic.stop_reading(wire.stream_id)
        self._lose(wire)

    def open_stream(self) -> StreamWire:
        """Return a new stream of ours; the caller sets what it carries."""
        stream_id = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream_id, b"")
        return self._add(stream_id)

    def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection at once; each stream's `lost` is called soon."""
        if not self._is_closed and not self.is_ended:
            self._is_closed = True
            self.quic.close(error_code=code, reason_phrase=reason)
            for wire in list(self.wires.values()):
                self._lose(wire)
            self._endpoint.transmit_soon(self)

    def drain(self, code: int = 0, reason: str = "") -> None:
        """End every stream after what was written, then close."""
        self.is_draining = True
        self._drained_with = (code, reason)
        for wire in list(self.wires.values()):
            wire.close()
        self._endpoint.handle_soon(self)

    def greeted(self, name: str) -> bool:
        """Cancel the handshake timeout: the peer has authenticated, as the principal *name*.

        Returns False if that principal holds too many connections for one more.
        """
        is_placed = self._place is None or self._place.known(name)
        if is_placed:
            self._cancel_deadline()
        return is_placed

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Called by the endpoint.

    def receive(self, data: bytes, address: Address, now: float) -> None:
        """Process a datagram; :meth:`handle` passes its content on."""
        self.heard_at = now
        try:
            self.quic.receive_datagram(data, address, now)
        except Exception:  # noqa: BLE001 - the peer's bytes hit an assert of the library: end only this connection
            self.end(INTERNAL_ERROR, "broken datagram")
            return
        self._endpoint.handle_soon(self)

    def handle(self) -> None:
        """Pass on everything received."""
        self._take_events()
        if self.is_ended:
            return
        self._measure()  # before delivering: acknowledgements may have made room for answers
        while self._pending:
            wire, _ = self._pending.popitem()
            wire.deliver()
        self._settle()
        self._endpoint.transmit_soon(self)

    def transmit(self) -> None:
        """Send what is due, and arm the timer."""
        if self.is_ended:
            return
        now = time.monotonic()
        for data, address in self.quic.datagrams_to_send(now):
            self._endpoint.send(data, address)
        self._take_events()  # connection ids issued in those datagrams
        self._settle()
        if not self.is_ended:
            self._arm(now)

    def end(self, code: int, reason: str) -> None:
        """End and forget the connection."""
        if self.is_ended:
            return
        self.is_ended = True
        self.end_code, self.end_reason = code, reason
        self._cancel_deadline()
        if self._place is not None:
            self._place.leave()
        if self._timer is not None:
            self._timer.cancel()
        for wire in list(self.wires.values()):
            self._lose(wire)
        self.wires.clear()
        self._endpoint.carrier_ended(self)
        self._tell_lost()

    # Inside.

    def _arm(self, now: float) -> None:
        # A timer that fires too early is armed again: cheaper than a new one per datagram.
        wanted = self.quic.get_timer()
        if wanted is None or (self._timer is not None and self._timer_at <= wanted):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wanted
        self._timer = self._endpoint.loop.call_later(max(0.0, wanted - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        wanted, now = self.quic.get_timer(), time.monotonic()
        if wanted is not None and wanted <= now + 0.001:
            self.quic.handle_timer(max(now, wanted))
        self._endpoint.handle_soon(self)

    def _take_events(self) -> None:
        while not self.is_ended and (event := self.quic.next_event()) is not None:
            self._handle_event(event)

    def _handle_event(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            self._take_in(event)
        elif isinstance(event, events.StreamReset):
            self._reset_by_peer(event.stream_id)
        elif isinstance(event, events.StopSendingReceived):
            self._stopped_by_peer(event.stream_id)
        elif isinstance(event, events.HandshakeCompleted):
            self.is_shaken = True
            self._endpoint.handshake_done(self)
        elif isinstance(event, events.ConnectionIdIssued):
            self._endpoint.add_id(event.connection_id, self)
        elif isinstance(event, events.ConnectionIdRetired):
            self._endpoint.drop_id(event.connection_id)
        elif isinstance(event, events.ConnectionTerminated):
            self.end(event.error_code, event.reason_phrase)

    def _take_in(self, event: events.StreamDataReceived) -> None:
        if self._is_closed:
            return
        wire = self.wires.get(event.stream_id)
        if wire is None:
            wire = self._accept(event.stream_id)
        if wire.is_over or wire.is_closing:
            # Dropped, but consumed: otherwise it would use up the connection's window for good.
            self.quic.consume(event.stream_id, len(event.data))
            return
        if event.data:
            wire.arrived.append(event.data)
        wire.input_ended = wire.input_ended or event.end_stream
        self._pending[wire] = None

    def _add(self, stream_id: int) -> StreamWire:
        wire = self.wires[stream_id] = StreamWire(self, stream_id)
        self.quic.start_reading(stream_id)
        return wire

    def _accept(self, stream_id: int) -> StreamWire:
        assert self._make_stream is not None  # servers cannot open streams to a client
        wire = self._add(stream_id)
        wire.is_stopped = stream_id in self.stopped_early
        self.stopped_early.discard(stream_id)
        wire.carried = None if self.is_draining else self._make_stream(wire)
        if wire.carried is None:
            wire.abort()
        elif not self._is_writable:
            wire.carried.set_writable(False)
        return wire

    def _reset_by_peer(self, stream_id: int) -> None:
        wire = self.wires.get(stream_id)
        if wire is not None and wire.is_closing and not wire.is_over:
            self.quic.stop_reading(stream_id)  # it answers our own STOP_SENDING
            return
        self.stopped_early.discard(stream_id)
        self.quic.discard_output(stream_id)
        self.quic.stop_reading(stream_id)
        if wire is not None:
            self._lose(wire)

    def _stopped_by_peer(self, stream_id: int) -> None:
        # The peer reads no more; what it has sent itself may still be in flight.
        self.quic.discard_output(stream_id)
        wire = self.wires.get(stream_id)
        if wire is None:
            # Its first data may come later; remember it until then, within a bound.
            if len(self.stopped_early) < self._limits.streams_max:
                self.stopped_early.add(stream_id)
        elif wire.is_closing:
            wire.abort()
        else:
            wire.is_stopped = True

    def _measure(self) -> None:
        unacknowledged = self.quic.unacknowledged_bytes
        self.unsent_bytes = sum(map(unacknowledged, self.wires))
        if not self._is_writable and self.unsent_bytes <= self._limits.output_buffer_bytes // 2:
            self._set_writable(True)  # noqa: FBT003 - as carried.set_writable
        if self._is_writable:
            self._tell_of_room()

    def _tell_of_room(self) -> None:
        for wire in list(self.wires.values()):
            if wire.told_below >= 0 and wire.stream_unsent_bytes() <= wire.told_below:
                wire.told_below = -1
                if wire.carried is not None and not wire.is_over:
                    wire.carried.set_writable(True)

    def _set_writable(self, writable: bool) -> None:  # noqa: FBT001 - a state, not an option
        self._is_writable = writable
        for wire in list(self.wires.values()):
            if wire.carried is not None and not wire.is_over:
                wire.carried.set_writable(writable)

    def _lose(self, wire: StreamWire) -> None:
        if not wire.is_over:
            wire.is_over = True
            wire.arrived.clear()
            # `lost` is called at the end of the turn: the caller may be this stream's own code.
            self._losing.append(wire)
            self._endpoint.transmit_soon(self)

    def _has_ended(self, wire: StreamWire) -> bool:
        if not wire.is_closing and not wire.is_finish_told:
            return False
        if wire.is_stopped:
            return True
        return wire.is_output_ended and self.quic.is_sent(wire.stream_id)

    def _settle(self) -> None:
        """End streams that are done, and forget those that both sides have ended."""
        quic = self.quic
        for wire in list(self.wires.values()):
            if not wire.is_over and self._has_ended(wire):
                self.abort_stream(wire)  # resets nothing, but may ask the peer to stop
            if wire.is_over and quic.is_forgotten(wire.stream_id):
                del self.wires[wire.stream_id]
        self._tell_lost()
        if self.is_draining and all(wire.is_over for wire in self.wires.values()):
            self.close(*self._drained_with)

    def _tell_lost(self) -> None:
        while self._losing:
            carried = self._losing.pop().carried
            if carried is not None:
                carried.lost()
