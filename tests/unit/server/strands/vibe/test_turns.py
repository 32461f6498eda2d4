"""What one turn of a Vibe connection may cost."""

import gzip

from tests.integration.vibe.peer import GZIP, PING, PUBLISH, V1_1, body, frame
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, taken


def test_a_turn_of_compressed_frames_is_bounded() -> None:
    """Those that are left are handled after others had a turn, in order, none lost."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    packed = gzip.compress(body(PUBLISH, "7", "q", b'"' + b"x" * 300_000 + b'"'))
    connection.receive(frame(V1_1, packed, GZIP) * 5 + frame(V1_1, body(PING, "p")))
    connection.receive(frame(V1_1, body(PING, "q")))
    answered = []
    while True:
        hand.settle()
        answered.append([reply.id for reply in taken(wire)])
        if not hand.wakes:
            break
        waking, delay_us = hand.wakes.pop()
        assert (connection, 0) == (waking, delay_us)
        connection.earn()

    assert [["7", "7"], ["7", "7"], ["7", "p", "q"]] == answered
