"""The users' file, read again while the broker runs."""

import json
from collections.abc import Iterator

import pytest

from braidmq.base.errors import ConfigError
from braidmq.broker.authorize import PUBLISH, Principal, authorize
from braidmq.broker.quotas import Quotas
from braidmq.server.access.keys import Revision
from braidmq.server.access.users import ReadUsers, Result
from braidmq.wal.disk import read_all
from tests.unit.server.access.users_by_hand import HASH, Desk, user_record, users_file


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def content_of(desk: Desk) -> bytes:
    file = desk.files.open("users.json", write=False, create=False)
    return read_all(file, file.size(), 0)


def test_the_file_is_taken_over_when_it_is_read_again(desk: Desk) -> None:
    """Sessions keep their principal, unless the user or its password is another."""
    for name in ("ada", "bob", "carl", "dora"):
        desk.create(name)
    before = {name: desk.found(name) for name in ("ada", "bob", "carl", "dora")}
    table = json.loads(content_of(desk))
    users = {user["name"]: user for user in table["users"]}
    users["ada"]["grants"] = {"q": ["publish"]}
    users["bob"]["hash"] = HASH
    del users["carl"]
    users["eve"] = user_record("eve")
    desk.disk.put("users.json", users_file(*users.values()))
    found: list[Revision] = []

    def done(outcome: ReadUsers | ConfigError) -> None:
        assert not isinstance(outcome, ConfigError)
        assert {False} == {one.gone for one in before.values()}  # reading changes nothing
        found.append(desk.users.adopt(outcome, Quotas({"topics": 7})))

    desk.users.read_again(["billing"], done)
    desk.until(found)

    assert [Revision(["bob", "eve"], [before["ada"]], [before["bob"], before["carl"]])] == found
    assert [False, True, True, False] == [one.gone for one in before.values()]
    assert authorize(before["ada"], PUBLISH, "q")
    assert desk.found("bob") is not before["bob"]
    assert desk.found("dora") is before["dora"]
    assert {7} == {desk.found(name).quotas.limit("topics") for name in ("ada", "dora", "eve")}
    assert desk.check("bob", "secret") is None
    assert Result.DONE == desk.create("dev")  # no longer an API key's name


@pytest.mark.parametrize(
    "content", [b"[]", users_file(user_record("billing")), users_file(user_record(""))]
)
def test_a_bad_file_changes_nothing_when_it_is_read_again(desk: Desk, content: bytes) -> None:
    """The error says why; changes go on as before."""
    desk.create("ada")
    desk.disk.put("users.json", content)
    found: list[ReadUsers | ConfigError] = []
    desk.users.read_again(["billing", "dev"], found.append)
    desk.until(found)

    assert isinstance(found[0], ConfigError)
    assert desk.check("ada", "secret") is desk.found("ada")
    assert Result.EXISTS == desk.create("billing")


def test_what_was_read_and_not_adopted_changes_nothing(desk: Desk) -> None:
    """Whoever read it may have found that something else cannot be used."""
    desk.create("ada")
    ada = desk.found("ada")
    desk.disk.put("users.json", users_file(user_record("billing")))
    found: list[ReadUsers | ConfigError] = []
    desk.users.read_again([], found.append)
    desk.until(found)

    assert not isinstance(found[0], ConfigError)
    assert desk.check("ada", "secret") is ada
    assert Result.EXISTS == desk.create("billing")  # it is an API key's name, as before


def test_sessions_are_told_of_each_change(desk: Desk) -> None:
    """Of other permissions, and of the end; not of a user that is new."""
    told: list[tuple[list[Principal], list[Principal]]] = []
    desk.users.changed = lambda changed, gone: told.append((changed, gone))
    desk.create("ada")
    ada = desk.found("ada")
    desk.grant("ada", "q", PUBLISH)
    desk.revoke("ada", "q")
    desk.revoke("ada", "q")  # there is nothing to revoke
    desk.delete("ada")
    desk.delete("ada")

    assert [([ada], []), ([ada], []), ([], [ada])] == told
