"""Requests and answers as JSON."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.columnar.flight import requests
from braidmq.columnar.flight.requests import BadRequestError, decode, encode

DOCUMENT = Path(__file__).parents[4] / "docs" / "protocols" / "flight.md"
STAGE = "0123456789abcdef" * 2
MESSAGES = [
    requests.ReadRequest(),
    requests.ReadRequest(1, 2, ["a", "ü"], ["value"], True, 1, False, 7),
    requests.EndOfRead(3, [requests.LostIds(1, 2, "gone")]),
    requests.OffsetsAnswer(1, requests.ID_MAX),
    requests.TopicsAnswer(["a"], 7),
    requests.TopicCountsAnswer({"a": (1, 2)}),
    requests.CutAnswer([(1, 2, 3, 4)]),
    requests.AdvanceRequest(-1, None, 0, 0),
    requests.CursorPlace("c", 1, 2, True),
    requests.CommitRequest(requests.SinkKey("q", "", 0), [STAGE]),
    requests.Stage(STAGE, 3),
]
REFUSED = {
    "not JSON": (requests.ReadRequest, b"{", "is not a ReadRequest"),
    "not UTF-8": (requests.StageRequest, b'{"topic":"\xff"}', "is not a StageRequest"),
    "not an object": (requests.ReadRequest, b"[]", "Expected `object`"),
    "deeply nested": (requests.ReadRequest, b'{"topics":' + b"[" * 100_000, "ReadRequest"),
    "an unknown field": (requests.ReadRequest, b'{"colour":1}', "unknown field `colour`"),
    "a pattern": (requests.ReadRequest, b'{"pattern":"(a+)+"}', "unknown field `pattern`"),
    "a wrong type": (requests.ReadRequest, b'{"start":"1"}', r"\$.start"),
    "a number too large for a log": (
        requests.ReadRequest,
        b'{"end":9223372036854775808}',
        "end",
    ),
    "a huge number": (requests.AdvanceRequest, b'{"start":' + b"9" * 400 + b"}", "start"),
    "a missing field": (requests.AdvanceRequest, b"", "missing required field"),
    "not a stage's id": (requests.AbortRequest, b'{"stages":["../../x"]}', "stages"),
    "a stage's id and more": (
        requests.AbortRequest,
        b'{"stages":["%b\\n"]}' % STAGE.encode(),
        "stages",
    ),
}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_a_round_trip(message: requests.Message) -> None:
    """Decoding gives what was encoded."""
    assert message == decode(type(message), encode(message))


@pytest.mark.parametrize(("kind", "data", "problem"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_request_is_refused(
    kind: type[requests.Message], data: bytes, problem: str
) -> None:
    """The error says what was expected."""
    with pytest.raises(BadRequestError, match=problem):
        decode(kind, data)


def test_a_request_without_fields_may_be_empty() -> None:
    """No bytes stand for no fields."""
    assert requests.OffsetsRequest() == decode(requests.OffsetsRequest, b"")


def test_the_length_is_checked_first() -> None:
    """A request at the limit is read; a longer one is not even parsed."""
    data = encode(requests.StageRequest("t"))

    assert "t" == decode(requests.StageRequest, data, bytes_max=len(data)).topic
    with pytest.raises(BadRequestError, match="too long: 27 bytes, the limit is 4"):
        decode(requests.StageRequest, data, bytes_max=4)


def test_an_answer_may_have_unknown_fields() -> None:
    """So clients understand a newer broker; only requests are strict."""
    data = b'{"earliest":1,"latest":2,"durable":true}'

    assert requests.OffsetsAnswer(1, 2) == decode(requests.OffsetsAnswer, data)


def test_a_text_that_json_cannot_carry_is_refused() -> None:
    """No topic has lone surrogates."""
    with pytest.raises(BadRequestError, match="lone surrogates"):
        encode(requests.StageRequest("\ud800"))


def test_the_documentation_names_every_action_with_its_fields() -> None:
    """docs/protocols/flight.md cannot fall behind the requests."""
    text = DOCUMENT.read_text("utf-8")
    actions = text.partition("## Actions")[2].partition("## Writing")[0]
    rows = [line.split("|") for line in actions.splitlines()]
    bodies = {
        action: row[2]
        for row in rows
        if len(row) > 3
        for action in requests.ACTIONS
        if f"`{action}`" in row[1]
    }

    assert requests.ACTIONS.keys() == bodies.keys()
    for action, kind in requests.ACTIONS.items():
        assert [] == [f for f in kind.__struct_fields__ if f"`{f}`" not in bodies[action]]
    read = text.partition("A ticket is JSON")[2].partition("The last batch")[0]
    assert [] == [f for f in requests.ReadRequest.__struct_fields__ if f"`{f}`" not in read]


@given(st.binary(max_size=64), st.sampled_from(list(requests.ACTIONS.values())))
def test_noise_raises_documented_errors_only(
    noise: bytes, kind: type[requests.Request]
) -> None:
    """Whatever arrives, it is a request or a BadRequestError."""
    with suppress(BadRequestError):
        decode(kind, noise)
