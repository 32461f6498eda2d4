"""Log segments as Arrow batches, for readers of many messages at once.

It reads what is durable in the log. It needs neither Spark nor a running broker:

    from braidmq import columnar

    table = columnar.read("data", topics=["sensors/temp"])     a pyarrow.Table
    for batch in columnar.batches("data", start=1000): ...     bounded memory

`columnar.open_log` opens a log for several reads, in a directory or behind a Flight endpoint:

    with columnar.open_log("data") as log:
        log.read(topics=["sensors/temp"])

Needs numpy and pyarrow: `pip install 'braidmq[columnar]'`.
"""

from braidmq.base.extras import needing

with needing("columnar", "braidmq.columnar"):
    from braidmq.columnar.cuts import Part, advance, cut
    from braidmq.columnar.decoding.decode import Decoding
    from braidmq.columnar.decoding.schemas import TypedSchema
    from braidmq.columnar.decoding.unsealing import Unsealing
    from braidmq.columnar.logs import DirectoryLog, Log, open_log
    from braidmq.columnar.loss import DataLossError, Loss
    from braidmq.columnar.reading import (
        Batches,
        Offsets,
        TopicCount,
        batches,
        offsets,
        read,
        topic_counts,
    )

__all__ = [
    "Batches",
    "DataLossError",
    "Decoding",
    "DirectoryLog",
    "Log",
    "Loss",
    "Offsets",
    "Part",
    "TopicCount",
    "TypedSchema",
    "Unsealing",
    "advance",
    "batches",
    "cut",
    "offsets",
    "open_log",
    "read",
    "topic_counts",
]
