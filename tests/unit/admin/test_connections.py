"""Connections over HTTP: who sees which, and who may close one."""

import asyncio

import pytest
from starlette.testclient import TestClient

import braidmq
from braidmq.admin.connections import address_of
from braidmq.admin.http.refusals import UnknownThingError
from braidmq.broker.authorize import Principal
from braidmq.testing.broker import running_broker
from tests.integration.blip.peer import until
from tests.unit.admin.queue_broker import status_of, subscribed_on_every_strand
from tests.unit.admin.world import ADMIN, ORDERS, World

PATH = "/api/connections"


class FakeConnection:
    """An open connection, as a listener reports it."""

    strand = "blip"
    since_us = 1_500_000
    subscriptions = 2
    in_bytes = 30
    out_bytes = None

    def __init__(
        self, number: int, principal: str | None, peer: str = "127.0.0.1:4711"
    ) -> None:
        self.number = number
        self.peer = peer
        self.principal = principal
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class FakeListener:
    """A listener with these connections."""

    def __init__(self, *connections: FakeConnection) -> None:
        self._connections = connections

    def open_connections(self) -> tuple[FakeConnection, ...]:
        return self._connections


@pytest.fixture
def connections(world: World) -> list[FakeConnection]:
    connections = [
        FakeConnection(9, None),
        FakeConnection(7, "orders"),
        FakeConnection(8, "ops"),
    ]
    world.status.listeners.append(FakeListener(*connections))  # type: ignore[arg-type]  # it has all that is used
    return connections


@pytest.mark.usefixtures("connections")
def test_a_key_sees_its_own_connections(client: TestClient) -> None:
    """Only an administrator sees the addresses and names of others."""
    every, own = (client.get(PATH, headers=headers).json() for headers in (ADMIN, ORDERS))

    assert [7, 8, 9] == [row["id"] for row in every["connections"]]
    row = {
        "id": 7,
        "strand": "blip",
        "peer": "127.0.0.1:4711",
        "principal": "orders",
        "since": "1970-01-01T00:00:01.500000Z",
        "subscriptions": 2,
        "in_bytes": 30,
        "out_bytes": None,
    }
    assert {"connections": [row], "next": None, "total": 1} == own


@pytest.mark.usefixtures("connections")
def test_connections_come_in_pages(client: TestClient) -> None:
    """`next` is null at the end, and the limit is that of every list."""
    first = client.get(f"{PATH}?limit=2", headers=ADMIN).json()
    rest = client.get(f"{PATH}?limit=2&after={first['next']}", headers=ADMIN).json()

    assert [[7, 8], [9]] == [[row["id"] for row in p["connections"]] for p in (first, rest)]
    assert ("8", 3, None, 3) == (first["next"], first["total"], rest["next"], rest["total"])
    assert 400 == client.get(f"{PATH}?limit=1001", headers=ADMIN).status_code


CLIENTS = "/api/clients"


@pytest.mark.usefixtures("connections")
def test_connections_of_one_client_are_one_row(client: TestClient, world: World) -> None:
    """A client is a principal at an address; a key sees its own."""
    more = [FakeConnection(10, "orders", "127.0.0.1:9"), FakeConnection(11, "orders", "::1")]
    more[0].strand = "vibe"
    more[0].in_bytes = 12
    more[0].since_us = 1_000_000
    world.status.listeners.append(FakeListener(*more))  # type: ignore[arg-type]  # as above
    every, own = (client.get(CLIENTS, headers=headers).json() for headers in (ADMIN, ORDERS))
    found = [(row["principal"], row["address"], row["connections"]) for row in every["clients"]]

    assert [
        (None, "127.0.0.1", 1),
        ("ops", "127.0.0.1", 1),
        ("orders", "127.0.0.1", 2),
        ("orders", "::1", 1),
    ] == found
    assert (4, 5, 2, 3) == (
        every["total"],
        every["connections"],
        own["total"],
        own["connections"],
    )
    assert {
        "id": "orders@127.0.0.1",
        "principal": "orders",
        "address": "127.0.0.1",
        "strands": {"blip": 1, "vibe": 1},
        "connections": 2,
        "since": "1970-01-01T00:00:01Z",
        "subscriptions": 4,
        "in_bytes": 42,
        "out_bytes": None,
    } == own["clients"][0]
    asked = {"client": "orders@127.0.0.1"}
    listed = client.get(PATH, headers=ADMIN, params=asked).json()
    assert [7, 10] == [row["id"] for row in listed["connections"]]


