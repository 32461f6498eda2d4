"""Make the format "braidmq" available to sessions that never called `register`.

Spark imports every module whose name starts with `pyspark_`, in the Python of PYSPARK_PYTHON,
and registers its `DefaultSource`. If one such module cannot be imported, none of the formats
works; so a missing dependency must not raise here.
"""

from contextlib import suppress

with suppress(ImportError):  # braidmq is installed without the extra `spark`
    from braidmq.spark.runtime.workers import settle
    from braidmq.spark.source import BraidSource as DefaultSource

    __all__ = ["DefaultSource"]
    settle()
