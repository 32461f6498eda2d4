"""One process that runs some pipelines in one JVM; `test_pipeline_kill` starts and kills it."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Final

from braidmq.base.errors import BraidError
from braidmq.spark.pipelines import typed
from braidmq.spark.pipelines.archive import archive
from braidmq.spark.pipelines.replay import replay
from braidmq.spark.pipelines.report.report import report
from braidmq.spark.pipelines.rollup import rollup
from braidmq.spark.pipelines.runs.runs import Plan, Run
from braidmq.spark.pipelines.tables.tables import DELTA
from tests.integration.spark.outputs import SCHEMAS, TEMPERATURE, TOPICS
from tests.integration.spark.rolled import RULES, SCHEMA

ROLLED: Final = "temp"
REPLAY_TOPIC: Final = "again"
BEGUN: Final = "{} has begun"
ENDED: Final = "{} has ended"
TYPED: Final = typed.parse_typed(f"{t}={s}" for t, s in SCHEMAS.items() if s == TEMPERATURE)


def tell(line: str) -> None:
    """Write a line to where the test reads it."""
    sys.stderr.write(f"{line}\n")


def main(arguments: dict[str, Any]) -> int:
    """Run the given lists of pipelines in parallel, each in order; return how many failed."""
    config, sink = arguments["config"], arguments["sink"]

    def plan(name: str, topics: tuple[str, ...], **more: str) -> Plan:
        source = {"path": arguments["log"], "subscribe": ",".join(topics), **more}
        return Plan(
            source, Path(arguments["out"], name), master=arguments["master"], config=config
        )

    limit = {"maxOffsetsPerTrigger": str(arguments["limit"])}
    ended = {"endingOffsets": arguments["end"]}
    rolling = rollup.RollupOptions(SCHEMA, rules=RULES, close=True, sink=sink)
    again = replay.ReplayOptions("killed", sink, None, REPLAY_TOPIC, arguments["rate"])
    commands: dict[str, Callable[[], None]] = {
        "archive": lambda: archive(plan("archive", TOPICS, **limit), tell),
        "delta": lambda: archive(replace(plan("delta", TOPICS, **limit), format=DELTA), tell),
        "typed": lambda: typed.typed(plan("typed", TOPICS, **limit), TYPED, tell),
        "rollup": lambda: rollup.rollup(plan("rollup", (ROLLED,), **limit), rolling, tell),
        "replay": lambda: replay.replay(plan("replay", TOPICS, **ended), again, tell),
        "report": lambda: report(plan("report", TOPICS), TYPED, tell),
    }
    failed: list[BraidError] = []

    def run_all(names: list[str]) -> None:
        for name in names:
            tell(BEGUN.format(name))
            try:
                commands[name]()
                tell(ENDED.format(name))
            except BraidError as error:
                tell(f"{type(error).__name__}: {error}")
                failed.append(error)

    assert Run("all", plan("archive", TOPICS), tell).spark is not None
    threads = [Thread(target=run_all, args=(names,)) for names in arguments["pipelines"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
