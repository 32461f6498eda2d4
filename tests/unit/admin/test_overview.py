"""The overview and the session: the broker's facts, the principal, what runs compiled."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from braidmq import __version__
from braidmq.server.config.config import BlipConfig, Config
from braidmq.wire.vibe.queue_options import STRATEGIES
from tests.integration.blip.peer import broker_at, connected
from tests.unit.admin.queue_broker import status_of, subscribed_on_every_strand
from tests.unit.admin.world import ADMIN_KEY, ORDERS_KEY, World, bearer


def overview(client: TestClient, key: str) -> dict[str, object]:
    found: dict[str, object] = client.get("/api/overview", headers=bearer(key)).json()
    return found


def test_the_overview_shows_what_runs_compiled(client: TestClient) -> None:
    """Every hot module is in one of the two lists."""
    build = overview(client, ORDERS_KEY)["build"]
    assert isinstance(build, dict)

    assert build["compiled"] == (not build["interpreted_modules"])
    assert (
        "braidmq.broker.authorize" in build["compiled_modules"] + build["interpreted_modules"]
    )


def test_the_overview_shows_the_principal(client: TestClient) -> None:
    """The dashboard shows what its key may do."""
    keys = (ADMIN_KEY, ORDERS_KEY)
    shown = [(o["principal"], o["admin"]) for o in (overview(client, key) for key in keys)]

    assert [("ops", True), ("orders", False)] == shown


def test_the_overview_shows_version_mode_and_listeners(
    client: TestClient, world: World
) -> None:
    """Listeners that are off are null."""
    world.status.addresses.update({"blip": "127.0.0.1:5555", "vibe": None})
    found = overview(client, ADMIN_KEY)

    assert (__version__, False, "always") == (found["version"], found["dev"], found["fsync"])
    assert {"blip": "127.0.0.1:5555", "vibe": None} == found["listeners"]


@pytest.mark.asyncio
async def test_the_overview_shows_the_metrics(tmp_path: Path) -> None:
    """The same numbers, for people."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        await peer.subscribe("t")
        await peer.publish("t", b"x", b"y")
        found = broker.daemon.status.overview()

        assert (True, 1, 1, 2, 3) == (
            found.ready,
            found.topics,
            found.subscriptions,
            found.messages_published,
            found.committed_id,
        )
        assert {"blip": 1, "vibe": 0, "qumbed": 0} == found.connections


@pytest.mark.asyncio
async def test_every_count_of_subscriptions_agrees_with_the_list() -> None:
    """A consumer of a queue is a row of the list, so the overview and its topic count it."""
    async with subscribed_on_every_strand() as (broker, _):
        status = status_of(broker)
        listed = await status.subscriptions.page(after="", limit=9, search="", of=None)
        topics = await status.topics.page(
            after="", limit=9, search="", sort="name", visible=None
        )
        connections = await status.connections.page(after="", limit=9, of=None)
        consumed = await status.topics.detail("v")

        assert 3 == listed.total == status.overview().subscriptions
        assert {"t": 2, "v": 1} == {row.name: row.subscriptions for row in topics.topics}
        assert 1 == consumed.subscriptions
        assert 3 == sum(row.subscriptions for row in connections.connections)


def test_messages_that_found_no_room_are_counted(client: TestClient, world: World) -> None:
    """The oldest that a full queue dropped, and publishes that a full queue refused."""
    world.declare("drops", max_size=1, overflow=STRATEGIES.index("DropOldest"))
    world.declare("in.refuses", max_size=1, overflow=STRATEGIES.index("DropNewest"))
    world.publish("drops", b"1", b"2", b"3")
    path = "/api/topics/in.refuses/messages"
    codes = [
        client.post(path, headers=bearer(ORDERS_KEY), json={"payload": n}).status_code
        for n in range(2)
    ]
    found = overview(client, ADMIN_KEY)

    assert [201, 409] == codes
    assert (2, 1) == (found["messages_dropped"], found["messages_refused"])


def test_listeners_with_tls_are_named(tmp_path: Path) -> None:
    """A client must know how to connect to them; QUIC always has TLS."""
    both = tmp_path / "both.pem"
    both.touch()
    blip = BlipConfig(tls_cert=both, tls_key=both)
    worlds = [World(), World(blip=Config(blip=blip).blip.model_dump())]

    assert [["qumbed"], ["qumbed", "blip"]] == [w.status.overview().tls for w in worlds]


@pytest.fixture
def dev() -> TestClient:
    """Return a client of a broker in development mode."""
    return World(dev=True).client()


def test_without_a_key_the_session_shows_the_version(dev: TestClient) -> None:
    """The dashboard asks before it has a key; nothing else is shown."""
    assert {"version": __version__, "dev": True} == dev.get("/api/session").json()


@pytest.mark.parametrize(
    ("key", "name", "admin"), [(ADMIN_KEY, "ops", True), (ORDERS_KEY, "orders", False)]
)
def test_with_a_key_the_session_shows_the_principal(
    dev: TestClient, key: str, name: str, admin: bool
) -> None:
    """The sign-in page can say which key was accepted."""
    answer = dev.get("/api/session", headers=bearer(key))

    assert {
        "version": __version__,
        "dev": True,
        "principal": name,
        "admin": admin,
    } == answer.json()


def test_the_session_of_an_unknown_key_is_401(dev: TestClient) -> None:
    """A wrong key is not the same as none."""
    assert 401 == dev.get("/api/session", headers=bearer("wrong")).status_code
