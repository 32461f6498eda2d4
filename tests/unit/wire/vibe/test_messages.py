"""Bodies of the Vibe strand."""

from contextlib import suppress
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.errors import MalformedPayloadError
from braidmq.wire.vibe import messages
from braidmq.wire.vibe.messages import (
    QUEUE_NAME_CHARS_MAX,
    QUEUE_NAME_PATTERN,
    Body,
    encode_headers,
    is_queue_name,
    read_body,
    read_headers,
    read_id,
    write_body,
)
from tests.unit.wire.vectors import vectors

VECTORS = vectors("vibe")
ROWS: list[dict[str, Any]] = VECTORS["messages"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = texts.filter(bool)


def fields(body: Body) -> dict[str, object]:
    """Return the fields of a message in the form of the vectors."""
    return {
        "type": body.type,
        "id": body.id,
        "queue": body.queue or None,
        "payload": body.payload.decode() or None,
        "headers": body.headers,
        "errorCode": body.error_code or None,
        "errorMessage": body.error_message or None,
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["name"]))
@pytest.mark.parametrize(
    ("column", "header_bytes"),
    [("dialect_1_0", 4), ("dialect_1_0_short", 4), ("dialect_1_1", 5)],
)
def test_golden_bodies_both_ways(row: dict[str, Any], column: str, header_bytes: int) -> None:
    """Each golden body reads as its fields, and equals our encoding of them."""
    wire = bytes.fromhex(row[column])[header_bytes:]
    body = read_body(wire)

    assert {name: row[name] for name in fields(body)} == fields(body)
    assert (1, "") == (body.version, body.fault)
    assert wire == write_body(
        row["type"],
        row["id"],
        row["queue"] or "",
        (row["payload"] or "").encode(),
        row["headers"],
        error_code=row["errorCode"] or "",
        error_message=row["errorMessage"] or "",
        with_errors=column == "dialect_1_0" or row["type"] == messages.ERROR,
    )


def test_the_shortest_body_has_only_empty_fields() -> None:
    """Twelve bytes: every length is present and 0."""
    wire = bytes.fromhex("01 0a 0000 0000 00000000 0000")
    body = read_body(wire)

    assert ("", "", b"", {}) == (body.id, body.queue, body.payload, body.headers)
    assert wire == write_body(messages.PING, "", with_errors=False)
    with pytest.raises(MalformedPayloadError, match="11 bytes"):
        read_body(wire[:-1])


@pytest.mark.parametrize(
    ("wire", "part"),
    [
        ("", "shortest"),
        ("01 0a 0007 3132333435363700", "ends in its id"),
        ("01 0a ffff 3132333435 3600000000", "ends in its id"),
        ("01 0a 0001 31 0007 00000000 0000", "ends in its queue"),
        ("01 0a 0001 31 0002 7171 000000", "ends in its queue"),
        ("01 0a 0001 31 0001 71 00000001 0000", "ends in its payload"),
        ("01 0a 0001 31 0001 71 ffffffff 0000", "ends in its payload"),
        ("01 0a 0001 31 0001 71 80000000 0000", "ends in its payload"),
        ("01 0a 0001 31 0001 71 00000000 0001", "ends in its headers"),
        ("01 0a 0001 31 0001 71 00000000 0001 000000", "ends in its headers"),
        ("01 0a 0001 31 0001 71 00000000 0001 0003 6b6b6b 00", "a header's key"),
        ("01 0a 0001 31 0001 71 00000000 0001 0001 6b 0001", "a header's value"),
        ("01 0a 0001 31 0001 71 00000000 0002 0001 6b 0001 76", "ends in its headers"),
        ("01 63 0001 31 0001 71 00000000 0000 00", "ends in its error fields"),
        ("01 63 0001 31 0001 71 00000000 0000 0001", "ends in its error fields"),
        ("01 63 0001 31 0001 71 00000000 0000 0001 65", "ends in its error fields"),
        ("01 63 0001 31 0001 71 00000000 0000 0001 65 0002 6d", "ends in its error fields"),
        ("01 0a 0001 ff 0001 71 00000000 0000", "not UTF-8"),
        ("01 0a 0001 31 0001 ff 00000000 0000", "not UTF-8"),
        ("01 0a 0003 eda080 0001 71 00000000 0000", "not UTF-8"),  # a lone surrogate
        ("01 0a 0001 31 0001 71 00000000 0001 0001 ff 0001 76", "not UTF-8"),
        ("01 0a 0001 31 0001 71 00000000 0001 0001 6b 0001 ff", "not UTF-8"),
        ("01 63 0001 31 0001 71 00000000 0000 0001 ff 0000", "not UTF-8"),
        ("01 63 0001 31 0001 71 00000000 0000 0000 0001 ff", "not UTF-8"),
    ],
)
def test_a_broken_layout_is_refused(wire: str, part: str) -> None:
    """The error says where the body ends too early."""
    with pytest.raises(MalformedPayloadError, match=part):
        read_body(bytes.fromhex(wire))


