"""Queue options of the Vibe strand."""

import json
from contextlib import suppress
from dataclasses import asdict, replace

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.vibe.frames import DIALECT_1_0, DIALECT_1_1
from braidmq.wire.vibe.queue_options import (
    COUNT_MAX,
    MODES,
    STRATEGIES,
    TIMESPAN_PATTERN,
    TTL_MS_MAX,
    OptionError,
    QueueFacts,
    QueueOptions,
    format_timespan,
    parse_timespan,
    read_options,
    write_info,
)

FACTS = QueueFacts(
    name="my-queue",
    waiting=42,
    in_flight=2,
    subscribers=3,
    mode=0,
    max_size=10_000,
    created_us=1_771_408_800_000_000,
    ttl_ms=3_600_000,
    dead_letters=True,
    dead_letter_name="dlq.my-queue",
    overflow=3,
    max_attempts=3,
    durable=True,
)


def as_payload(options: dict[str, object]) -> bytes:
    """Write options as released clients do."""
    return json.dumps(options).encode()


def test_absent_options_are_none() -> None:
    """No header, no payload, `null`, an empty object and nulls all mean the same."""
    nulls = dict.fromkeys(["mode", "maxQueueSize", "messageTtl", "durable", "unknown"])

    for payload in (b"", b"null", b"{}", as_payload(nulls)):
        assert QueueOptions() == read_options({"priority": "high"}, payload)
    assert all(value is None for value in asdict(QueueOptions()).values())


def test_options_in_headers() -> None:
    """Clients of dialect 1.0 send every option as a header."""
    headers = {
        "deliveryMode": "PriorityBased",
        "maxQueueSize": "10000",
        "messageTtl": "3600000",
        "enableDeadLetterQueue": "true",
        "deadLetterQueueName": "graveyard",
        "overflowStrategy": "DropNewest",
        "maxRetryAttempts": "5",
        "durable": "False",
    }

    assert QueueOptions(
        mode=3,
        max_size=10_000,
        ttl_ms=3_600_000,
        dead_letters=True,
        dead_letter_name="graveyard",
        overflow=1,
        max_attempts=5,
        durable=False,
    ) == read_options(headers, b"")


def test_options_in_the_payload() -> None:
    """Released clients send a JSON object, with integers for enums and a time span for TTL."""
    options: dict[str, object] = {
        "mode": 2,
        "maxQueueSize": 10_000,
        "messageTtl": "1.02:03:04.5",
        "enableDeadLetterQueue": False,
        "deadLetterQueueName": None,
        "overflowStrategy": 2,
        "maxRetryAttempts": 1,
        "durable": True,
        "somethingNew": [1, 2, 3],
    }

    assert QueueOptions(
        mode=2,
        max_size=10_000,
        ttl_ms=93_784_500,
        dead_letters=False,
        overflow=2,
        max_attempts=1,
        durable=True,
    ) == read_options({}, as_payload(options))


def test_a_header_wins_over_the_payload() -> None:
    """Key by key, even to remove a limit, and for either name of the mode."""
    payload = as_payload({"mode": 1, "maxQueueSize": 7, "messageTtl": "00:00:01"})
    headers = {"deliveryMode": "RoundRobin", "messageTtl": "0"}

    assert QueueOptions(mode=0, max_size=7) == read_options(headers, payload)


@pytest.mark.parametrize(("number", "name"), list(enumerate(MODES)))
def test_modes_by_name_and_number(number: int, name: str) -> None:
    """In upper or lower case, as a header or in JSON, under both JSON names."""
    for text in (name, name.upper(), name.lower(), str(number)):
        assert number == read_options({"deliveryMode": text}, b"").mode
    for value in (name, name.lower(), number):
        assert number == read_options({}, as_payload({"mode": value})).mode
        assert number == read_options({}, as_payload({"deliveryMode": value})).mode


@pytest.mark.parametrize(("number", "name"), list(enumerate(STRATEGIES)))
def test_strategies_by_name_and_number(number: int, name: str) -> None:
    """Like modes."""
    for text in (name, name.upper(), str(number)):
        assert number == read_options({"overflowStrategy": text}, b"").overflow
    for value in (name, name.lower(), number):
        assert number == read_options({}, as_payload({"overflowStrategy": value})).overflow


@pytest.mark.parametrize("value", ["TRUE", "true", "False", "FALSE"])
def test_booleans_in_any_case(value: str) -> None:
    """As a header, or as a string in JSON."""
    expected = value.lower() == "true"

    assert expected is read_options({"durable": value}, b"").durable
    assert expected is read_options({}, as_payload({"durable": value})).durable


@pytest.mark.parametrize("value", [0, "00:00:00", "0.00:00:00.0000000", None])
def test_no_time_to_live(value: object) -> None:
    """Zero, however it is written, means none."""
    assert read_options({}, as_payload({"messageTtl": value})).ttl_ms is None


