"""How the options of a pipeline reach the source, the sink and Spark."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.cli.pipeline.options import (
    FromLog,
    Running,
    Streaming,
    Tables,
    Times,
    Unsealing,
    plan_of,
)
from braidmq.spark.pipelines.times import Trigger

DATA = Path("data")
ENDPOINT = "grpc://a:1"


def test_the_sink_finds_the_broker_as_the_source_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its directory or its address; the key may be in the environment."""
    monkeypatch.setenv("BRAIDMQ_API_KEY", "hidden")

    assert {"path": "data", "apiKey": "hidden"} == FromLog(path=DATA).sink()
    assert {"endpoint": ENDPOINT, "apiKey": "k"} == FromLog(
        endpoint=ENDPOINT, api_key="k"
    ).sink()


@pytest.mark.parametrize("options", [{}, {"path": DATA, "endpoint": ENDPOINT}])
def test_the_log_is_in_one_place(options: dict[str, object]) -> None:
    """Exactly one of the two must be given."""
    with pytest.raises(ConfigError, match="give either --path or --endpoint"):
        FromLog(**options).source()  # type: ignore[arg-type] # of several types


def test_beside_a_sink_the_key_is_for_the_broker_only() -> None:
    """Files are read without a key; an endpoint is the broker."""
    near = FromLog(path=DATA, api_key="k", subscribe="a,b")
    far = FromLog(endpoint=ENDPOINT, api_key="k", subscribe_pattern="a.*")

    assert {"path": "data", "subscribe": "a,b"} == near.source(beside_sink=True)
    assert near.source("g") == near.source("g", beside_sink=True)
    assert {"path": "data", "apiKey": "k", "subscribe": "a,b", "groupId": "g"} == (
        near.source("g")
    )
    assert far.source() == far.source(beside_sink=True)
    assert {"endpoint": ENDPOINT, "apiKey": "k", "subscribePattern": "a.*"} == far.source()


def test_data_loss_ends_a_pipeline_unless_it_is_tolerated() -> None:
    """The source's own default is to fail."""
    tolerant = FromLog(path=DATA, fail_on_data_loss=False)

    assert {"path": "data"} == FromLog(path=DATA).source()
    assert {"path": "data", "failOnDataLoss": "false"} == tolerant.source()
    assert tolerant.source() == tolerant.source(beside_sink=True)


def test_options_are_passed_on_as_the_source_reads_them(tmp_path: Path) -> None:
    """Options that are not given are left out."""
    times = Times(since="1970-01-02", until="5")
    unsealing = Unsealing(private_key=tmp_path, trust=["a", "b"])

    assert {} == Times().source() == Unsealing().source() == Streaming().source()
    assert {"startingTimestamp": "86400000", "endingTimestamp": "5"} == times.source()
    assert {"privateKeyFile": str(tmp_path), "trustedKeys": "a,b"} == unsealing.source()


def test_a_plan_is_made_from_the_groups_of_options() -> None:
    """Without a stream it reads once, from the source's default start."""
    tables = Tables(out=Path("out"), format_="delta")
    once = plan_of({"path": "data"}, tables, Running(conf=["spark.x=1=2"]))
    often = Running(trigger="10s", checkpoint=Path("place"))
    batches = Streaming(max_offsets=5, compact=True)
    stream = plan_of({"path": "data"}, tables, often, batches)

    assert ({"path": "data"}, Path("out").absolute(), "delta") == (
        once.source,
        once.out,
        once.format,
    )
    assert ({"spark.x": "1=2"}, False) == (once.config, once.compact)
    assert (Trigger(), None) == (once.trigger, once.checkpoint)
    assert (Trigger(10_000), Path("place").absolute()) == (stream.trigger, stream.checkpoint)
    assert ({"path": "data", "maxOffsetsPerTrigger": "5"}, True) == (
        stream.source,
        stream.compact,
    )
