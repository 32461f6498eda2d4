"""The JSON of Qumbed frames as typed structs."""

import json

import pytest

from braidmq.wire.errors import MalformedPayloadError
from braidmq.wire.qumbed.layout import DEPTH_MAX, BadFrameError, decode, name_of

SECRET = "c2VjcmV0"


def nested(levels: int) -> bytes:
    """Return a frame of that many levels, including the frame's own two."""
    inside = levels - 2
    filler = b'"x":' + b"[" * inside + b"]" * inside
    return b'{"t":3,"u":{"topic":"a",' + filler + b"}}"


def problem(payload: bytes) -> str:
    """Return why a frame is refused."""
    with pytest.raises(BadFrameError) as caught:
        decode(payload)
    return str(caught.value)


def test_absent_and_null_mean_the_same() -> None:
    """The original implementation writes null for missing fields."""
    absent = decode(b'{"t":1,"p":{}}')
    null = decode(
        b'{"t":1,"p":{"topic":null,"payload":null,"schema_id":null,"recipient_key_id":null,'
        b'"sender_public_key":null,"id":null},"s":null,"k":null}'
    )

    assert absent == null


def test_unknown_keys_are_ignored_and_known_ones_are_case_sensitive() -> None:
    """The protocol grows by new keys; `T` is one."""
    frame = decode(b'{"t":3,"T":7,"new":[{"deep":1e999}],"u":{"Topic":5,"topic":"a"}}')

    assert 3 == frame.t
    assert frame.u is not None
    assert "a" == frame.u.topic


def test_the_last_of_repeated_keys_wins() -> None:
    """As in the original implementation."""
    frame = decode(b'{"t":3,"u":{"topic":"a","topic":"b"}}')

    assert frame.u is not None
    assert "b" == frame.u.topic


def test_32_levels_are_the_maximum() -> None:
    """Including the frame's object and the object of its type."""
    assert 32 == DEPTH_MAX
    assert 3 == decode(nested(32)).t
    assert "the frame is more than 32 levels deep" == problem(nested(33))


@pytest.mark.parametrize("levels", [900, 1_100, 100_000])
def test_any_greater_depth_is_refused_with_the_same_text(levels: int) -> None:
    """Even if the JSON decoder itself gives up."""
    assert "the frame is more than 32 levels deep" == problem(nested(levels))


def test_brackets_side_by_side_or_in_strings_are_not_deep() -> None:
    """A frame is not refused for the number of its brackets."""
    texts = json.dumps(["[[{{"] * 50)
    frame = decode(b'{"t":3,"x":[' + b"[]," * 100 + b"{}]," + f'"y":{texts}}}'.encode())

    assert 3 == frame.t


@pytest.mark.parametrize(
    "payload",
    [
        b" ",
        b"{",
        b'{"t":1',
        b'{"t":1}}',
        b'{"t":1} x',
        b"{'t':1}",
        b'{"t":01}',
        b'{"t":NaN}',
        b'\xef\xbb\xbf{"t":1}',
        b'{"t":3,"u":{"topic":"\xff"}}',
        b'{"t":3,"u":{"topic":"\xed\xa0\x80"}}',
        b'{"t":3,"u":{"topic":"\\ud800"}}',
        b'{"t":3,"u":{"topic":"\\udc00\\ud800"}}',
        b'{"t":3,"unknown":"\xff"}',
        b'{"t":3,"\xff":1}',
        b'{"t":3,"unknown":"\x01"}',
        b'{"t":3,"x":[' + b"[]," * 40,
    ],
)
def test_a_frame_that_is_not_json_is_refused(payload: bytes) -> None:
    """Other encodings and lone surrogates included, even under unknown keys."""
    assert "the frame is not JSON" == problem(payload)


@pytest.mark.parametrize(
    ("payload", "at"),
    [
        (b"[]", "array"),
        (b"1", "int"),
        (b'"c2VjcmV0"', "str"),
        (b"null", "null"),
        (b"{}", "`t`"),
        (b'{"t":"c2VjcmV0"}', "$.t"),
        (b'{"t":true}', "$.t"),
        (b'{"t":null}', "$.t"),
        (b'{"t":1e999}', "$.t"),
        (b'{"t":' + b"1" * 5000 + b"}", "$.t"),
        (b'{"t":1,"p":"c2VjcmV0"}', "$.p"),
        (b'{"t":1,"p":[]}', "$.p"),
        (b'{"t":1,"p":{"topic":1}}', "$.p.topic"),
        (b'{"t":1,"p":{"payload":5}}', "$.p.payload"),
        (b'{"t":1,"p":{"payload":"c2VjcmV0!"}}', "$.p.payload"),
        (b'{"t":1,"p":{"payload":"YQ"}}', "$.p.payload"),
        (b'{"t":1,"p":{"payload":"YQ\\n=="}}', "$.p.payload"),
        (b'{"t":1,"p":{"payload":"-_-_"}}', "$.p.payload"),
        (b'{"t":1,"p":{"id":5}}', "$.p.id"),
        (b'{"t":2,"s":{"public_key":[1,2]}}', "$.s.public_key"),
        (b'{"t":7,"d":{"topics":"c2VjcmV0"}}', "$.d.topics"),
        (b'{"t":7,"d":{"topics":[1]}}', "$.d.topics"),
        (b'{"t":1,"k":1}', "$.k"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(payload: bytes, at: str) -> None:
    """The error names the field and does not quote its value."""
    text = problem(payload)

    assert at in text
    assert SECRET not in text
    assert len(text) < 100


def test_a_bad_frame_is_a_malformed_payload_with_its_id() -> None:
    """The refusal carries the peer's id of the frame."""
    with pytest.raises(MalformedPayloadError) as caught:
        decode(b'{"t":1,"p":{"topic":5,"id":"mine"}}')

    assert isinstance(caught.value, BadFrameError)
    assert "mine" == caught.value.id


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (b'{"t":"x","p":{"id":"a","payload":5}}', "a"),
        (b'{"s":{"id":"b"}}', "b"),
        (b'{"u":{"id":"c"}}', "c"),
        (b'{"d":{"id":"d"}}', "d"),
        (b'{"p":{"id":""},"s":{"id":"e"}}', "e"),
        (b'{"p":{"id":5}}', ""),
        (b'{"p":5}', ""),
        (b"[]", ""),
        (b"{", ""),
        (b'{"x":' + b"[" * 100_000, ""),
        (b'{"p":{"id":"' + b"x" * 65_536 + b'"}}', ""),
    ],
)
def test_the_id_of_a_malformed_frame_is_found(payload: bytes, name: str) -> None:
    """If it can be read and is not too long."""
    assert name == name_of(payload)
