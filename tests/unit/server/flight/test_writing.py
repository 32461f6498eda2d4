"""Flight calls that change the broker: cursors, stages and commits."""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pytest

from braidmq.base.errors import ConfigError, CursorError, NotAllowedError
from braidmq.broker.authorize import PUBLISH, Grant, Principal
from braidmq.columnar.flight import requests
from braidmq.columnar.flight.failures import (
    BrokenStreamError,
    UnauthenticatedError,
    UnavailableError,
)
from braidmq.columnar.flight.requests import BadRequestError, EndOfStage, encode
from braidmq.server.cursors import Cursors
from braidmq.server.flight.calls import Call
from braidmq.server.flight.writing import Writing, may_publish, sent_batches
from braidmq.server.sink.sink import Sink
from braidmq.server.sink.stages import Stages
from braidmq.testing import running_broker
from braidmq.testing.broker import RunningBroker
from braidmq.wal.disk import Disk

SCHEMA = pa.schema([("value", pa.binary())])
ANNA = Principal("anna", publish=["a*"], subscribe=["a*"])
BERT = Principal("bert", publish=["*"], subscribe=["*"])
CALL = Call(ANNA, lambda _call: None)
ADMIN = Principal("admin", publish=[], subscribe=[], admin=True)

Answer = TypeVar("Answer")
Chunk = tuple[pa.RecordBatch | None, pa.Buffer | None]


class Sent:
    """Stand in for Flight's reader of a stream: chunks, then an end of some kind."""

    schema = SCHEMA

    def __init__(self, *chunks: Chunk, end: type[BaseException] = StopIteration) -> None:
        self._chunks = list(chunks)
        self._end = end

    def read_chunk(self) -> Chunk:
        if not self._chunks:
            raise self._end
        return self._chunks.pop(0)


def rows(*values: bytes) -> Chunk:
    return pa.record_batch([pa.array(values, pa.binary())], schema=SCHEMA), None


def mark(count: int) -> Chunk:
    return rows()[0], pa.py_buffer(encode(EndOfStage(count)))


def test_batches_are_passed_on_up_to_the_mark() -> None:
    """Nothing after the mark is read."""
    found = list(sent_batches(CALL, Sent(rows(b"1", b"2"), rows(b"3"), mark(3), rows(b"4"))))

    assert [2, 1, 0] == [len(batch) for batch in found]


def bad_offsets() -> Chunk:
    """Return a batch with a value that lies outside its buffer."""
    offsets = pa.py_buffer(np.array([0, 2**30, 1], np.int32))  # the ends are fine
    array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"x")])
    return pa.record_batch([array], schema=SCHEMA), None


BROKEN: dict[str, tuple[Sent, type[Exception], str]] = {
    "nothing": (Sent(), BrokenStreamError, "broke off after 0 rows"),
    "an end before the mark": (Sent(rows(b"1")), BrokenStreamError, "broke off after 1 rows"),
    "missing rows": (Sent(rows(b"1"), mark(2)), BrokenStreamError, "2 rows were sent"),
    "too many rows": (Sent(rows(b"1"), mark(0)), BrokenStreamError, "0 rows were sent, but 1"),
    "a library error": (Sent(end=pa.ArrowInvalid), BadRequestError, "cannot be read"),
    "a connection error": (Sent(end=OSError), BadRequestError, "cannot be read"),
    "an invalid mark": (
        Sent((rows()[0], pa.py_buffer(b"[]"))),
        BadRequestError,
        "is not a EndOfStage",
    ),
    "a value outside its buffer": (Sent(bad_offsets()), BadRequestError, "is not valid"),
    "a batch that is too large": (
        Sent(rows(bytes(requests.STAGE_BATCH_BYTES_MAX))),
        BadRequestError,
        "the limit is",
    ),
}


@pytest.mark.parametrize(("sent", "kind", "problem"), BROKEN.values(), ids=BROKEN)
def test_an_incomplete_or_invalid_stream_is_an_error(
    sent: Sent, kind: type[Exception], problem: str
) -> None:
    """A stage holds everything that was sent, or there is no stage."""
    with pytest.raises(kind, match=problem):
        list(sent_batches(CALL, sent))


def writing_of(broker: RunningBroker, cursors: type[Cursors] = Cursors) -> Writing:
    status = broker.daemon.status
    stages = Stages(Disk(broker.data_dir), now_us=broker.clock.now_us)
    sink = Sink(lambda: status.engine, lambda: status.wal, stages)
    return Writing(cursors(lambda: status.engine, lambda: status.wal), stages, sink)


async def on_thread(call: Callable[..., Answer], *arguments: Any) -> Answer:  # noqa: ANN401 - whatever *call* takes
    return await asyncio.to_thread(call, *arguments)


