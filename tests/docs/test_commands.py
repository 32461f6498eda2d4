"""Commands that stand alone in a page: pipelines are run, and what is told is parsed."""

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from braidmq.cli.main import main
from tests.docs.test_snippets import PIPELINES, SPARK_SECONDS_MAX, blocks, serving, shell

GENERATED: Final = "docs/reference/command-line.md"
"""Made from the commands themselves."""

READINGS: Final = """
import json, sys, time
import braidmq.sync

now_ms = time.time_ns() // 1_000_000
blip, vibe = sys.argv[1:]
with braidmq.sync.connect(blip) as client:
    for n in range(20):
        reading = {"sensor_id": f"s{n % 3}", "celsius": n, "timestamp_ms": now_ms + n}
        client.publish("sensors/temp", json.dumps(reading).encode())
with braidmq.sync.connect(vibe) as client:
    client.declare_queue("orders", max_size=1, overflow="RedirectToDlq")
    for n in range(3):
        client.publish("orders", b"%d" % n)
"""


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_pipelines_run_as_their_pages_say(tmp_path: Path) -> None:
    """One after the other, on a log with readings, orders and dead letters in it."""
    told = [block for page in PIPELINES for block in blocks("sh") if block.document == page]
    with serving(tmp_path, "127.0.0.1:0") as broker:
        urls = [f"{s}://dev-key@{broker.addresses[s]}" for s in ("blip", "vibe")]
        subprocess.run([sys.executable, "-c", READINGS, *urls], check=True)
        for block in told:
            text = block.text.replace("--api-key KEY", "--api-key dev-key")
            process = shell(replace(block, text=text), broker, tmp_path)
            said = process.communicate(timeout=SPARK_SECONDS_MAX)
            assert 0 == process.returncode, (block.name, said)

    assert len(told) >= 4


def only_told() -> list[str]:
    """Return the commands of ours in blocks that are not run."""
    texts = [b.text for b in blocks() if b.label in {"", "text"} and b.document != GENERATED]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("braidmq ")]


@pytest.mark.parametrize("line", only_told())
def test_a_command_that_is_only_told_is_one(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it would need root, or a machine of its own: its name and its options are known."""
    assert 0 == main([*shlex.split(line, comments=True)[1:], "--help"]), capsys.readouterr()
