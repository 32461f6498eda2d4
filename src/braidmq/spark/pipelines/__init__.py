"""Pipelines: what most users do with the log, ready to run as `braidmq pipeline NAME`.

Each is wiring around plain functions DataFrame -> DataFrame:

    archive   every message, in Parquet files by day and topic
    typed     messages of a schema as a table of its fields, invalid ones in quarantine
    rollup    readings by sensor and minute, as a table and on a topic
    replay    rows of a table, or of a time range in the log, as messages again
    report    what is in the log, as tables and a page

`runs` keeps a query going; `tables` writes the rows of a batch so that a reader sees them once,
whichever process is killed meanwhile. Needs the extra `spark`: `pip install 'braidmq[spark]'`.
"""
