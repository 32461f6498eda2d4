"""`rollup`: readings by sensor and minute, in a table and on the topic `rollup.<schema>`.

    <out>/<schema>/date=.../       closed minutes: count, min, max, mean, last
    <out>/quarantine/date=.../     late rows, and rows that are not readings
    <checkpoint>/windows/          the minutes that are still open

Minutes stay open at the end of a run, and the next run continues them. `close` closes them;
readings for them that arrive afterwards are late.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from braidmq.base.errors import ConfigError
from braidmq.spark.options import for_write, parse, wants
from braidmq.spark.pipelines.rollup.windows import MINUTE_MS, Rules, reading_of
from braidmq.spark.pipelines.rollup.writer import Goal, Rollup
from braidmq.spark.pipelines.runs.guards import held, plain_errors
from braidmq.spark.pipelines.runs.runs import Plan, Run, Stream, Tell
from braidmq.spark.reading.scans import typed_schema

NAME: Final = "rollup"
STATES: Final = "windows"
WATERMARK_MS: Final = 10 * MINUTE_MS


@dataclass(frozen=True)
class Wish:
    """What the user asks for besides the plan; without a *sink* nothing is published."""

    schema: str
    value: str | None = None
    rules: Rules = field(default=Rules(WATERMARK_MS))
    close: bool = False
    sink: Mapping[str, str] | None = None


def rollup(plan: Plan, wish: Wish, tell: Tell) -> None:
    """Run the pipeline.

    Raises:
        BraidError: It cannot start or continue; what is written stays.
    """
    run = Run(NAME, plan, tell)
    if wish.close and plan.trigger.every_ms is not None:
        raise ConfigError("--close", "needs --trigger available-now: other runs have no end")
    if wish.sink is not None:
        for_write(wish.sink)
    options = parse({**plan.source, "schemaId": wish.schema})
    schema = typed_schema(options)
    assert schema is not None
    reading = reading_of(schema, wish.value)
    goal = Goal(reading, wish.rules, plan.out, plan.format, wish.sink, plan.compact)
    if options.topics is None and options.pattern is None:
        problem = f"is missing; name the topics with readings of {schema.id!r}"
        raise ConfigError("--subscribe", problem)
    if wants(options, goal.topic):
        problem = f"has the topic {goal.topic!r}, which this rollup writes; leave it out"
        raise ConfigError("--subscribe", problem)
    with held(run.checkpoint(), "--checkpoint"), run.ending(), plain_errors(NAME):
        writer = Rollup(goal, run.checkpoint() / STATES, tell)
        writer.finish_closing(run.spark)
        stream = Stream(lambda: run.messages(schemaId=wish.schema), writer.write)
        run.go(stream, behind=writer.compact if plan.compact else None)
        if wish.close and not run.stopping.is_set():
            writer.close(run.spark)
