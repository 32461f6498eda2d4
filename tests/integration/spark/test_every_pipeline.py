"""Every pipeline in a real session, with all their common options."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from braidmq.cli.main import main
from tests.integration.spark.outputs import TEMPERATURE, TOPICS, readings
from tests.integration.spark.serving import Serving, serving
from tests.unit.columnar.logs import write_log
from tests.unit.spark.running import KEY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("spark"),
]

ALL = f"--subscribe={','.join(TOPICS)}"
OWN = {
    "archive": [ALL],
    "typed": [f"--typed=b={TEMPERATURE}"],
    "rollup": [f"--schema-id={TEMPERATURE}", "--subscribe=b", "--no-topic"],
    "replay": ["--name=n", "--to-topic=again", ALL],
    "report": [ALL],
}
WANTED = {
    "archive": ["archive: batch 0, 20 rows"],
    "typed": ["typed sensor.Temperature: batch 0, 5 rows"],
    "rollup": ["rollup: batch 0, 5 rows"],
    "replay": [
        "replay: --format parquet changes nothing: rows come from the log",
        "replay: batch 1, 20 rows",
    ],
    "report": [
        "report: --checkpoint is not used: a report is computed from scratch",
        "report: counted 20 messages of 4 topics",
    ],
}
"""Beginnings of the lines that a run prints."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("broker") / "data"
    with serving(write_log(path, readings(20))) as found:
        yield found


@pytest.mark.parametrize("name", WANTED)
def test_a_pipeline_runs_with_all_common_options(
    name: str, broker: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says which option it ignores, and keeps its checkpoint where told."""
    out, place = tmp_path / "out", tmp_path / "place"
    common = [f"--endpoint={broker.address}", f"--out={out}", f"--checkpoint={place}"]
    common += ["--trigger=available-now", "--format=parquet", "--master=local[2,4]"]
    code = main(["pipeline", name, *OWN[name], *common, f"--api-key={KEY}"])
    lines = capsys.readouterr().err.splitlines()

    printed = [line for line in lines if line.startswith(tuple(WANTED[name]))]
    assert (0, len(WANTED[name])) == (code, len(printed)), lines
    assert (name != "report") == place.exists()
    assert not (out / "_checkpoint").exists()
    assert (name != "replay") == any(map(_rows, out.rglob("*.parquet")))


def _rows(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)
