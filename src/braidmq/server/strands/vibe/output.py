"""The output of a Vibe connection: deliveries as Deliver frames, refusals as Errors."""

from typing import final

from braidmq.server.engine.host import Host, Limits, Wire
from braidmq.server.engine.output import Output, WaitingReply
from braidmq.server.strands.vibe.deliveries import Delivering, give_up
from braidmq.server.strands.vibe.given import Given
from braidmq.wire.vibe import session


@final
class VibeReply(WaitingReply):
    """A reply that becomes an Error when the log refuses the record it waits for."""

    def __init__(self, after_id: int, data: bytes, request: session.Command) -> None:
        super().__init__(after_id, data)
        self.request_id: str = request.id
        self.queue: str = request.queue


@final
class VibeOutput(Output):
    """What leaves one Vibe connection."""

    given: Given  # the connection's, which sets it here when it is made

    def __init__(
        self,
        host: Host,
        wire: Wire,
        limits: Limits,
        its_session: session.Session,
        body_max: int,
    ) -> None:
        super().__init__(host, wire, limits)
        self._session: session.Session = its_session
        self._delivering = Delivering(its_session, body_max)

    def collect(self) -> None:
        """Turn the deliveries into bytes behind the output so far."""
        connection = self.connection
        deliveries = connection.deliveries
        if not deliveries:
            return
        connection.deliveries = []
        now_us = self.host.now_us()
        for delivery in deliveries:
            frame = self._delivering.frame(delivery, now_us)
            entry = delivery.entry
            if frame is None:
                give_up(self.broker, entry, now_us)
                if connection.writable:
                    self.measure_room()  # its bytes are not sent
                continue
            self.pieces.append(frame)
            if entry is not None:
                self.given.note(self._delivering.message_id, entry)

    def refusal_of(self, reply: WaitingReply, reason: str) -> bytes:
        """Return the Error in place of a reply whose record the log refused.

        A repeat of a message waits for the same id as the first, and is refused with it.
        """
        if isinstance(reply, VibeReply):
            return self._session.error(
                reply.request_id, session.SERVER_ERROR, reason, reply.queue
            )
        return b""