def test_bytes_after_the_last_field_are_ignored() -> None:
    """Whether they are error fields, part of one, or a future extension."""
    good = write_body(messages.PUBLISH, "m", "q", b"1", {"k": "v"}, with_errors=False)
    error = write_body(messages.ERROR, "m", error_code="C", error_message="t", with_errors=True)

    for more in (b"\x00", bytes(4), b"\x00\x09x", b"\xff\xff\xff\xff", b"\x00\x01\xff\x00\x00"):
        assert fields(read_body(good)) == fields(read_body(good + more))
        assert fields(read_body(error)) == fields(read_body(error + more))


def test_an_error_without_error_fields_is_read() -> None:
    """Like any other field, they may be absent."""
    body = read_body(write_body(messages.ERROR, "m", with_errors=False))

    assert ("", "", "") == (body.error_code, body.error_message, body.fault)


def test_a_header_may_be_empty_and_may_be_repeated() -> None:
    """An empty value is kept; the last value of a repeated key wins."""
    block = "0003 0001 61 0000 0001 62 0001 31 0001 62 0001 32"
    body = read_body(bytes.fromhex("01 14 0001 31 0001 71 00000000" + block))

    assert {"a": "", "b": "2"} == body.headers
    assert "" == body.fault


def test_payloads_are_passed_on_unchanged() -> None:
    """The session checks their content."""
    wire = write_body(messages.PUBLISH, "m", "q", b"\xff\x00 not JSON", with_errors=True)

    assert b"\xff\x00 not JSON" == read_body(wire).payload


def with_header_count(count: int) -> bytes:
    """Return a body with this many headers, all with the same key."""
    empty = write_body(messages.PUBLISH, "m", "q", with_errors=False)
    pair = bytes.fromhex("0001 6b 0001 76")
    return empty[:-2] + count.to_bytes(2, "big") + pair * count


@pytest.mark.parametrize(
    ("wire", "fault"),
    [
        (write_body(messages.PING, "", with_errors=False), "empty id"),
        (b"\x02" + write_body(messages.PING, "m", with_errors=False)[1:], "version 2"),
        (b"\x00" + write_body(messages.PING, "m", with_errors=False)[1:], "version 0"),
        (
            write_body(messages.PING, "m", headers={"": "secret"}, with_errors=False),
            "empty header key",
        ),
        (with_header_count(101), "101 headers, limit is 100"),
        (with_header_count(65_535), "65535 headers"),
    ],
)
def test_a_fault_is_reported_and_the_rest_is_still_read(wire: bytes, fault: str) -> None:
    """If the layout is intact, the session refuses the message under its own id."""
    body = read_body(wire)

    assert fault in body.fault
    assert "secret" not in body.fault
    assert wire[1] == body.type


def test_a_hundred_headers_are_accepted() -> None:
    """The limit counts headers, not distinct keys."""
    assert "" == read_body(with_header_count(100)).fault
    many = {f"k{n}": str(n) for n in range(100)}
    body = read_body(write_body(messages.PUBLISH, "m", headers=many, with_errors=True))

    assert (many, "") == (body.headers, body.fault)


def test_a_header_block_is_encoded_and_read_on_its_own() -> None:
    """Delivery appends the block; reading returns its end."""
    block = encode_headers({"a": "1", "é": ""})
    headers: dict[str, str] = {}

    assert "0002 0001 61 0001 31 0002 c3a9 0000".replace(" ", "") == block.hex()
    assert len(block) + 1 == read_headers(b"\xff" + block + b"\xff", 1, headers)
    assert {"a": "1", "é": ""} == headers
    assert bytes(2) == encode_headers({})


@pytest.mark.parametrize(
    ("wire", "message_id"),
    [
        ("", ""),
        ("01", ""),
        ("01 0a 00", ""),
        ("01 0a 0000", ""),
        ("01 0a 0002 6d", ""),
        ("01 0a 0001 6d", "m"),
        ("01 0a 0001 6d ffff", "m"),
        ("01 0a 0001 ff ffff", ""),
    ],
)
def test_the_id_of_a_broken_body_is_read_if_it_is_complete(wire: str, message_id: str) -> None:
    """The last Error on a connection then still names its request."""
    assert message_id == read_id(bytes.fromhex(wire))


