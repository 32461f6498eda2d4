"""Unfinished input: what is counted, and when a peer is refused; see also test_quotas."""

from braidmq.broker.authorize import Principal
from braidmq.broker.broker import Broker
from braidmq.broker.quotas import Quotas, refusal
from braidmq.broker.settings import Settings
from braidmq.server.engine.unfinished import PROGRESS_BYTES, PROGRESS_US, UnfinishedInput
from tests.unit.server.by_hand import Hand

LIMIT = 300_000
ADA = Principal("ada", publish=[], subscribe=[], quotas=Quotas({"unfinished_bytes": LIMIT}))


def test_bytes_are_counted_by_principal_and_in_all() -> None:
    """What shrinks or ends is given back; only what grows is refused."""
    hand = Hand()
    broker = Broker(Settings())
    unfinished = UnfinishedInput(broker)
    (one, _), (two, _) = hand.connect(), hand.connect()
    one.principal = two.principal = ADA
    account = broker.topics.accounts.of("ada")

    assert "" == unfinished.note(one, LIMIT - 1, 0)
    assert refusal("unfinished_bytes", LIMIT, "ada") == unfinished.note(two, 2, 0)
    assert "" == unfinished.note(two, 1, 0)
    assert (LIMIT, LIMIT) == (account.used("unfinished_bytes"), unfinished.bytes)
    unfinished.note(one, 0, 0)
    unfinished.note(two, 0, 0)
    assert (0, 0, 0) == (account.used("unfinished_bytes"), unfinished.bytes, len(unfinished))


def test_all_together_may_take_half_of_the_memory() -> None:
    """However many principals there are; strangers have none."""
    settings = Settings()
    settings.memory_bytes = 1_000
    unfinished = UnfinishedInput(Broker(settings))
    connection, _ = Hand().connect()
    connection.principal = None

    assert "" == unfinished.note(connection, 500, 0)
    said = "half of limits.max_memory_bytes; whoever runs the broker may raise it"
    assert said in unfinished.note(connection, 501, 0)


def test_progress_moves_the_deadline() -> None:
    """Enough bytes, or the end of a frame; a trickle does not."""
    hand = Hand()
    unfinished = hand.engine.unfinished
    connection, _ = hand.connect()
    for now_us, size in ((0, 10_000), (1, 10_001), (2, 10_000 + PROGRESS_BYTES), (3, 90_000)):
        unfinished.note(connection, size, now_us)
    unfinished.refuse_overdue(PROGRESS_US + 1)
    in_time = connection.closed
    unfinished.refuse_overdue(PROGRESS_US + 2)

    assert (False, True, 0) == (in_time, connection.closed, unfinished.bytes)
