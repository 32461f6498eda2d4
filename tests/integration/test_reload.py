"""Reloading: what a change of keys and users does to those who are connected."""

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding

from braidmq.base.errors import ConfigError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnauthenticatedError, UnavailableError
from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from braidmq.transport.certificates import fingerprint
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import PATIENCE_S, broker_at, key_config, until
from tests.integration.qumbed import peer as qumbed
from tests.integration.vibe.peer import ERROR, PUBLISH
from tests.integration.vibe_peer import CREATE_USER, connected

pytestmark = pytest.mark.asyncio

ADMIN: Final = key_config("admin", "admin", admin=True)


def settings(*keys: dict[str, object], **more: object) -> dict[str, Any]:
    return {"auth": {"keys": [ADMIN, *keys]}, "qumbed": {"auth": "key"}, **more}


@asynccontextmanager
async def broker_with(
    *keys: dict[str, object],
    data_dir: Path | None = None,
    clock: FakeClock | None = None,
    **more: object,
) -> AsyncIterator[RunningBroker]:
    async with broker_at(data_dir, clock, **settings(*keys, **more)) as broker:
        yield broker


def opened_events(connection: http.client.HTTPConnection, key: str) -> http.client.HTTPResponse:
    connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {key}"})
    response = connection.getresponse()
    assert 200 == response.status
    assert response.readline().startswith(b"event: history")
    return response


def has_ended(events: http.client.HTTPResponse) -> bool:
    """Return whether a stream ends within some events."""
    return any(not events.readline() for _ in range(20))


@pytest.mark.parametrize("now", [[], [key_config("k", "another")]])
async def test_a_revoked_key_loses_everything_that_it_has_open(
    now: list[dict[str, object]],
) -> None:
    """On every strand, and its event streams; a key is revoked by removal or replacement."""
    async with (
        broker_with(key_config("k", "secret")) as broker,
        blip.connected(broker, key="secret") as on_blip,
        connected(broker, authToken="secret") as on_vibe,
        qumbed.connected(broker) as on_qumbed,
        blip.connected(broker, key="admin") as bystander,
    ):
        subscription = await on_blip.subscribe("t")
        await on_vibe.subscribe("q")
        stream = on_qumbed.open()
        alice = qumbed.public(qumbed.ALICE)
        await stream.ask(qumbed.subscribe("t", alice, key="secret"))
        http_side = http.client.HTTPConnection(*broker.address("http"), timeout=PATIENCE_S)
        events = await asyncio.to_thread(opened_events, http_side, "secret")
        reloaded = await broker.reload(settings(*now))

        assert ["k"] == reloaded.keys.revoked
        assert 3 == reloaded.connections_closed
        await on_blip.expect_close()
        await until(lambda: on_vibe.is_closed)
        await on_qumbed.expect_close()
        assert await asyncio.to_thread(has_ended, events)
        http_side.close()
        async with blip.stranger(broker) as again:
            again.send(blip.hello(), blip.auth(key="secret"))
            await again.next()
            assert blip.NACK == (await again.next()).kind
        await bystander.publish("t", b"1")
        if now:  # subscriptions belong to the name
            async with blip.connected(broker, key="another") as heir:
                assert b"1" == (await heir.take(subscription))[1]


async def test_withdrawn_permissions_hold_on_open_connections() -> None:
    """For publishing and for subscriptions that were made before, also by reconnecting."""
    secret = key_config("k", "secret")
    less = key_config("k", "secret", publish=["b"], subscribe=["b"])
    async with (
        broker_with(secret) as broker,
        blip.connected(broker, key="secret") as on_blip,
        connected(broker, authToken="secret") as on_vibe,
        qumbed.connected(broker) as on_qumbed,
        blip.connected(broker, key="admin") as root,
    ):
        polled, pushed, kept = [await on_blip.subscribe(name) for name in "aab"]
        await on_blip.publish("a", b"1")  # the topic is remembered as allowed
        on_blip.send(blip.credit(7, pushed, 10))
        assert blip.PUBLISH == (await on_blip.next()).kind
        await on_vibe.subscribe("a")
        stream = on_qumbed.open()
        alice = qumbed.public(qumbed.ALICE)
        await stream.ask(qumbed.subscribe("a", alice, key="secret"))
        reloaded = await broker.reload(settings(less))
        await root.publish("a", b"2")
        await root.publish("b", b"3")

        assert (["k"], 0) == (reloaded.keys.changed, reloaded.connections_closed)
        await on_blip.expect(blip.not_found(7))  # the credit is void
        on_blip.send(blip.poll(8, polled), blip.poll(9, pushed), blip.ack(1, polled))
        await on_blip.expect(blip.not_found(8), blip.not_found(9), blip.not_found(1))
        on_blip.send(blip.publish(10, "a", b"4"), blip.ping(11))
        await on_blip.expect(blip.nack(10, 403, "forbidden"), blip.pong(11))
        assert b"3" == (await on_blip.take(kept))[1]
        assert ERROR == (await on_vibe.ask(PUBLISH, "a", b"1")).kind
        await stream.expect_error("UNAUTHORIZED")
        await stream.expect_end()
        async with blip.connected(broker, key="secret") as again:
            again.send(blip.poll(1, polled))
            await again.expect(blip.not_found(1))
        await broker.reload(settings(secret))
        assert b"1" == (await on_blip.take(polled))[1]  # given again, nothing was lost