def test_an_empty_dead_letter_name_is_none() -> None:
    """Empty texts mean absent ones everywhere on this strand."""
    assert read_options({"deadLetterQueueName": ""}, b"").dead_letter_name is None
    assert read_options({}, as_payload({"deadLetterQueueName": ""})).dead_letter_name is None


@pytest.mark.parametrize("limit", [1, COUNT_MAX])
def test_counts_at_their_limits(limit: int) -> None:
    """From 1 to the largest 32-bit integer."""
    headers = {"maxQueueSize": str(limit), "maxRetryAttempts": str(limit)}

    assert QueueOptions(max_size=limit, max_attempts=limit) == read_options(headers, b"")
    assert limit == read_options({}, as_payload({"maxQueueSize": limit})).max_size


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("deliveryMode", ""),
        ("deliveryMode", "4"),
        ("deliveryMode", "-1"),
        ("deliveryMode", "Random"),
        ("overflowStrategy", "4"),
        ("overflowStrategy", "RoundRobin"),
        ("maxQueueSize", ""),
        ("maxQueueSize", "0"),
        ("maxQueueSize", "-1"),
        ("maxQueueSize", "1.5"),
        ("maxQueueSize", " 1"),
        ("maxQueueSize", "1_0"),
        ("maxQueueSize", "٣"),
        ("maxQueueSize", "²"),
        ("maxQueueSize", str(COUNT_MAX + 1)),
        ("maxQueueSize", "9" * 60_000),
        ("maxRetryAttempts", "0"),
        ("messageTtl", ""),
        ("messageTtl", "-1"),
        ("messageTtl", "01:00:00"),
        ("messageTtl", str(TTL_MS_MAX + 1)),
        ("enableDeadLetterQueue", "1"),
        ("enableDeadLetterQueue", ""),
        ("durable", "yes"),
        ("deadLetterQueueName", "a b"),
        ("deadLetterQueueName", "x" * 257),
    ],
)
def test_a_bad_header_is_named(key: str, value: str) -> None:
    """The error names the key and quotes only the start of the value."""
    with pytest.raises(OptionError) as refusal:
        read_options({key: value}, as_payload({key: 1}))

    assert key == refusal.value.key
    assert str(refusal.value).startswith(f"{key}: {value[:64]} is not ")
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("key", "json_value"),
    [
        ("mode", "4"),
        ("mode", "-1"),
        ("mode", "1.0"),
        ("mode", "true"),
        ("mode", '"Random"'),
        ("mode", '"1"'),
        ("deliveryMode", "[]"),
        ("overflowStrategy", "false"),
        ("maxQueueSize", "0"),
        ("maxQueueSize", "-5"),
        ("maxQueueSize", "1e3"),
        ("maxQueueSize", "true"),
        ("maxQueueSize", '"10"'),
        ("maxQueueSize", "1" * 6000),
        ("maxQueueSize", "1e999"),
        ("maxRetryAttempts", "{}"),
        ("messageTtl", "-1"),
        ("messageTtl", "1.5"),
        ("messageTtl", '"3600000"'),
        ("messageTtl", '"24:00:00"'),
        ("messageTtl", '"-00:00:01"'),
        ("enableDeadLetterQueue", "0"),
        ("enableDeadLetterQueue", '"on"'),
        ("durable", "[true]"),
        ("deadLetterQueueName", "7"),
        ("deadLetterQueueName", '"\\ud800"'),
    ],
)
def test_a_bad_value_in_the_payload_is_named(key: str, json_value: str) -> None:
    """For any JSON value; the error can always be encoded as UTF-8."""
    with pytest.raises(OptionError, match=f"^{key}: ") as refusal:
        read_options({}, f'{{"{key}":{json_value}}}'.encode())

    assert len(str(refusal.value).encode()) < 300


