"""A data directory of an earlier version opens unchanged, with its snapshot and without.

The facts below held when it was written, and every later version must find the same. The tests
read them from a snapshot: its format is fixed, the names of the broker's parts are not.
"""

import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from braidmq.broker import state
from braidmq.server.config.config import Config
from braidmq.server.engine.recovery import Recovered, recover
from braidmq.wal.disk import Disk

ONE_ROOM: Final = Path(__file__).resolve().parents[2] / "data" / "one_room"

NOW_US: Final = 1_700_000_100 * 1_000_000

CONFIG: Final = Config.model_validate(
    {
        "qumbed": {"offline_s": 3600},
        "delivery": {"max_retries": 2, "retry_backoff_ms": 1000},
    }
)

TOPICS: Final = {
    # name: (newest id, messages)
    "orders": (92, 10),
    "prices": (0, 0),
    "dlq.orders": (96, 2),
    "work": (79, 8),
    "dlq.work": (26, 1),
    "urgent": (80, 11),
    "letters": (40, 1),
    "news": (83, 7),
    "dlq.news": (84, 2),
    "ticks": (54, 1),
    "memory": (0, 0),
    "gone": (57, 1),
    "feed": (94, 5),
    "rows": (99, 3),
    "alerts": (90, 4),
}

SUBSCRIPTIONS: Final[dict[int, tuple[str, str, int, list[int], dict[int, int]]]] = {
    # id: (topic, principal, newest delivery, open messages of the topic, attempts)
    1: ("orders", "ada", 10, [10, 11, 12, 13, 59, 92], {}),
    2: ("orders", "bob", 6, [7, 8, 9, 10, 11, 12, 13, 59, 92], {}),
    76: ("orders", "ada", 0, [92], {}),
}

QUEUES: Final = {
    # name: (id, policy, lanes or the ledger: (newest delivery, attempts, unsettled, open))
    "dlq.orders": (16, [0, 0, 3, 0, False, "", 0, True], [(0, {}, 2, [17, 96])]),
    "work": (18, [0, 0, 3, 0, True, "", 3, True], [(79, {21: 2}, 5, [21, 23, 24, 78, 79])]),
    "dlq.work": (25, [0, 0, 3, 0, False, "", 0, True], [(0, {}, 0, [])]),
    "urgent": (
        28,
        [3, 50, 1, 0, True, "letters", 3, True],
        [
            (0, {}, 3, [29, 33, 37]),
            (30, {}, 3, [30, 34, 38]),
            (35, {31: 2}, 2, [31, 35]),
            (36, {}, 1, [80]),
        ],
    ),
    "letters": (39, [0, 0, 3, 0, False, "", 0, True], [(0, {}, 1, [40])]),
    "news": (
        42,
        [1, 0, 3, 0, True, "", 3, True],
        [(0, {46: 0, 47: 0, 49: 1}, 4, [46, 47, 49, 83])],
    ),
    "dlq.news": (50, [0, 0, 3, 0, False, "", 0, True], [(0, {}, 2, [51, 84])]),
    "ticks": (53, [2, 0, 3, 0, True, "", 3, True], [(0, {}, 0, [])]),
    "memory": (55, [0, 7, 2, 0, True, "", 3, False], [(0, {}, 0, [])]),
    "alerts": (86, [1, 2, 0, 0, True, "", 3, True], [(0, {}, 4, [87, 88, 89, 90])]),
}

FOLLOWERS: Final = {
    # id: (topic, principal, key, id up to which it has everything)
    60: ("feed", "ada", bytes(range(1, 33)), 63),
    61: ("feed", "bob", bytes(range(101, 133)), 100),
}

DEDUP: Final = [
    [1_700_000_007_000_000, "orders", "d-1", 59],
    [1_700_000_011_000_000, "orders", "d-2", 92],
]
CURSORS: Final = [["spark-a", "ada", 3, 12]]
DONE: Final = [["q1", "s", "ada", 4, 2]]
INTENT: Final = [98, "ada", "q1", "s", 5, [[b"b" * 16, 2], [b"c" * 16, 1]], 1]
NEXT_ID: Final = 101
NEEDED_ID: Final = 7