@pytest.mark.asyncio
async def test_cursors_are_kept_by_the_broker() -> None:
    """A principal opens, moves and lists its own; an administrator may remove any."""
    async with running_broker() as broker:
        writing = writing_of(broker)
        place = await on_thread(
            writing.open_cursor, ANNA, requests.OpenCursorRequest("c", None)
        )
        again = await on_thread(writing.open_cursor, ANNA, requests.OpenCursorRequest("c", 0))
        await on_thread(writing.move_cursor, ANNA, requests.MoveCursorRequest("c", 2))
        lists = [
            (await on_thread(writing.cursors, who, requests.CursorsRequest())).cursors
            for who in (ANNA, BERT, ADMIN)
        ]
        with pytest.raises(NotAllowedError):
            await on_thread(writing.move_cursor, BERT, requests.MoveCursorRequest("c", 2))
        await on_thread(writing.remove_cursor, ADMIN, requests.RemoveCursorRequest("c"))
        with pytest.raises(CursorError):
            await on_thread(writing.move_cursor, ANNA, requests.MoveCursorRequest("c", 2))

    assert (1, 1, True) == (place.initial, place.position, place.created)
    assert (1, False) == (again.initial, again.created)
    assert [1, 0, 1] == [len(found) for found in lists]
    assert ("c", "anna", 1, 2) == tuple(
        getattr(lists[0][0], name) for name in ("name", "principal", "initial", "position")
    )


@pytest.mark.asyncio
async def test_stages_become_messages_once() -> None:
    """A repeated key changes nothing; an aborted stage is gone."""
    async with running_broker() as broker:
        writing = writing_of(broker)
        stages = [
            await on_thread(writing.stage, CALL, "a1", Sent(rows(b"x", b"y"), mark(2)))
            for _ in range(3)
        ]
        key = requests.SinkKey("query", "", 0)
        commits = [
            await on_thread(writing.commit, ANNA, requests.CommitRequest(key, [stage.id]))
            for stage in stages[:2]
        ]
        await on_thread(writing.abort, ANNA, requests.AbortRequest([stages[2].id]))
        left = list((broker.data_dir / "stages").iterdir())

    assert 3 * [2] == [stage.rows for stage in stages]
    assert [(2, False), (2, True)] == [(one.messages, one.repeated) for one in commits]
    assert [] == left


@pytest.mark.asyncio
async def test_a_stage_that_is_refused_or_cut_off_leaves_nothing() -> None:
    """Neither a file nor a part of one; nor does a stage that is dropped afterwards."""
    async with running_broker() as broker:
        writing = writing_of(broker)
        with pytest.raises(BrokenStreamError):
            await on_thread(writing.stage, CALL, "a1", Sent(rows(b"x")))
        with pytest.raises(NotAllowedError, match="may not publish 'b'"):
            await on_thread(writing.stage, CALL, "b", Sent(rows(b"x"), mark(1)))
        stage = await on_thread(writing.stage, CALL, "a1", Sent(rows(b"x"), mark(1)))
        await on_thread(writing.drop, ANNA, stage)

        assert [] == list((broker.data_dir / "stages").iterdir())


@pytest.mark.asyncio
async def test_a_call_that_waits_for_a_stopping_broker_is_refused() -> None:
    """So is every later call; no thread waits for an event loop that is gone."""
    started = asyncio.Event()

    class Slow(Cursors):
        async def open(self, principal: Principal, name: str, start: int | None) -> NoReturn:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

    async with running_broker() as broker:
        writing = writing_of(broker, Slow)
        request = requests.OpenCursorRequest("c", None)
        waiting = asyncio.create_task(on_thread(writing.open_cursor, ANNA, request))
        await started.wait()
        writing.close()

        with pytest.raises(UnavailableError, match="the broker is shutting down"):
            await waiting
        with pytest.raises(UnavailableError, match="the broker is shutting down"):
            await on_thread(writing.cursors, ANNA, requests.CursorsRequest())


def test_a_stage_ends_with_its_key() -> None:
    """At its next batch: revoked, or with other permissions."""
    for is_gone, error in ((True, UnauthenticatedError), (False, UnavailableError)):
        principal = Principal("anna", publish=["a*"], subscribe=[])
        batches = sent_batches(
            Call(principal, lambda _call: None), Sent(rows(b"1"), rows(b"2"), mark(2))
        )
        assert 1 == len(next(batches))
        principal.gone, principal.version = is_gone, 1
        with pytest.raises(error):
            next(batches)


def test_who_may_not_publish_sends_no_rows() -> None:
    """To the topic of a stage, or to any."""
    for principal, topic, is_allowed in (
        (ANNA, "a1", True),
        (ANNA, "b", False),
        (ANNA, None, True),
        (ADMIN, None, False),
        (
            Principal("user", publish=[], subscribe=[], grants=[Grant("q", {PUBLISH})]),
            None,
            True,
        ),
    ):
        if is_allowed:
            may_publish(principal, topic)
        else:
            with pytest.raises(NotAllowedError):
                may_publish(principal, topic)


WORDS = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize("kind", [WORDS, pa.list_(WORDS), pa.struct([("w", pa.list_(WORDS))])])
def test_dictionaries_are_refused_before_a_row_is_read(kind: pa.DataType) -> None:
    """Arrow would keep each of them, however many columns a schema has."""
    sent = Sent(rows(b"1"))
    sent.schema = pa.schema([("value", pa.binary()), ("words", kind)])
    with pytest.raises(ConfigError, match="words: a dictionary column"):
        Writing.stage(None, CALL, "a1", sent)  # type: ignore[arg-type] # it uses none of it

    assert (rows(b"1")[0], None) == sent.read_chunk()