@pytest.mark.parametrize("payload", [b"[]", b"1", b'"mode"', b"true", b"{", b"\xff", b"NaN"])
def test_a_payload_that_is_not_an_object_is_refused(payload: bytes) -> None:
    """Options are a JSON object or absent."""
    with pytest.raises(OptionError, match=r"^payload: not (a )?JSON"):
        read_options({}, payload)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "00:00:00"),
        (1000, "00:00:01"),
        (3_600_000, "01:00:00"),
        (86_399_000, "23:59:59"),
        (86_400_000, "1.00:00:00"),
        (90_061_000, "1.01:01:01"),
        (1, "00:00:00.0010000"),
        (1500, "00:00:01.5000000"),
        (TTL_MS_MAX, "10675199.02:48:05.4770000"),
    ],
)
def test_time_spans_both_ways(ms: int, text: str) -> None:
    """Days only if there are any, decimals only if the seconds are not whole."""
    assert text == format_timespan(ms)
    assert ms == parse_timespan(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("00:00:00.5", 500),
        ("00:00:00.05", 50),
        ("00:00:00.0010001", 2),  # a fraction of a millisecond is rounded up
        ("00:00:00.0000001", 1),
        ("0.00:00:01", 1000),
        ("01.00:00:00", 86_400_000),
    ],
)
def test_other_ways_to_write_a_time_span(text: str, ms: int) -> None:
    """Up to seven decimals; a positive span is never rounded to 0."""
    assert ms == parse_timespan(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "00:00", "1:00:00", "24:00:00", "00:60:00", "00:00:60", "-00:00:01"),
        *("00:00:00.", "00:00:00.12345678", ".00:00:00", "00:00:00 ", "a.00:00:00"),
        *(
            "\u0660\u0660:00:01",
            "10675199.02:48:05.4780000",
            "99999999.00:00:00",
            "999999999.00:00:00",
        ),
    ],
)
def test_malformed_time_spans_are_refused(text: str) -> None:
    """Each part has two digits and its own range; the whole must fit a client's integer."""
    with pytest.raises(ValueError, match=r"not a time|too long"):
        parse_timespan(text)


@given(st.integers(0, TTL_MS_MAX))
def test_every_written_time_span_is_read_back(ms: int) -> None:
    """Without loss."""
    assert ms == parse_timespan(format_timespan(ms))


DAYS_DESCRIBED = 10**7


@given(st.integers(0, DAYS_DESCRIBED * 86_400_000 - 1))
def test_the_pattern_of_time_spans_matches_what_is_written(ms: int) -> None:
    """Up to some thousands of years; beyond, a pattern cannot express the limit."""
    assert jsonschema_rs.is_valid({"pattern": TIMESPAN_PATTERN}, format_timespan(ms))


@given(st.from_regex(TIMESPAN_PATTERN.replace("$", r"\Z")))
def test_every_match_of_the_pattern_of_time_spans_is_read(text: str) -> None:
    """No match has an invalid time of day or is too long."""
    assert 0 <= parse_timespan(text) <= TTL_MS_MAX


def test_queue_info_for_clients_of_dialect_1_0() -> None:
    """With names for enums, and milliseconds."""
    assert {
        "name": "my-queue",
        "messageCount": 42,
        "inFlight": 2,
        "subscriberCount": 3,
        "deliveryMode": "RoundRobin",
        "maxSize": 10_000,
        "createdAt": "2026-02-18T10:00:00Z",
        "messageTtl": 3_600_000,
        "enableDeadLetterQueue": True,
        "deadLetterQueueName": "dlq.my-queue",
        "overflowStrategy": "RedirectToDlq",
        "maxRetryAttempts": 3,
        "durable": True,
    } == json.loads(write_info(FACTS, DIALECT_1_0))


def test_queue_info_for_clients_of_dialect_1_1() -> None:
    """The same fields, with integers for enums, and hh:mm:ss."""
    info = json.loads(write_info(FACTS, DIALECT_1_1))

    assert (0, 3, "01:00:00") == (
        info["deliveryMode"],
        info["overflowStrategy"],
        info["messageTtl"],
    )
    assert set(json.loads(write_info(FACTS, DIALECT_1_0))) == set(info)


@pytest.mark.parametrize("dialect", [DIALECT_1_0, DIALECT_1_1])
def test_queue_info_without_limits(dialect: int) -> None:
    """No size limit is 0; no TTL and no dead-letter queue are null; the name is UTF-8."""
    facts = replace(
        FACTS, name="очередь", max_size=None, ttl_ms=None, dead_letter_name=None, created_us=1
    )
    payload = write_info(facts, dialect)
    info = json.loads(payload)

    assert (0, None, None) == (info["maxSize"], info["messageTtl"], info["deadLetterQueueName"])
    assert "1970-01-01T00:00:00.000001Z" == info["createdAt"]
    assert "очередь".encode() in payload


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
keys = st.sampled_from(
    [
        *("mode", "deliveryMode", "maxQueueSize", "messageTtl", "enableDeadLetterQueue"),
        *("deadLetterQueueName", "overflowStrategy", "maxRetryAttempts", "durable"),
    ]
)


@given(st.dictionaries(keys, st.text()), st.dictionaries(keys, json_values), st.binary())
def test_noise_raises_documented_errors_only(
    headers: dict[str, str], options: dict[str, object], noise: bytes
) -> None:
    """Any input gives options within their limits or raises OptionError."""
    for payload in (noise, as_payload(options)):
        with suppress(OptionError):
            read = read_options(headers, payload)
            assert read.mode in {None, 0, 1, 2, 3}
            assert read.max_size is None or 1 <= read.max_size <= COUNT_MAX
            assert read.ttl_ms is None or 1 <= read.ttl_ms <= TTL_MS_MAX