async def test_a_withdrawn_permission_holds_after_a_restart(tmp_path: Path) -> None:
    """A Blip subscription is recorded; what its principal may do is not."""
    async with broker_with(key_config("k", "secret"), data_dir=tmp_path) as broker:
        async with blip.connected(broker, key="secret") as peer:
            subscription = await peer.subscribe("a")
            await peer.publish("a", b"1")
        clock = broker.clock
    less = key_config("k", "secret", subscribe=["b"])
    async with (
        broker_with(less, data_dir=tmp_path, clock=clock) as broker,
        blip.connected(broker, key="secret") as peer,
    ):
        peer.send(blip.poll(1, subscription), blip.credit(2, subscription, 1))
        await peer.expect(blip.not_found(1), blip.not_found(2))


async def test_users_are_read_again() -> None:
    """A user that is gone from the file loses its connections; a grant in it holds at once."""
    async with broker_with() as broker, connected(broker) as root:
        for name in ("ada", "bob"):
            await root.administer(CREATE_USER, username=name, password="pw")
        async with (
            connected(broker, authUsername="ada", authPassword="pw") as ada,
            connected(broker, authUsername="bob", authPassword="pw") as bob,
        ):
            assert ERROR == (await ada.ask(PUBLISH, "q", b"1")).kind
            path = broker.data_dir / "users.json"
            table = json.loads(path.read_bytes())
            table["users"] = [one for one in table["users"] if one["name"] != "bob"]
            table["users"][0]["grants"] = {"q": ["publish"]}
            del table["checksum"]  # as whoever changes it by hand does
            path.write_text(json.dumps(table))
            reloaded = await broker.reload()

            assert (["ada"], ["bob"]) == (reloaded.users.changed, reloaded.users.revoked)
            assert ERROR != (await ada.ask(PUBLISH, "q", b"1")).kind
            await until(lambda: bob.is_closed)


@pytest.mark.parametrize("bad", ["users.json", "keys", "schemas"])
async def test_a_bad_file_changes_nothing(tmp_path: Path, bad: str) -> None:
    """Whichever it is: no key is revoked, no permission is another."""
    (tmp_path / "ok.json").write_text('{"type": "object"}')
    before = settings(key_config("k", "secret"), schemas_dir=tmp_path)
    async with (
        broker_at(**before) as broker,
        blip.connected(broker, key="secret") as peer,
        connected(broker) as root,
    ):
        await root.administer(CREATE_USER, username="ada", password="pw")
        now = settings(key_config("new", "other"), schemas_dir=tmp_path)
        if bad == "users.json":
            (broker.data_dir / "users.json").write_text("{}")
        elif bad == "schemas":
            (tmp_path / "worse.json").write_text("[]")
        else:
            now = settings(key_config("ada", "other"), schemas_dir=tmp_path)  # a user's name
        with pytest.raises(ConfigError):
            await broker.reload(now)

        await peer.publish("t", b"1")
        async with blip.connected(broker, key="secret"):
            pass


@pytest.mark.slow
async def test_a_flight_call_ends_with_its_key() -> None:
    """At its next batch if its permissions are others; with its connection if it is revoked."""
    key = key_config("k", "secret")
    async with broker_with(key, flight={}) as broker:
        async with blip.connected(broker, key="secret") as peer:
            for _ in range(40):
                await peer.publish("t", bytes(2**20))
        for now, error in (
            ([key_config("k", "secret", subscribe=["t"])], UnavailableError),
            ([], UnavailableError),
        ):
            with Endpoint(broker.endpoint, "secret") as endpoint:
                batches = iter(endpoint.batches(topics=["t"], batch_rows=1))
                await asyncio.to_thread(next, batches)
                await broker.reload(settings(*now, flight={}))
                with pytest.raises(error):
                    await asyncio.to_thread(list, batches)
        with (
            Endpoint(broker.endpoint, "secret") as endpoint,
            pytest.raises(UnauthenticatedError),
        ):
            await asyncio.to_thread(endpoint.offsets)


