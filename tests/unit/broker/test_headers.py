"""Headers encoded as one block of bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.topics import (
    HEADER_BYTES_MAX,
    MESSAGE_ID_HEADER,
    decode_headers,
    encode_headers,
)

GOLDEN = {
    "": {},
    "0100 61 0000": {"a": ""},
    "0200 c3a4 0100 62 0100 63 0100 64": {"ä": "b", "c": "d"},
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(("block", "expected"), GOLDEN.items())
def test_golden_bytes(block: str, expected: dict[str, str]) -> None:
    """The golden bytes decode to the headers, and the headers encode to the bytes."""
    assert bytes.fromhex(block) == encode_headers(expected)
    assert expected == decode_headers(bytes.fromhex(block))


@given(st.dictionaries(texts, texts, max_size=5))
def test_headers_keep_their_order(sent: dict[str, str]) -> None:
    """Any text survives encoding and decoding."""
    assert list(sent.items()) == list(decode_headers(encode_headers(sent)).items())


def test_a_text_at_the_limit_fits() -> None:
    """A length is a u16."""
    longest = "x" * HEADER_BYTES_MAX

    assert {"a": longest} == decode_headers(encode_headers({"a": longest}))


def test_a_text_above_the_limit_is_a_programming_error() -> None:
    """Headers from a peer are validated before they are encoded."""
    with pytest.raises(AssertionError):
        encode_headers({"a": "x" * (HEADER_BYTES_MAX + 1)})


def test_a_publishers_message_id_has_a_key_that_no_publisher_can_send() -> None:
    """The key is empty, which every strand refuses in a publisher's headers."""
    block = encode_headers({MESSAGE_ID_HEADER: "mine", "k": "v"})

    assert bytes.fromhex("0000 0400 6d696e65 0100 6b 0100 76") == block
    assert {"": "mine", "k": "v"} == decode_headers(block)
