"""Apache Spark over the log: the data source, and the session that it runs in.

Only this room knows DataFrames; it reads messages through `columnar`.

    from braidmq.spark import register, session

    spark = session()      # or call register(spark) on your own session
    spark.read.format("braidmq").option("path", "data").load()

Needs pyspark and pyarrow: `pip install 'braidmq[spark]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from braidmq.base.extras import needing

if TYPE_CHECKING:
    from braidmq.spark.sessions import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the two are typed above
    """Return a public name; pyspark is imported only now, because that takes a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing("spark", "braidmq.spark"):
        return getattr(import_module("braidmq.spark.sessions"), name)