def issue(directory: Path) -> str:
    """Write a certificate and its key; return the fingerprint."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    return fingerprint(ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode()))


async def shown_by(broker: RunningBroker, listener: str) -> str:
    """Return the fingerprint of the certificate that a listener shows."""
    host, port = broker.address(listener)
    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, port), timeout=PATIENCE_S)
    return fingerprint(ssl.PEM_cert_to_DER_cert(pem))


async def test_certificates_are_read_again(tmp_path: Path) -> None:
    """New connections see the new one on every listener; open ones go on."""
    old = issue(tmp_path)
    tls = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    now = settings(blip=tls, vibe=tls, http=tls, qumbed={"auth": "key", **tls})
    listeners = ("blip", "vibe", "http")
    async with broker_at(**now) as broker:
        before = [await shown_by(broker, name) for name in listeners]
        trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        async with blip.stranger(broker, tls=trusting) as peer:
            await peer.log_in("admin")
            new = issue(tmp_path)
            reloaded = await broker.reload()
            await peer.publish("t", b"1")
        after = [await shown_by(broker, name) for name in listeners]
        async with qumbed.connected(broker) as quic:
            certificate = quic.quic.tls._peer_certificate  # noqa: SLF001 - no other way to see it
            assert certificate is not None
            on_qumbed = fingerprint(certificate.public_bytes(Encoding.DER))
        whole = (tmp_path / "cert.pem").read_text()
        (tmp_path / "cert.pem").write_text(whole + whole.replace("MII", "AAA", 1))
        with pytest.raises(ConfigError, match="tls_cert"):
            await broker.reload()
        (tmp_path / "cert.pem").write_text(whole)
        (tmp_path / "key.pem").write_text("broken")
        with pytest.raises(ConfigError, match="tls_cert"):
            await broker.reload()

        assert (3 * [old], 3 * [new]) == (before, after)
        assert new == broker.fingerprint == on_qumbed
        assert ["blip", "http", "qumbed", "vibe"] == reloaded.certificates
        assert new == await shown_by(broker, "blip")


async def test_a_damaged_chain_of_qumbed_changes_nothing(tmp_path: Path) -> None:
    """Also behind the first certificate: an error of the configuration, no internal one."""
    old = issue(tmp_path)
    whole = (tmp_path / "cert.pem").read_text()
    tls = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    before = settings(key_config("k", "secret"))
    async with broker_at(**{**before, "qumbed": {"auth": "key", **tls}}) as broker:
        (tmp_path / "cert.pem").write_text(whole + whole.replace("MII", "AAA", 1))
        async with blip.connected(broker, key="secret") as peer:
            with pytest.raises(ConfigError, match=r"^qumbed\.tls_cert: "):
                await broker.reload({**settings(), "qumbed": {"auth": "key", **tls}})
            await peer.publish("t", b"1")

        assert old == broker.fingerprint


async def test_the_authority_of_clients_is_read_again(tmp_path: Path) -> None:
    """For the connections from now on; a damaged one changes nothing."""
    old, new = trustme.CA(), trustme.CA()
    file = tmp_path / "ca.pem"
    old.cert_pem.write_to_path(file)
    now = settings(key_config("ada", "secret"))
    now["qumbed"] = {"auth": "mtls", "tls_ca": file}

    async def publishes(authority: trustme.CA) -> bool:
        issued = authority.issue_cert("ada.example", common_name="ada")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
        issued.private_key_pem.write_to_path(tmp_path / "k.pem")
        identity = tmp_path / "c.pem", tmp_path / "k.pem"
        async with qumbed.connected(broker, identity=identity) as peer:
            answer = await peer.open().ask(qumbed.publish("t", b"1"))
            return bool(answer["t"] == qumbed.ACK)

    async with broker_at(**now) as broker:
        assert (True, False) == (await publishes(old), await publishes(new))
        file.write_text("broken")
        with pytest.raises(ConfigError, match=r"^qumbed\.tls_ca: "):
            await broker.reload()
        assert await publishes(old)
        new.cert_pem.write_to_path(file)
        reloaded = await broker.reload()
        assert (False, True) == (await publishes(old), await publishes(new))
        assert (["qumbed"], []) == (reloaded.certificates, reloaded.restart)
        old.cert_pem.write_to_path(tmp_path / "other.pem")
        now["qumbed"] = {"auth": "mtls", "tls_ca": tmp_path / "other.pem"}
        reloaded = await broker.reload(now)
        assert (True, False) == (await publishes(old), await publishes(new))
        assert (["qumbed"], []) == (reloaded.certificates, reloaded.restart)


async def test_schemas_are_read_again(tmp_path: Path) -> None:
    """A message is judged by the schema that is in force when it arrives."""
    async with (
        broker_at(**settings(schemas_dir=tmp_path)) as broker,
        qumbed.connected(broker) as peer,
    ):
        stream = peer.open()
        said = qumbed.publish("t", b"1", schema="mine", key="admin")
        stream.send(said)
        await stream.expect_error("SCHEMA_UNKNOWN")
        (tmp_path / "mine.json").write_text('{"type": "integer"}')
        reloaded = await broker.reload()

        assert "mine" in reloaded.schemas
        assert qumbed.ack("1", 0) == await peer.open().ask(said)


async def test_what_needs_a_restart_is_said() -> None:
    """Settings that differ and are not applied, and nothing else."""
    async with broker_with() as broker:
        now = settings(wal={"snapshot_interval_s": 7.0}, vibe={"auto_create": False})
        reloaded = await broker.reload(now)

    assert ["vibe.auto_create", "wal.snapshot_interval_s"] == reloaded.restart
