"""The part of the log that a principal may read."""

from pathlib import Path

import pytest

from braidmq import columnar
from braidmq.base.errors import NotAllowedError
from braidmq.broker.authorize import SUBSCRIBE, Grant, Principal
from braidmq.columnar.flight import requests
from braidmq.server.flight.reading import Reading
from tests.unit.columnar.logs import message, write_log

TOPICS = ("a1", "a2", "b", "c")
ALL_TOPICS = Principal("all", publish=[], subscribe=["*"])
NO_TOPICS = Principal("none", publish=["*"], subscribe=[], admin=True)
PRINCIPALS = {
    "by a star": (ALL_TOPICS, set(TOPICS)),
    "by a pattern": (Principal("p", publish=[], subscribe=["a*"]), {"a1", "a2"}),
    "by names": (Principal("p", publish=[], subscribe=["b", "a2", "x"]), {"a2", "b"}),
    "by a grant": (
        Principal("p", publish=[], subscribe=[], grants=[Grant("c", {SUBSCRIBE})]),
        {"c"},
    ),
    "to publish only": (NO_TOPICS, set()),
}


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    bodies = [message(TOPICS[n % 4], b"%d" % n, n) for n in range(40)]
    return Reading(write_log(tmp_path_factory.mktemp("log"), bodies))


@pytest.mark.parametrize(("principal", "seen"), PRINCIPALS.values(), ids=PRINCIPALS)
def test_a_principal_sees_what_it_may_subscribe_to(
    reading: Reading, principal: Principal, seen: set[str]
) -> None:
    """In rows, names, counts, cuts and advances alike."""
    found = reading.batches(principal, requests.ReadRequest(columns=["topic"]), [])
    (names,) = reading.topics(principal, requests.TopicsRequest())
    (counts,) = reading.topic_counts(principal, requests.TopicCountsRequest())
    parts = reading.cut(principal, requests.CutRequest()).parts
    behind = reading.advance(principal, requests.AdvanceRequest(1, messages=len(seen) or 1))

    assert seen == {name for batch in found for name in batch["topic"].to_pylist()}
    assert seen == set(names.topics)
    assert dict.fromkeys(seen, 10) == {name: n for name, (n, _) in counts.counts.items()}
    assert 10 * len(seen) == sum(part[2] for part in parts)
    # Once around, and on to the next message of a visible topic.
    assert behind.offset == (5 + min(map(TOPICS.index, seen)) if seen else 41)


@pytest.mark.parametrize("topics", [["b"], ["a1", "b"], ["x"], [""]])
def test_every_requested_topic_must_be_allowed(reading: Reading, topics: list[str]) -> None:
    """Whether it exists or not: a request must not reveal that."""
    anna = Principal("anna", publish=[], subscribe=["a*"])
    denied = topics[-1]
    for ask in (
        lambda: reading.batches(anna, requests.ReadRequest(topics=topics), []),
        lambda: reading.cut(anna, requests.CutRequest(topics=topics)),
        lambda: reading.advance(anna, requests.AdvanceRequest(1, topics)),
    ):
        with pytest.raises(NotAllowedError) as caught:
            ask()
        assert (SUBSCRIBE, denied) == (caught.value.operation, caught.value.name)


def test_names_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, each once, in order, and each page says how far the scan went."""
    names = [f"t{n:02}" for n in range(25)]
    reading = Reading(write_log(tmp_path, [message(name, b"") for name in names]))
    monkeypatch.setattr(requests, "PAGE_TOPICS", 10)
    pages = list(reading.topics(ALL_TOPICS, requests.TopicsRequest()))
    counts = list(reading.topic_counts(ALL_TOPICS, requests.TopicCountsRequest()))

    assert [names[:10], names[10:20], names[20:]] == [page.topics for page in pages]
    assert 3 * [26] == [page.end for page in pages]
    assert [names[:10], names[10:20], names[20:]] == [list(page.counts) for page in counts]
    assert [[]] == [page.topics for page in reading.topics(NO_TOPICS, requests.TopicsRequest())]


def test_a_batch_is_bounded_whatever_the_request_says(tmp_path: Path) -> None:
    """In rows, and in bytes unless a single message is larger."""
    bodies = [message("t", bytes(2**20)) for _ in range(9)] + [message("t", b"")] * 9
    reading = Reading(write_log(tmp_path, bodies, segment_bytes=2**26))
    wanted = requests.ReadRequest(batch_rows=requests.ID_MAX)
    sizes = [len(batch) for batch in reading.batches(ALL_TOPICS, wanted, [])]

    assert 18 == sum(sizes)
    assert len(sizes) >= 9 * 2**20 // requests.READ_BATCH_BYTES
    small = requests.ReadRequest(batch_rows=4)
    assert 4 == max(len(batch) for batch in reading.batches(ALL_TOPICS, small, []))


def test_any_key_may_read_offsets_and_times(reading: Reading) -> None:
    """They reveal nothing about any topic."""
    answer = reading.offsets(NO_TOPICS, requests.OffsetsRequest())

    assert (1, 41) == (answer.earliest, answer.latest)
    assert 8 == reading.offset_at(NO_TOPICS, requests.OffsetAtRequest(7)).offset
    assert columnar.Offsets(1, 41) == (answer.earliest, answer.latest)
