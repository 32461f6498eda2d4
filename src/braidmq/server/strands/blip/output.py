"""The output of a Blip connection: deliveries as PUBLISH frames, refusals as NACKs."""

from typing import Final, final

from librt.strings import BytesWriter

from braidmq.broker.topics import Message
from braidmq.server.engine.output import Output, WaitingReply
from braidmq.wire.blip import messages, session

REFUSAL_TEXT_MAX: Final = 200
"""Characters of the text in a NACK: it is one short line."""

DURABLE_PUBLISH_FAILED: Final = "durable publish failed"
PUBLISH_FAILED: Final = "publish failed"
SUBSCRIBE_FAILED: Final = "subscribe failed"
"""What a NACK 500 says before its reason."""


@final
class SubscribeReply(WaitingReply):
    """The ACK of a SUBSCRIBE, which the log may still refuse."""

    def __init__(self, after_id: int, data: bytes, correlation_id: int) -> None:
        super().__init__(after_id, data)
        self.correlation_id: int = correlation_id


@final
class BlipOutput(Output):
    """What leaves one Blip connection."""

    def collect(self) -> None:
        """Turn the deliveries into bytes behind the output so far."""
        deliveries = self.connection.deliveries
        if deliveries:
            out = BytesWriter()
            for delivery in deliveries:
                messages.write_delivery(
                    out, delivery.correlation_id, delivery.qos, delivery.message.body
                )
            self.pieces.append(out.getvalue())
            self.connection.deliveries = []

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:
        """Turn the answers to what the log refused, from *from_id* on, into NACKs.

        A publish has no reply of its own: its NACK goes where its request stood, which is
        before the first reply that waits for its id or a later one.
        """
        kept: list[WaitingReply] = []
        at = 0
        for reply in self.replies:
            while at < len(refused) and refused[at].id <= reply.after_id:
                kept.append(_late_refusal(refused[at], reason))
                at += 1
            if reply.after_id < from_id:
                kept.append(reply)
            else:
                kept.append(self.refused_reply(reply, again_id, reason))
        kept.extend(_late_refusal(message, reason) for message in refused[at:])
        self.replace_replies(kept)

    def refusal_of(self, reply: WaitingReply, reason: str) -> bytes:
        """Return the NACK in place of a SUBSCRIBE's ACK; other replies wait for longer."""
        if isinstance(reply, SubscribeReply):
            return refusal(reply.correlation_id, SUBSCRIBE_FAILED, reason)
        return b""


def refusal(correlation_id: int, what: str, reason: str) -> bytes:
    """Return a NACK 500 that says what failed, and why."""
    text = f"{what}: {reason}"[:REFUSAL_TEXT_MAX]
    return messages.encode_nack(correlation_id, session.SERVER_ERROR, text)


def _late_refusal(message: Message, reason: str) -> WaitingReply:
    return WaitingReply(0, refusal(message.correlation_id, DURABLE_PUBLISH_FAILED, reason))
