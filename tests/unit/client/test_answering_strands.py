"""Behaviour that Vibe and Qumbed share: every publish has an id, and an answer of its own."""

import pytest

import braidmq
from braidmq.client import strand as client_strand
from tests.unit.client.peer import Line, quick
from tests.unit.client.qumbed.peer import Peer as QumbedPeer
from tests.unit.client.strands import AnyPeer
from tests.unit.client.vibe.peer import Peer as VibePeer

pytestmark = pytest.mark.asyncio

answering = pytest.mark.parametrize("strand", [VibePeer, QumbedPeer], ids=["vibe", "qumbed"])


@answering
async def test_ids_differ_between_clients(strand: type[AnyPeer]) -> None:
    """Several publishers may share a topic, and only the id tells their messages apart."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url) as one,
        braidmq.connect(peer.url) as two,
    ):
        ids = {(await client.publish("orders", b"1")).id for client in (one, two) for _ in "ab"}

        assert 4 == len(ids)
        assert 4 == len(peer.payloads())


@pytest.mark.parametrize(
    ("strand", "code"),
    [
        (VibePeer, "SERVER_ERROR"),
        (VibePeer, "RATE_LIMITED"),
        (QumbedPeer, "SERVER_ERROR"),
        (QumbedPeer, "RATE_LIMIT"),
    ],
)
async def test_retry_resends_after_a_temporary_error(
    strand: type[AnyPeer], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same id, so that a duplicate can be recognised."""
    monkeypatch.setattr(client_strand, "RETRY_DELAY_S", 0.001)
    async with strand() as peer, braidmq.connect(peer.url) as client:
        peer.once(peer.publishing, peer.refusing(code))
        receipt = await client.publish("orders", b"1", retry=True)
        ids = [frame.id for frame in peer.lines[0].seen if peer.kind(frame) == peer.publishing]

        assert receipt.repeated
        assert [receipt.id] * 2 == ids


@answering
async def test_answers_from_before_the_break_are_kept(strand: type[AnyPeer]) -> None:
    """In one pipeline, confirmed messages stay confirmed; the others have unknown outcomes."""

    def confirm_one_then_hang_up(line: Line[object], frame: object) -> None:
        peer.scripts.clear()
        peer.handle(line, frame)
        peer.script(peer.publishing, lambda line, frame: line.hang_up())

    async with strand() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(peer.publishing, confirm_one_then_hang_up)
        results = await client.publish_many("orders", [b"1", b"2", b"3"])
        peer.scripts.clear()

        assert isinstance(results[0], braidmq.Receipt)
        assert isinstance(results[1], braidmq.OutcomeUnknown)
