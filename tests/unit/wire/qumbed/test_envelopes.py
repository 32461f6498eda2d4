"""Envelopes: the bytes that are sealed together with a payload."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.qumbed.envelopes import (
    MARK,
    Envelope,
    TruncatedEnvelopeError,
    read_envelope,
    write_envelope,
)

SENDER = bytes(range(32))
ENCODED = bytes.fromhex(
    "c1"  # mark
    f"{SENDER.hex()}"
    "0000000000000007"  # sequence
    "0000018bcfe56800"  # timestamp ms
    "0002 c3a9"  # topic
    "0001 73"  # schema id
    "7b7d"  # payload
)
ENVELOPE = Envelope(SENDER, 7, 1_700_000_000_000, "é".encode(), b"s", b"{}")
PAYLOAD_AT = len(ENCODED) - 2


def test_golden_bytes() -> None:
    """The golden bytes read as the envelope, and the envelope is written as them."""
    assert ENCODED == write_envelope(ENVELOPE)
    assert ENVELOPE == read_envelope(ENCODED)


@given(
    st.builds(
        Envelope,
        st.binary(min_size=32, max_size=32),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.binary(max_size=300),
        st.binary(max_size=300),
        st.binary(max_size=300),
    )
)
def test_every_envelope_is_read_as_it_was_written(envelope: Envelope) -> None:
    """For any texts and payload."""
    assert envelope == read_envelope(write_envelope(envelope))


@pytest.mark.parametrize("size", range(1, PAYLOAD_AT))
def test_a_truncated_envelope_is_refused(size: int) -> None:
    """Cut anywhere before the payload, whose length is not encoded."""
    with pytest.raises(TruncatedEnvelopeError, match="the envelope is truncated"):
        read_envelope(ENCODED[:size])


def test_the_payload_may_be_empty() -> None:
    """The envelope then ends after the schema id."""
    assert ENVELOPE._replace(payload=b"") == read_envelope(ENCODED[:PAYLOAD_AT])


@pytest.mark.parametrize("plaintext", [b"", b"{}", b"\x00", b"\xc0", b"\xc2", ENCODED[1:]])
def test_a_plaintext_without_the_mark_is_a_bare_payload(plaintext: bytes) -> None:
    """It was sealed without an envelope."""
    assert read_envelope(plaintext) is None


def test_no_text_starts_with_the_mark() -> None:
    """So that no plain payload is mistaken for an envelope."""
    with pytest.raises(UnicodeDecodeError):
        bytes([MARK, 0x80]).decode()


@given(st.binary(max_size=120))
def test_noise_after_the_mark_is_an_envelope_or_truncated(noise: bytes) -> None:
    """No other error is raised."""
    with suppress(TruncatedEnvelopeError):
        assert read_envelope(bytes([MARK]) + noise) is not None


def test_an_envelope_does_not_show_its_payload() -> None:
    """Its repr may end up in a log."""
    assert "Envelope(7)" == repr(ENVELOPE)
