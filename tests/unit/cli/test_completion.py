"""The names that `braidmq completion` offers, and when it offers none."""

from types import SimpleNamespace
from typing import cast

import pytest
import typer

from braidmq.cli import completion
from braidmq.cli.api import Api, HttpError

CONTEXT = cast("typer.Context", SimpleNamespace(params={"url": "http://key@127.0.0.1:1"}))


def answering(
    monkeypatch: pytest.MonkeyPatch, page: dict[str, object] | HttpError
) -> list[str]:
    """Answer each request with *page*; return the requested paths."""
    requested: list[str] = []

    def ask(_api: Api, _method: str, path: str, *, timeout_s: float) -> dict[str, object]:
        assert completion.COMPLETE_S_MAX == timeout_s
        requested.append(path)
        if isinstance(page, HttpError):
            raise page
        return page

    monkeypatch.setattr(Api, "ask", ask)
    return requested


def test_names_with_the_typed_prefix_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one request to the broker, which searches for them."""
    names = [{"name": name} for name in ("orders.eu", "other", "orders.us")]
    requested = answering(monkeypatch, {"topics": names})

    assert ["orders.eu", "orders.us"] == completion.topic_names(CONTEXT, "ord")
    assert [f"/api/topics?search=ord&limit={completion.NAMES_MAX}"] == requested


def test_dead_letter_queues_have_a_list_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows have another field for the name."""
    answering(monkeypatch, {"queues": [{"queue": "dlq.jobs"}, {"queue": "dead"}]})

    assert ["dlq.jobs"] == completion.letter_queue_names(CONTEXT, "dlq.")


@pytest.mark.parametrize("name", ["a b", "a$(x)", "a`x`", "a'x", 'a"x', "a\\x", "a:x", "a\x1b"])
def test_a_name_that_needs_quotes_in_a_shell_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The user has to type it."""
    answering(monkeypatch, {"queues": [{"name": name}, {"name": "ab"}]})

    assert ["ab"] == completion.queue_names(CONTEXT, "a")


@pytest.mark.parametrize("page", [HttpError("no answer in time"), {}, {"topics": 1}])
def test_without_an_answer_nothing_is_offered(
    monkeypatch: pytest.MonkeyPatch, page: dict[str, object] | HttpError
) -> None:
    """And nothing is printed: the user is in the middle of a line."""
    answering(monkeypatch, page)

    assert [] == completion.topic_names(CONTEXT, "ord")
