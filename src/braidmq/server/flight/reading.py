"""Reads of the log through the Flight endpoint: a principal sees what it may subscribe to.

If a request names topics, each of them must be allowed; a read of all topics sees those that
are. Everything here runs on Flight's threads.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from braidmq.base.errors import NotAllowedError
from braidmq.broker.authorize import SUBSCRIBE, Principal, authorize
from braidmq.columnar import cuts, reading
from braidmq.columnar.flight import requests
from braidmq.columnar.loss import Loss
from braidmq.columnar.reading import Batches
from braidmq.columnar.segments.times import offset_at, offset_behind
from braidmq.columnar.segments.views import DurableView, topic_names


class Reading:
    """The log below a data directory, as principals may see it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def batches(
        self, principal: Principal, request: requests.ReadRequest, losses: list[Loss]
    ) -> Batches:
        """Return the rows of a read; ranges that are lost are added to *losses*."""
        return reading.batches(
            self._path,
            start=request.start,
            end=request.end,
            topics=_named(principal, request.topics),
            allowed=_allowed(principal),
            columns=request.columns,
            headers=request.headers,
            qos=request.qos,
            fail_on_data_loss=request.fail_on_data_loss,
            losses=losses,
            batch_rows=min(request.batch_rows, requests.BATCH_ROWS_MAX),
            batch_bytes=requests.READ_BATCH_BYTES,
        )

    def offsets(
        self, _principal: Principal, _request: requests.OffsetsRequest
    ) -> requests.OffsetsAnswer:
        """Return where the durable log begins and ends."""
        found = reading.offsets(self._path)
        return requests.OffsetsAnswer(found.earliest, found.latest)

    def offset_at(
        self, _principal: Principal, request: requests.OffsetAtRequest
    ) -> requests.NumberAnswer:
        """Return the first id at or after a time."""
        return requests.NumberAnswer(offset_at(DurableView(self._path), request.time_us))

    def offset_behind(
        self, _principal: Principal, request: requests.OffsetAtRequest
    ) -> requests.NumberAnswer:
        """Return the id behind the last message before a time."""
        return requests.NumberAnswer(offset_behind(DurableView(self._path), request.time_us))

    def topics(
        self, principal: Principal, request: requests.TopicsRequest
    ) -> Iterator[requests.TopicsAnswer]:
        """Yield the topics of a range, in pages, and an empty one when there is none."""
        names, behind = topic_names(self._path, request.start, request.end)
        for page in _pages(principal, names):
            yield requests.TopicsAnswer(page, behind)

    def topic_counts(
        self, principal: Principal, request: requests.TopicCountsRequest
    ) -> Iterator[requests.TopicCountsAnswer]:
        """Yield the counts of each topic, in pages."""
        found = reading.topic_counts(
            self._path,
            start=request.start,
            end=request.end,
            fail_on_data_loss=request.fail_on_data_loss,
        )
        for page in _pages(principal, found):
            yield requests.TopicCountsAnswer(
                {name: (found[name].messages, found[name].payload_bytes) for name in page}
            )

    def cut(self, principal: Principal, request: requests.CutRequest) -> requests.CutAnswer:
        """Return a range cut into parts of about one size."""
        found = cuts.cut(
            self._path,
            request.start,
            request.end,
            topics=_named(principal, request.topics),
            allowed=_allowed(principal),
            target_bytes=request.target_bytes,
            parts=request.parts,
            fail_on_data_loss=request.fail_on_data_loss,
        )
        return requests.CutAnswer(found)

    def advance(
        self, principal: Principal, request: requests.AdvanceRequest
    ) -> requests.NumberAnswer:
        """Return the id after a number of messages or bytes."""
        found = cuts.advance(
            self._path,
            request.start,
            topics=_named(principal, request.topics),
            allowed=_allowed(principal),
            messages=request.messages,
            payload_bytes=request.payload_bytes,
            fail_on_data_loss=request.fail_on_data_loss,
        )
        return requests.NumberAnswer(found)


def _named(principal: Principal, topics: list[str] | None) -> list[str] | None:
    for topic in topics or ():
        if not authorize(principal, SUBSCRIBE, topic):
            raise NotAllowedError(SUBSCRIBE, topic)
    return topics


def _allowed(principal: Principal) -> Callable[[str], bool] | None:
    """Return a test for the topics that a principal may see; None if it may see all."""
    if "*" in principal.subscribe:
        return None
    known: dict[str, bool] = {}  # a log has many more rows than topics

    def is_allowed(topic: str) -> bool:
        if topic not in known:
            known[topic] = authorize(principal, SUBSCRIBE, topic)
        return known[topic]

    return is_allowed


def _pages(principal: Principal, names: Iterable[str]) -> Iterator[list[str]]:
    """Yield the names that a principal may see, sorted, in pages; at least one page."""
    allowed = _allowed(principal)
    seen = sorted(name for name in names if allowed is None or allowed(name))
    for start in range(0, max(1, len(seen)), requests.PAGE_TOPICS):
        yield seen[start : start + requests.PAGE_TOPICS]
