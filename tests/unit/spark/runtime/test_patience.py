"""Patience: what is tried again, and what is not."""

import pytest

from braidmq.base.errors import ConfigError
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.spark.runtime.patience import patiently


class Broker:
    """Answers after some failures."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    def answer(self) -> int:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return 17


GONE = UnavailableError("gone")


def test_an_unavailable_broker_is_asked_again() -> None:
    """Until it answers."""
    broker = Broker(GONE, GONE)

    assert 17 == patiently(broker.answer)
    assert 3 == broker.calls


def test_patience_ends() -> None:
    """With what the last call said; it is asked at least once."""
    broker = Broker(GONE, GONE)
    with pytest.raises(UnavailableError, match="gone"):
        patiently(broker.answer, 0)

    assert 1 == broker.calls


def test_a_refusal_is_final() -> None:
    """To ask again would not change it."""
    broker = Broker(ConfigError("topic", "is none"))
    with pytest.raises(ConfigError):
        patiently(broker.answer)

    assert 1 == broker.calls