def opened(directory: Path) -> Recovered:
    return recover(Disk(directory), CONFIG, now_us=NOW_US, clock=lambda: 0.0)


def rows_of(found: Recovered) -> dict[str, Any]:
    rows: dict[str, Any] = msgspec.msgpack.decode(state.snapshot(found.broker, NOW_US)[1])
    return rows


def open_ids(found: Recovered, topic: str, ranges: list[list[int]], priority: int) -> list[int]:
    """Return the messages of a topic that lie in none of the settled ranges."""
    read = found.wal.read(
        0,
        topic=topic.encode(),
        up_to=NEXT_ID - 1,
        count_max=1_000,
        bytes_max=1_000_000,
        priority=priority,
    )
    return [
        number
        for number, _ in read.records
        if not any(after < number <= last for after, last in ranges)
    ]


@pytest.fixture(params=["with the snapshot", "the log alone"])
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Recovered:
    """Return the recovered broker; its state must be the same either way."""
    directory = tmp_path / "data"
    shutil.copytree(ONE_ROOM, directory)
    if request.param == "the log alone":
        shutil.rmtree(directory / "snapshot")
    return opened(directory)


def test_topics_and_ids_are_as_they_were(found: Recovered) -> None:
    """Every topic with its newest message; ids continue after the last record."""
    rows = rows_of(found)

    assert TOPICS == {name: (last_id, count) for name, last_id, count, *_ in rows["topics"]}
    assert (NEXT_ID, NEEDED_ID) == (found.wal.next_id, found.broker.needed_id())
    assert [] == found.snapshots_rejected


def test_subscriptions_are_as_they_were(found: Recovered) -> None:
    """Unsettled messages, deliveries and attempts; a subscription that ended is gone."""
    actual = {
        number: (
            topic,
            principal,
            delivered_id,
            open_ids(found, topic, ranges, -1),
            dict(attempts),
        )
        for number, topic, principal, ranges, delivered_id, attempts, _ in rows_of(found)[
            "subscriptions"
        ]
    }

    assert SUBSCRIPTIONS == actual


def test_queues_of_every_mode_are_as_they_were(found: Recovered) -> None:
    """Lanes and ledgers: deliveries, attempts, counts and unsettled messages."""
    actual = {}
    for number, name, _, policy, lanes, _ in rows_of(found)["queues"]:
        facts = [
            (
                delivered_id,
                dict(attempts),
                unsettled,
                open_ids(found, name, ranges, at if len(lanes) > 1 else -1),
            )
            for at, (ranges, delivered_id, attempts, unsettled) in enumerate(lanes)
        ]
        actual[name] = (number, policy, facts)

    assert QUEUES == actual


def test_followers_are_as_they_were(found: Recovered) -> None:
    """One went offline and missed some messages; the other has all."""
    rows = rows_of(found)["followers"]

    assert FOLLOWERS == {number: tuple(facts) for number, *facts in rows}


def test_all_other_durable_state_is_as_it_was(found: Recovered) -> None:
    """Dedup ids, cursors, and the batches of sinks: finished and half appended."""
    rows = rows_of(found)

    assert (DEDUP, CURSORS) == (rows["dedup"], rows["cursors"])
    assert (DONE, INTENT) == (rows["done"], rows["intent"])


def test_a_new_snapshot_holds_the_same_state(found: Recovered) -> None:
    """This version reads back what it writes."""
    before = rows_of(found)
    broker = type(found.broker)(found.broker.settings)
    last_id, data = state.snapshot(found.broker, NOW_US)
    state.restore(broker, data)
    state.recovered(broker, last_id + 1, NOW_US)

    assert before == msgspec.msgpack.decode(state.snapshot(broker, NOW_US)[1])
