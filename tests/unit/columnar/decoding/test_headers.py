"""Headers of many messages at once."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.topics import encode_headers
from braidmq.columnar.decoding.headers import HEADERS_TYPE, Headers, MalformedHeadersError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
BLOCKS = st.lists(st.dictionaries(TEXTS | st.just("key"), TEXTS, max_size=5), max_size=6)


def headers_of(blocks: list[bytes]) -> Headers:
    ends = np.cumsum([3 + len(block) for block in blocks], dtype=np.int64)
    starts = ends - [len(block) for block in blocks]
    buffer = pa.py_buffer(b"".join(b"---" + block for block in blocks) + b"---")
    return Headers(buffer, starts.astype(np.int64), ends)


@given(BLOCKS)
def test_headers_match_those_that_the_broker_reads(messages: list[dict[str, str]]) -> None:
    """In their order, null for none, and without the publisher's own id."""
    found = headers_of([encode_headers(message) for message in messages])
    shown = [{k: v for k, v in message.items() if k} for message in messages]

    assert HEADERS_TYPE == found.array().type
    assert [
        [{"key": k, "value": v.encode()} for k, v in kept.items()] or None for kept in shown
    ] == found.array().to_pylist()
    assert [kept.get("key") for kept in shown] == found.named(b"key").cast("string").to_pylist()


@pytest.mark.parametrize(
    "block", ["01", "0500 61", "0100 61 0500 62", "0100 61 01", "0100 61 0000 00"]
)
def test_a_block_that_ends_too_early_is_malformed(block: str) -> None:
    """No length may reach past the end of its block."""
    with pytest.raises(MalformedHeadersError):
        headers_of([b"", bytes.fromhex(block)])


def test_a_key_that_is_not_text_is_malformed() -> None:
    """Values are bytes to Spark, but keys are strings."""
    with pytest.raises(MalformedHeadersError):
        headers_of([b"\x01\x00\xff\x01\x00\xff"]).array()
