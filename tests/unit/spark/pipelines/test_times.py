"""Times as users write them."""

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.times import length_ms, moment_ms, parse_trigger

LENGTHS = {"500ms": 500, "30s": 30_000, " 10m ": 600_000, "2h": 7_200_000, "1d": 86_400_000}
MOMENTS = {
    "0": 0,
    "1700000000000": 1_700_000_000_000,
    "1970-01-02": 86_400_000,
    "2023-11-14T22:13:20Z": 1_700_000_000_000,
    "2023-11-14T23:13:20.5+01:00": 1_700_000_000_500,
    "2023-11-14 22:13:20": 1_700_000_000_000,
}


@pytest.mark.parametrize(("text", "expected"), LENGTHS.items())
def test_a_duration_has_one_number_and_one_unit(text: str, expected: int) -> None:
    """From milliseconds to days."""
    assert expected == length_ms("--watermark", text)


@pytest.mark.parametrize(("text", "expected"), MOMENTS.items())
def test_a_moment_is_a_number_or_a_date(text: str, expected: int) -> None:
    """With a zone, or in UTC."""
    assert expected == moment_ms("--from", text)


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "1.5h", "1h30m", "1w", "9" * 10 + "s"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    """The error has the option, the value and an example."""
    with pytest.raises(ConfigError, match=f"--watermark: '{text}' is not a duration; .* 10m"):
        length_ms("--watermark", text)


@pytest.mark.parametrize(
    "text", ["", "now", "-5", "1969-12-31", "2026-13-01", "9" * 20, "9" * 5_000]
)
def test_an_invalid_moment_is_refused(text: str) -> None:
    """The error has the option and the value."""
    with pytest.raises(ConfigError, match=f"--from: '{text}' is "):
        moment_ms("--from", text)


GOLDEN = {
    "available-now": None,
    "10s": 10_000,
    "500ms": 500,
    "05m": 300_000,
    "1h": 3_600_000,
}


@pytest.mark.parametrize(("text", "every_ms"), GOLDEN.items())
def test_a_trigger_is_an_interval_or_available_now(text: str, every_ms: int | None) -> None:
    """Available-now has no interval: it reads the backlog once."""
    assert every_ms == parse_trigger(text).every_ms


@pytest.mark.parametrize(
    "text", ["", "now", "10", "s", "0s", "1.5s", "10 s", "-1s", "9999999s"]
)
def test_an_invalid_trigger_is_refused(text: str) -> None:
    """The error says what is valid."""
    with pytest.raises(
        ConfigError, match=r"--trigger: .* neither available-now nor an interval"
    ):
        parse_trigger(text)
