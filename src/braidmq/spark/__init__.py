"""Apache Spark over the log: data source, sink and pipelines.

The one room that mentions a DataFrame; it reaches messages through `columnar` or over Flight.
"""
