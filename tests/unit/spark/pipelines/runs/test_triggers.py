"""When micro-batches come."""

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.runs.triggers import parse_trigger

GOLDEN = {
    "available-now": None,
    "10s": 10_000,
    "500ms": 500,
    "05m": 300_000,
    "1h": 3_600_000,
}


@pytest.mark.parametrize(("text", "every_ms"), GOLDEN.items())
def test_a_trigger_is_a_time_or_none(text: str, every_ms: int | None) -> None:
    """None: once through all that there is."""
    assert every_ms == parse_trigger(text).every_ms


@pytest.mark.parametrize(
    "text", ["", "now", "10", "s", "0s", "1.5s", "10 s", "-1s", "9999999s"]
)
def test_anything_else_is_refused(text: str) -> None:
    """With what can be said instead."""
    with pytest.raises(
        ConfigError, match=r"--trigger: .* neither available-now nor an interval"
    ):
        parse_trigger(text)
