"""Count the messages of a micro-batch by the index of the log, independently of the read."""

import json
from collections.abc import Mapping

from braidmq.spark.brokers import patiently
from braidmq.spark.options import for_stream, wants
from braidmq.spark.pipelines.runs.queries import Batch
from braidmq.spark.reading.offsets import StreamOffset
from braidmq.spark.reading.scans import Scan


def messages_of(source: Mapping[str, str], batch: Batch) -> int | None:
    """Return how many messages a batch of the stream with the options *source* has.

    None: it is the first batch, and its checkpoint does not record where it began.

    Raises:
        LostOffsetsError: An offset of the batch is lost, and failOnDataLoss is set.
        LogError: The checkpoint belongs to another format.
    """
    end = StreamOffset.from_json(json.loads(batch.place))
    if not batch.before and end.begin is None:
        return None
    begin, limits = end.batch_from(
        StreamOffset.from_json(json.loads(batch.before or batch.place))
    )
    options = for_stream(source)
    count = _messages(Scan.of(options, []), begin, end.id)
    for topic, floor in limits.floors.items():
        if wants(options, topic):
            early = Scan(options, [], frozenset({topic}))
            count -= _messages(early, begin, min(floor, end.id))
    return count


def _messages(scan: Scan, start: int, end: int) -> int:
    if start >= end:
        return 0
    return sum(part.messages for part in patiently(lambda: scan.cut(start, end)))