def test_writing_a_text_that_does_not_fit_fails_an_assertion() -> None:
    """A length is never silently truncated to 16 bits."""
    fits = "x" * messages.TEXT_BYTES_MAX

    assert fits == read_body(write_body(messages.PING, fits, fits, with_errors=False)).queue
    for message_id, queue in ((fits + "x", ""), ("m", fits + "x")):
        with pytest.raises(AssertionError):
            write_body(messages.PING, message_id, queue, with_errors=False)
    with pytest.raises(AssertionError):
        encode_headers({"k": fits + "x"})
    with pytest.raises(AssertionError):
        write_body(messages.ERROR, "m", error_code="C", with_errors=False)


@pytest.mark.parametrize(
    "name",
    [
        *("a", "my-queue", "my_queue", "my.queue.v2", "Queue123", "-_.", "x" * 256),
        *("очередь", "キュー", "٣", "é" * 256, "\U0001d538", "e-é_1.٣"),
    ],
)
def test_queue_names_are_letters_digits_hyphens_underscores_and_dots(name: str) -> None:
    """In any script: categories L* and Nd; up to 256 characters."""
    assert is_queue_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 257, "é" * 257, "a b", "a/b", "a@b", "a\n", "a\x00", "*", "a:b", "é/"),
        *("²", "½", "Ⅷ", "😀", "a\u0301", "é ", "\ud800", "é\n", "\u2013"),
    ],
)
def test_other_names_are_refused(name: str) -> None:
    """Symbols, spaces, numbers other than decimal digits, and combining marks."""
    assert not is_queue_name(name)


# A reader of the pattern may treat characters as letters that this Python does not know.
known = st.characters(exclude_categories=["Cs", "Cn"])


@given(st.text(st.one_of(st.sampled_from("aZ09-_. \n"), known), min_size=1, max_size=4))
def test_the_pattern_of_queue_names_matches_the_check(name: str) -> None:
    """The OpenAPI description states the same rule."""
    length = {"minLength": 1, "maxLength": QUEUE_NAME_CHARS_MAX}
    schema = {"type": "string", "pattern": QUEUE_NAME_PATTERN, **length}

    assert is_queue_name(name) == jsonschema_rs.is_valid(schema, name)


@given(
    st.integers(0, 255),
    ids,
    texts,
    st.binary(max_size=20),
    st.dictionaries(texts.filter(bool), texts, max_size=4),
)
def test_a_written_body_is_read_back(
    kind: int, message_id: str, queue: str, payload: bytes, headers: dict[str, str]
) -> None:
    """With any fields, with and without error fields."""
    for with_errors in (False, True):
        body = read_body(
            write_body(kind, message_id, queue, payload, headers, with_errors=with_errors)
        )

        assert (kind, message_id, queue) == (body.type, body.id, body.queue)
        assert (payload, headers, "") == (body.payload, body.headers, body.fault)


@given(st.binary(max_size=60), st.binary(max_size=30))
def test_noise_raises_documented_errors_only(noise: bytes, rest: bytes) -> None:
    """For any bytes the reader returns a message or raises MalformedPayloadError."""
    start = write_body(messages.ERROR, "m", "q", b"1", with_errors=False)[:-2]
    for wire in (noise, start + b"\x00\x02" + rest, start + b"\x00\x00" + rest):
        read_id(wire)
        with suppress(MalformedPayloadError):
            read_body(wire)


def test_the_start_of_a_body_names_its_type_and_queue_and_the_payloads_size() -> None:
    """As soon as all are there; before that it is unread, and a queue may be no text."""
    whole = messages.write_body(messages.PUBLISH, "id", "q.ü", b"{}", with_errors=False)
    payload_at = whole.index(b"{}")
    starts = [messages.read_start(whole[:size]) for size in range(len(whole) + 1)]

    assert {(messages.PUBLISH, "q.ü", 2)} == set(starts[payload_at:])
    assert {(messages.UNREAD, "", 0)} == set(starts[:payload_at])
    no_text = whole.replace("ü".encode(), b"\xff\xff")
    assert (messages.PUBLISH, "", 2) == messages.read_start(no_text)


def test_too_many_headers_are_not_read() -> None:
    """The message is refused for their number; what they say is not looked at."""
    start = write_body(messages.PING, "p", with_errors=False)[:-2]
    for count in (101, 65_535):
        found = read_body(start + count.to_bytes(2, "big"))
        assert (f"{count} headers, limit is 100", {}) == (found.fault, found.headers)
