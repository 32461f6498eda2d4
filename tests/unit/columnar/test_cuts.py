"""Cutting ranges into parts."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq import columnar
from braidmq.base.errors import ConfigError
from braidmq.columnar import cuts
from braidmq.columnar.cuts import PART_BYTES, ROW_COST_BYTES, Part
from braidmq.columnar.loss import DataLossError
from tests.unit.columnar.logs import (
    NOTE,
    log_of,
    message,
    offsets_of,
    plain_rows,
    retain_from,
    write_log,
)

TOPICS = ("a", "b", "c")


@pytest.fixture(scope="module")
def cut_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dice = Random(3)
    bodies = [
        message(dice.choice(TOPICS), bytes(dice.choice((0, 10, 500)))) for _ in range(300)
    ]
    bodies[100:100] = [NOTE] * 50
    return write_log(tmp_path_factory.mktemp("cut"), bodies)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bounds=st.tuples(st.integers(1, 351), st.integers(1, 351)),
    topics=st.none() | st.sets(st.sampled_from((*TOPICS, "none"))),
    target=st.none() | st.integers(1, 20_000),
    parts=st.none() | st.integers(1, 400),
)
def test_parts_have_every_id_once(
    cut_log: Path,
    bounds: tuple[int, int],
    topics: set[str] | None,
    target: int | None,
    parts: int | None,
) -> None:
    """Together they are the range; none is empty, and each is about as long as requested."""
    start, end = bounds
    if parts is not None:
        target = None
    found = columnar.cut(cut_log, start, end, topics=topics, target_bytes=target, parts=parts)

    assert [x for a, b, *_ in found for x in range(a, b)] == list(range(start, end))
    assert all(part.start < part.end for part in found)
    wanted = [
        row
        for row in plain_rows(cut_log)
        if start <= row["offset"] < end and (topics is None or row["topic"] in topics)
    ]
    for part in found:
        held = [len(r["value"]) for r in wanted if part.start <= r["offset"] < part.end]
        assert (len(held), sum(held)) == part[2:]
        costs = [size + ROW_COST_BYTES for size in held]
        if target is not None:
            assert sum(costs[:-1]) < target
            assert part is found[-1] or sum(costs) >= target
    if parts is not None:
        assert len(found) <= parts
        if wanted:
            even = [len(r["value"]) == 500 for r in wanted]
            assert len(found) >= min(parts, len(wanted)) or not all(even)


def test_equal_messages_are_cut_into_as_many_parts_as_requested(tmp_path: Path) -> None:
    """Ten messages make eight parts, although ten is not a multiple of eight."""
    write_log(tmp_path, [message("t", b"12345") for _ in range(10)])

    for parts in range(1, 11):
        found = columnar.cut(tmp_path, parts=parts)
        assert parts == len(found)
        assert all(part.messages in {10 // parts, 10 // parts + 1} for part in found)
    assert 10 == len(columnar.cut(tmp_path, parts=50))


def test_parts_together_are_the_range(cut_log: Path) -> None:
    """Reading them one by one gives what a single read gives."""
    found = columnar.cut(cut_log, topics=["b"], target_bytes=3000)
    assert len(found) > 5
    read = [columnar.read(cut_log, topics=["b"], start=p.start, end=p.end) for p in found]

    assert offsets_of(columnar.read(cut_log, topics=["b"])) == [
        offset for table in read for offset in offsets_of(table)
    ]


def test_a_range_without_wanted_messages_is_one_part(cut_log: Path) -> None:
    """A reader must still pass its ids; a range without ids needs no part."""
    assert [Part(5, 300, 0, 0)] == columnar.cut(cut_log, 5, 300, topics=["none"])
    assert [Part(5, 300, 0, 0)] == columnar.cut(cut_log, 5, 300, topics=["none"], parts=4)
    assert [] == columnar.cut(cut_log, 300, 300)
    assert 1 == len(columnar.cut(cut_log))
    assert PART_BYTES == 2**26


@pytest.mark.parametrize("wrong", [{"parts": 0}, {"target_bytes": 0}])
def test_parts_of_size_or_number_zero_are_refused(cut_log: Path, wrong: dict[str, int]) -> None:
    """So are both measures together."""
    with pytest.raises(ConfigError):
        columnar.cut(cut_log, **wrong)  # type: ignore[arg-type]  # one name each
    with pytest.raises(ConfigError, match="together"):
        columnar.cut(cut_log, parts=1, target_bytes=1)
    with pytest.raises(ConfigError):
        columnar.advance(cut_log, 1, messages=0)


def test_loss_is_reported_when_the_range_is_cut(tmp_path: Path) -> None:
    """A read of a part would report it too, but later."""
    with log_of(tmp_path, [message("t", b"x" * 100) for _ in range(100)]) as wal:
        retain_from(wal, 60)
        with pytest.raises(DataLossError):
            columnar.cut(tmp_path, 1, 100)
        (part,) = columnar.cut(tmp_path, 1, 100, fail_on_data_loss=False)
        with pytest.raises(DataLossError):
            columnar.advance(tmp_path, 1, messages=3)
    assert (1, 100) == part[:2]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    start=st.integers(1, 351),
    topics=st.none() | st.sets(st.sampled_from(TOPICS), min_size=1),
    messages=st.integers(1, 350),
    size=st.integers(1, 100_000),
)
def test_a_limit_admits_as_many_messages_as_fit(
    cut_log: Path, start: int, topics: set[str] | None, messages: int, size: int
) -> None:
    """Of the wanted topics, and at least one; up to the end of the log if there are fewer."""
    wanted = [
        (row["offset"], len(row["value"]))
        for row in plain_rows(cut_log)
        if row["offset"] >= start and (topics is None or row["topic"] in topics)
    ]
    fitting = [
        i
        for i in range(1, len(wanted) + 1)
        if i == 1 or (i <= messages and sum(n for _, n in wanted[:i]) <= size)
    ]
    passed = max(fitting, default=0)
    end = columnar.advance(cut_log, start, topics=topics, messages=messages, payload_bytes=size)

    assert end == (351 if passed == len(wanted) else wanted[passed][0])


def test_the_number_of_parts_is_bounded(cut_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who takes bytes for MiB gets an error before the list fills the memory."""
    monkeypatch.setattr(cuts, "PARTS_MAX", 299)

    assert 299 == len(columnar.cut(cut_log, end=350, target_bytes=1))
    with pytest.raises(ConfigError, match="would be more than 299 parts: ask for larger ones"):
        columnar.cut(cut_log, target_bytes=1)


def test_topics_that_are_not_allowed_do_not_count(cut_log: Path) -> None:
    """They are treated like topics that are not wanted."""

    def allowed(topic: str) -> bool:
        return topic != "b"

    assert columnar.cut(cut_log, topics=["a", "c"], target_bytes=900) == columnar.cut(
        cut_log, allowed=allowed, target_bytes=900
    )
    assert columnar.advance(cut_log, 1, topics=["a", "c"], messages=17) == columnar.advance(
        cut_log, 1, allowed=allowed, messages=17
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda log: columnar.cut(log, -1),
        lambda log: columnar.cut(log, 0, -1),
        lambda log: columnar.advance(log, -1),
    ],
)
def test_ids_are_not_negative(cut_log: Path, call: Callable[[Path], object]) -> None:
    """As in reads: a negative offset is refused, not taken for the start."""
    with pytest.raises(ConfigError, match="ids are not negative"):
        call(cut_log)
