"""A broker in a test prints nothing of its own, unless it is asked to."""

import asyncio
import logging

import pytest
import structlog

import braidmq
from braidmq.testing import running_broker

BAD_KEY = "not-a-key"


@pytest.fixture(autouse=True)
def _unconfigured() -> None:
    """As in a program that uses neither library itself."""
    structlog.reset_defaults()


async def busy(*, logs: bool) -> None:
    """Run a broker that has something to say: about its start, a bad key and its end."""
    async with running_broker(logs=logs) as broker:
        with pytest.raises(braidmq.AuthenticationFailed):
            await braidmq.connect(broker.url("blip", BAD_KEY))


def test_a_broker_in_a_test_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither on stdout nor on stderr, where they would hide what the test says."""
    asyncio.run(busy(logs=False))

    assert ("", "") == capfd.readouterr()


def test_log_lines_are_printed_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a test that fails, they say what the broker did."""
    asyncio.run(busy(logs=True))

    assert "recovered" in capfd.readouterr().out


def test_lines_of_the_program_itself_are_still_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Only the broker's are kept back, and only while one runs."""

    async def work() -> None:
        async with running_broker():
            structlog.get_logger("shop").info("from the shop")
            structlog.get_logger().info("from no module")
            structlog.get_logger("braidmq.of.a.test").info("from the broker")
        structlog.get_logger("braidmq.of.a.test").info("after it")

    asyncio.run(work())
    said = capfd.readouterr().out

    assert ["shop" in said, "no module" in said, "the broker" in said, "after it" in said] == [
        True,
        True,
        False,
        True,
    ]


def test_brokers_that_end_in_any_order_stay_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """The second is quiet to its end, although the first has ended."""

    async def work() -> None:
        first, second = running_broker(), running_broker()
        await first.__aenter__()
        await second.__aenter__()
        await first.__aexit__(None, None, None)
        await second.__aexit__(None, None, None)

    asyncio.run(work())

    assert ("", "") == capfd.readouterr()
    assert structlog.PrintLoggerFactory is type(structlog.get_config()["logger_factory"])


def test_a_program_that_logs_elsewhere_gets_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has sent structlog to `logging` decides there what is shown."""
    structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())
    with caplog.at_level(logging.INFO):
        asyncio.run(busy(logs=False))
    structlog.reset_defaults()

    assert "recovered" in caplog.text
