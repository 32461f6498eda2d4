"""One life of some pipelines, in one JVM: what `test_pipeline_kill` starts and kills."""

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
AGAIN: Final = "again"
BEGUN: Final = "{} has begun"
ENDED: Final = "{} has ended"
TYPED: Final = typed.parse_typed(f"{t}={s}" for t, s in SCHEMAS.items() if s == TEMPERATURE)


def tell(line: str) -> None:
    """Say a line where the test finds it."""
    sys.stderr.write(f"{line}\n")


def main(given: dict[str, Any]) -> int:
    """Run rows of them at once, and those of a row in turn; return how many have failed."""
    config, sink = given["config"], given["sink"]

    def plan(name: str, topics: tuple[str, ...], **more: str) -> Plan:
        source = {"path": given["log"], "subscribe": ",".join(topics), **more}
        return Plan(source, Path(given["out"], name), master=given["master"], config=config)

    limit = {"maxOffsetsPerTrigger": str(given["limit"])}
    ended = {"endingOffsets": given["end"]}
    rolling = rollup.RollupOptions(SCHEMA, rules=RULES, close=True, sink=sink)
    again = replay.ReplayOptions("killed", sink, None, AGAIN, given["rate"])
    lives: dict[str, Callable[[], None]] = {
        "archive": lambda: archive(plan("archive", TOPICS, **limit), tell),
        "delta": lambda: archive(replace(plan("delta", TOPICS, **limit), format=DELTA), tell),
        "typed": lambda: typed.typed(plan("typed", TOPICS, **limit), TYPED, tell),
        "rollup": lambda: rollup.rollup(plan("rollup", (ROLLED,), **limit), rolling, tell),
        "replay": lambda: replay.replay(plan("replay", TOPICS, **ended), again, tell),
        "report": lambda: report(plan("report", TOPICS), TYPED, tell),
    }
    failed: list[BraidError] = []

    def live(names: list[str]) -> None:
        for name in names:
            tell(BEGUN.format(name))
            try:
                lives[name]()
                tell(ENDED.format(name))
            except BraidError as error:
                tell(f"{type(error).__name__}: {error}")
                failed.append(error)

    assert Run("all", plan("archive", TOPICS), tell).spark is not None
    threads = [Thread(target=live, args=(names,)) for names in given["pipelines"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
