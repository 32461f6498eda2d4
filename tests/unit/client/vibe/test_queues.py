"""Queue declarations and queue info on the client's side."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from braidmq.client.answers import QueueInfo
from braidmq.client.errors import ClientError, InvalidArgument
from braidmq.client.options import QueueOptions
from braidmq.client.vibe.queues import declaration, read_info, read_names
from braidmq.wire.vibe.frames import DIALECT_1_0, DIALECT_1_1
from braidmq.wire.vibe.queue_options import QueueFacts, read_options, write_info


def test_omitted_options_are_not_sent() -> None:
    """The broker chooses their values."""
    assert {} == declaration(QueueOptions())


def test_the_broker_reads_the_declared_options() -> None:
    """Each option arrives with its value."""
    declared = QueueOptions(
        mode="priority_based",
        max_size=10,
        ttl=1.5,
        dead_letters=False,
        dead_letter_name="graves",
        overflow="DropNewest",
        max_attempts=5,
        durable=True,
    )
    headers = declaration(declared)
    options = read_options(headers, b"")

    assert (3, 10, 1500, False, "graves", 1, 5, True) == (
        options.mode,
        options.max_size,
        options.ttl_ms,
        options.dead_letters,
        options.dead_letter_name,
        options.overflow,
        options.max_attempts,
        options.durable,
    )


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("mode", "random", "mode is one of RoundRobin, FanOutWithAck"),
        ("overflow", "", "overflow is one of DropOldest, DropNewest"),
        ("max_size", 0, "max_size must be at least 1, not 0"),
        ("max_attempts", -1, "max_attempts must be at least 1, not -1"),
        ("ttl", 0, "ttl must be more than 0 seconds"),
        ("ttl", 0.0004, "ttl must be more than 0 seconds"),
        ("ttl", math.nan, "ttl must be more than 0 seconds"),
        ("ttl", math.inf, "ttl must be more than 0 seconds and at most 922337203685"),
        ("ttl", -math.inf, "ttl must be more than 0 seconds"),
        ("ttl", 1e306, "ttl must be more than 0 seconds and at most 922337203685"),
        ("dead_letter_name", "a b", "a queue name"),
    ],
)
def test_invalid_queue_options_are_refused_by_the_client(
    option: str,
    value: Any,  # noqa: ANN401 - each option has its own type
    text: str,
) -> None:
    """The error names the option as the caller wrote it."""
    with pytest.raises(InvalidArgument, match=text):
        declaration(QueueOptions()._replace(**{option: value}))


@pytest.mark.parametrize("dialect", [DIALECT_1_0, DIALECT_1_1])
@pytest.mark.parametrize(
    ("ttl_ms", "ttl", "max_size", "name"),
    [(None, None, None, None), (90_061_500, 90_061.5, 7, "graves")],
)
def test_queue_info_is_read_in_both_dialects(
    dialect: int, ttl_ms: int | None, ttl: float | None, max_size: int | None, name: str | None
) -> None:
    """Numbers or names, milliseconds or time spans: they describe the same queue."""
    facts = QueueFacts(
        name="jobs",
        waiting=3,
        in_flight=2,
        subscribers=1,
        mode=2,
        max_size=max_size,
        created_us=1_700_000_000_000_000,
        ttl_ms=ttl_ms,
        dead_letters=True,
        dead_letter_name=name,
        overflow=3,
        max_attempts=4,
        durable=False,
    )

    assert QueueInfo(
        name="jobs",
        waiting=3,
        in_flight=2,
        subscribers=1,
        mode="FanOutWithoutAck",
        max_size=max_size,
        ttl=ttl,
        dead_letters=True,
        dead_letter_name=name,
        overflow="RedirectToDlq",
        max_attempts=4,
        durable=False,
        created=datetime.fromtimestamp(1_700_000_000, UTC),
    ) == read_info(write_info(facts, dialect))


def test_queue_info_with_only_the_specified_fields_is_read() -> None:
    """Missing fields get their defaults."""
    info = read_info(
        b'{"name":"my-queue","messageCount":42,"subscriberCount":3,'
        b'"deliveryMode":"RoundRobin","maxSize":10000,"createdAt":"2026-02-18T10:00:00Z"}'
    )

    assert ("my-queue", 42, 0, 3, "RoundRobin", 10_000, None) == (
        info.name,
        info.waiting,
        info.in_flight,
        info.subscribers,
        info.mode,
        info.max_size,
        info.ttl,
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b"{}",
        b"null",
        b'{"name":"q","messageCount":"x","subscriberCount":0,"deliveryMode":0}',
        b'{"name":"q","messageCount":0,"subscriberCount":0,"deliveryMode":9}',
        b'{"name":"q","messageCount":Infinity,"subscriberCount":0,"deliveryMode":0}',
        b'{"name":"q","messageCount":0,"subscriberCount":0,"deliveryMode":0,"messageTtl":"x"}',
        b'{"name":"q","messageCount":0,"subscriberCount":0,"deliveryMode":0,"createdAt":"x"}',
    ],
)
def test_malformed_queue_info_is_an_error(payload: bytes) -> None:
    """The client does not fill in guesses."""
    with pytest.raises(ClientError, match="cannot be read"):
        read_info(payload)


def test_names_are_a_list() -> None:
    """No payload means no queues."""
    assert ["a", "b"] == read_names(b'["a","b"]')
    assert [] == read_names(b"")


@pytest.mark.parametrize("payload", [b"{", b"{}", b"[1]", b'"a"'])
def test_a_malformed_list_of_names_is_an_error(payload: bytes) -> None:
    """The client does not fill in guesses."""
    with pytest.raises(ClientError, match="cannot be read"):
        read_names(payload)
