"""When micro-batches come."""

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.triggers import parse_trigger

GOLDEN = {
    "available-now": None,
    "10s": "10 seconds",
    "500ms": "500 milliseconds",
    "05m": "5 minutes",
    "1h": "1 hours",
}


@pytest.mark.parametrize(("text", "every"), GOLDEN.items())
def test_a_trigger_is_spelled_as_spark_does(text: str, every: str | None) -> None:
    """None: once through all that there is."""
    assert every == parse_trigger(text).every


@pytest.mark.parametrize(
    "text", ["", "now", "10", "s", "0s", "1.5s", "10 s", "-1s", "9999999s"]
)
def test_anything_else_is_refused(text: str) -> None:
    """With what can be said instead."""
    with pytest.raises(ConfigError, match=r"--trigger: .* neither available-now nor a time"):
        parse_trigger(text)