def test_clients_come_in_pages_whatever_their_names(client: TestClient, world: World) -> None:
    """No name of a principal is taken for another client's."""
    names = ["a", "a@b", "a%40b", "\u00e4 b"]
    fakes = [FakeConnection(n, name, "[fe80::1]:80") for n, name in enumerate(names, 1)]
    world.status.listeners.append(FakeListener(*fakes))  # type: ignore[arg-type]  # as above
    found = []
    after: str | None = ""
    while after is not None:
        page = client.get(CLIENTS, headers=ADMIN, params={"limit": "1", "after": after}).json()
        found += [(row["principal"], row["address"]) for row in page["clients"]]
        after = page["next"]

    assert sorted((name, "fe80::1") for name in names) == sorted(found)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.7:51720", "10.0.0.7"),
        ("10.0.0.7", "10.0.0.7"),
        ("[::1]:51720", "::1"),
        ("::1", "::1"),
        ("fe80::1", "fe80::1"),
        ("", ""),
    ],
)
def test_an_address_is_that_of_the_peer_without_its_port(peer: str, address: str) -> None:
    """Qumbed knows peers by address alone, the other strands with a port."""
    assert address == address_of(peer)


@pytest.mark.parametrize("after", ["x", "1.", "1.2.3", 25 * "9", "\u0663"])
def test_a_page_continues_only_from_the_cursor_of_another(
    client: TestClient, after: str
) -> None:
    """Anything else is refused."""
    for path in (PATH, "/api/subscriptions"):
        assert 400 == client.get(path, headers=ADMIN, params={"after": after}).status_code


def test_an_administrator_closes_a_connection(
    client: TestClient, connections: list[FakeConnection]
) -> None:
    """Other keys may not; an unknown id is 404."""
    answers = [
        client.delete(f"{PATH}/7", headers=ORDERS),
        client.delete(f"{PATH}/7", headers=ADMIN),
        client.delete(f"{PATH}/99", headers=ADMIN),
        client.delete(f"{PATH}/x", headers=ADMIN),
    ]

    assert [403, 200, 404, 404] == [answer.status_code for answer in answers]
    assert {"id": 7} == answers[1].json()
    assert [False, True, False] == [connection.is_closed for connection in connections]


@pytest.mark.asyncio
async def test_every_strand_has_its_connections() -> None:
    """Numbered across all strands, with peers, principals and bytes."""
    async with subscribed_on_every_strand() as (broker, _):
        connections = status_of(broker).connections
        found = (await connections.page(after="", limit=100, of=None)).connections
        numbers = [row.id for row in found]
        other = Principal("x", publish=[], subscribe=[])

        assert sorted(set(numbers)) == numbers
        assert {"blip", "vibe", "qumbed"} == {row.strand for row in found}
        assert 3 == sum(row.subscriptions for row in found)
        assert all(row.peer.startswith("127.0.0.1") for row in found)
        assert all(row.in_bytes for row in found if row.strand != "qumbed")
        assert [] == (await connections.page(after="", limit=9, of=other)).connections
        clients = await connections.clients(after="", limit=9, of=None)
        assert [("anonymous", ["qumbed"]), ("dev", ["blip", "vibe"])] == [
            (row.principal, list(row.strands)) for row in clients.clients
        ]
        assert (
            len(found)
            == clients.connections
            == sum(status_of(broker).overview().connections.values())
        )


@pytest.mark.asyncio
@pytest.mark.parametrize("strand", ["blip", "vibe", "qumbed"])
async def test_the_peer_notices_that_its_connection_is_closed(strand: str) -> None:
    """On every strand."""
    async with running_broker() as broker:
        connections = status_of(broker).connections
        if strand == "blip":
            reader, writer = await asyncio.open_connection(*broker.address("blip"))
            await until(lambda: len(broker.daemon.status.listeners[0]) == 1)
            (row,) = (await connections.page(after="", limit=9, of=None)).connections
            assert row.id == connections.close(str(row.id))
            assert b"" == await reader.read()
            writer.close()
        else:
            async with (
                braidmq.connect(broker.url(strand)) as client,
                client.subscribe("t"),
            ):
                (row, *_) = (await connections.page(after="", limit=9, of=None)).connections
                assert row.id == connections.close(str(row.id))
        with pytest.raises(UnknownThingError):
            connections.close("99")
