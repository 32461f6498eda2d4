"""The format "braidmq" for sessions that never called `register`: Spark finds it by this name.

Spark imports every module whose name begins so, in the Python of PYSPARK_PYTHON, and fails all
its formats when one of them cannot be imported.
"""

from contextlib import suppress

with suppress(ImportError):  # braidmq without its extra `spark`
    from braidmq.spark.runtime.workers import settle
    from braidmq.spark.source import BraidSource as DefaultSource

    __all__ = ["DefaultSource"]
    settle()
