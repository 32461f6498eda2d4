"""The real process: `braidmq serve` from start to exit, seen from the outside."""

import asyncio
import json
import resource
import signal
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from tests.integration.blip.peer import (
    PATIENCE_S,
    Peer,
    ack,
    auth,
    credit,
    hello,
    nack,
    ping,
    pong,
    publish,
    until,
)
from tests.integration.served import Served, key_section, refused, served

pytestmark = pytest.mark.asyncio

CANARY_KEY = "canary-key-7f3a91"
CANARY_PAYLOAD = b"canary-payload-5be02c"


# The ready file.


async def test_the_ready_file_lists_every_address(tmp_path: Path) -> None:
    """It appears, complete, once every listener accepts; a clean exit removes it."""
    async with served(tmp_path) as broker:
        facts = await broker.ready()

        assert set(facts) == {
            *("blip", "vibe", "qumbed", "http", "flight"),
            *("pid", "qumbed_fingerprint", "gateway_public_key"),
        }
        assert None is facts["flight"]
        assert 4 == len({facts[name] for name in ("blip", "vibe", "qumbed", "http")})
        assert 2 * [64] == [
            len(bytes.fromhex(facts[name]).hex())
            for name in ("qumbed_fingerprint", "gateway_public_key")
        ]
        async with broker.peer() as peer:
            await peer.expect_silence()
        assert 200 == (await broker.get("/readyz"))[0]
        assert 0 == await broker.end()
        assert not broker.ready_file.exists()
        assert not broker.ready_file.with_name("ready.json.tmp").exists()


async def test_a_stale_ready_file_is_removed_at_start(tmp_path: Path) -> None:
    """A crashed broker's file must not mislead: it is removed even if the start fails."""
    (tmp_path / "ready.json").write_text('{"pid": 1}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert 69 == (await refused(tmp_path, "--blip", address))[0]


async def test_a_listener_that_is_off_is_null(tmp_path: Path) -> None:
    """The address `off` turns the listener off."""
    async with served(tmp_path, "--http", "off") as broker:
        facts = await broker.ready()

        assert None is facts["http"]
        assert None is not facts["blip"]
        assert 0 == await broker.end()


async def test_a_ready_file_that_cannot_be_written_ends_the_broker(tmp_path: Path) -> None:
    """A script would wait for it for ever, so the broker exits with an error."""
    async with served(tmp_path, "--ready-file", str(tmp_path / "no" / "where")) as broker:
        assert 74 == await broker.ended()
        assert broker.stderr.splitlines()[-1].startswith("error: ")


# Exit codes.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_broker_with_exit_code_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM and SIGINT; durable messages survive the restart."""
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", b"kept")
        assert 0 == await broker.end(number)
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            assert b"kept" == (await peer.take(subscription))[1]


USAGE = {
    "unknown key": ("[blip]\nprot = 1\n", (), "blip.prot"),
    "unknown section": ("[blib]\nport = 1\n", (), "blib"),
    "bad value": ("[delivery]\nmax_retries = 0\n", (), "delivery.max_retries"),
    "bad fsync policy": ('[wal]\nfsync = "sometimes"\n', (), "wal.fsync"),
    "not TOML": ("[blip\n", (), "braidmq.toml"),
    "dev is for loopback only": ("", ("--blip", "0.0.0.0:0"), "blip"),
    "dev HTTP is for loopback only": ("", ("--http", "0.0.0.0:0"), "http"),
    "unknown flag": ("", ("--blib", "1"), "--blib"),
    "mDNS without Qumbed": ("", ("--mdns", "--qumbed", "off"), "--mdns"),
    "Qumbed auth": ('[qumbed]\nauth = "password"\n', (), "qumbed.auth"),
    "mtls without a CA": ('[qumbed]\nauth = "mtls"\n', (), "qumbed.tls_ca"),
    "a bad schema directory": ('schemas_dir = "no-such-directory"\n', (), "schemas_dir"),
}


@pytest.mark.parametrize("row", USAGE)
async def test_wrong_usage_exits_with_2_and_names_the_key(tmp_path: Path, row: str) -> None:
    """A bad configuration ends with exit code 2 and one line on stderr."""
    config, flags, named = USAGE[row]
    code, line = await refused(tmp_path, *flags, config=config)

    assert 2 == code
    assert named in line


async def test_an_unknown_environment_variable_is_refused(tmp_path: Path) -> None:
    """A variable `BRAIDMQ_<SECTION>__<KEY>` whose key does not exist is an error."""
    code, line = await refused(tmp_path, environment={"BRAIDMQ_BLIP__PROT": "1"})

    assert 2 == code
    assert "prot" in line.lower()


async def test_the_broker_does_not_start_without_keys(tmp_path: Path) -> None:
    """Without --dev and configured keys it exits with 2 and names `braidmq keys new`."""
    code, line = await refused(tmp_path, dev=False)

    assert 2 == code
    assert "braidmq keys new" in line


async def test_a_damaged_log_exits_with_65(tmp_path: Path) -> None:
    """The broker does not start on committed data that it cannot read; it deletes nothing."""
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            for _ in range(3):
                await peer.publish("t", CANARY_PAYLOAD * 100)
        broker.process.kill()
        await broker.ended()
    (segment,) = (tmp_path / "data" / "wal").glob("*.wal")
    data = bytearray(segment.read_bytes())
    data[data.index(CANARY_PAYLOAD) + 50] ^= 0x01
    segment.write_bytes(data)
    code, line = await refused(tmp_path)

    assert 65 == code
    assert segment.name in line
    assert CANARY_PAYLOAD.decode() not in line
    assert bytes(data) == segment.read_bytes()


@pytest.mark.parametrize("listener", ["blip", "http"])
async def test_an_address_in_use_exits_with_69(tmp_path: Path, listener: str) -> None:
    """It exits at once and names the listener and the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = await refused(tmp_path, f"--{listener}", address)

    assert 69 == code
    assert listener in line
    assert address in line


async def test_an_io_error_on_the_log_exits_with_74(tmp_path: Path) -> None:
    """The waiting publisher gets 500, outcome unknown, and the broker exits."""
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            await peer.publish("t", b"fine")
            # From here on the kernel refuses every write to a file (EFBIG): an I/O error.
            resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (1, 1))
            peer.send(publish(77, "t", CANARY_PAYLOAD), ping(78))
            answer = await peer.next()
            assert (6, 77) == answer[:2]
            assert b"durable publish failed: " in answer.payload
            assert CANARY_PAYLOAD not in answer.payload
            await peer.expect(pong(78))
            await peer.expect_close()
        assert 74 == await broker.ended()
        assert broker.stderr.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in broker.stderr
    async with served(tmp_path) as broker:
        await broker.ready()
        assert 0 == await broker.end()


async def test_a_data_directory_in_use_exits_with_75(tmp_path: Path) -> None:
    """Two brokers would destroy the log: the second exits, the first carries on."""
    async with served(tmp_path) as broker:
        await broker.ready()
        run_file = (tmp_path / "data" / "run.json").read_text()
        code, line = await refused(tmp_path / "second", "--data-dir", str(tmp_path / "data"))

        assert 75 == code
        assert "in use" in line
        assert run_file == (tmp_path / "data" / "run.json").read_text()
        async with broker.peer() as peer:
            await peer.publish("t", b"still here")


# Draining.


async def until_draining(broker: Served) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await broker.get("/readyz"))[0] != 503:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_drain_lets_acknowledgements_arrive(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It refuses connections and durable publishes, takes ACKs, and then exits at once."""
    async with served(tmp_path, config="[limits]\ndrain_s = 600\n") as broker:
        facts = await broker.ready()
        async with broker.peer() as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", b"in flight", b"waiting")
            tag, _ = await peer.take(subscription)
            broker.tell(number)
            await until_draining(broker)
            host, _, port = facts["blip"].rpartition(":")
            with pytest.raises(ConnectionError):
                await asyncio.open_connection(host, int(port))
            peer.send(publish(5, "t", b"too late"))
            await peer.expect(
                nack(5, 500, "durable publish failed: the broker is shutting down")
            )
            peer.send(ack(tag, subscription), ping(6))
            await peer.expect(pong(6))
            assert 0 == await broker.ended()
            assert not broker.ready_file.exists()
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            assert b"waiting" == (await peer.take(subscription))[1]
            assert None is await peer.poll(subscription)


async def test_drain_delivers_nothing_new(tmp_path: Path) -> None:
    """A consumer that keeps granting credit does not keep the broker running."""
    async with served(tmp_path, config="[limits]\ndrain_s = 600\n") as broker:
        await broker.ready()
        async with broker.peer() as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", *(b"%d" % number for number in range(50)))
            peer.send(credit(5, subscription, 1))
            first = await peer.next()
            broker.tell(signal.SIGTERM)
            await until_draining(broker)
            peer.send(credit(6, subscription, 1000), ping(7))
            await peer.expect(pong(7))
            peer.send(ack(first.correlation_id, subscription), ping(8))
            await peer.expect(pong(8))
            assert 0 == await broker.ended()


async def test_drain_stops_at_its_time_limit(tmp_path: Path) -> None:
    """Messages without an acknowledgement are still in flight after the restart."""
    async with served(tmp_path, config="[limits]\ndrain_s = 0.3\n") as broker:
        await broker.ready()
        async with broker.peer() as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", b"never acknowledged")
            tag, _ = await peer.take(subscription)
            assert 0 == await broker.end()
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            await peer.acknowledge(subscription, tag)
            assert None is await peer.poll(subscription)


async def test_a_second_signal_ends_the_broker_at_once(tmp_path: Path) -> None:
    """The broker stops waiting for acknowledgements."""
    async with served(tmp_path, config="[limits]\ndrain_s = 600\n") as broker:
        await broker.ready()
        async with broker.peer() as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", b"x")
            await peer.take(subscription)
            broker.tell(signal.SIGTERM)
            await until_draining(broker)
            assert 0 == await broker.end(signal.SIGINT)
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            assert b"x" == (await peer.take(subscription))[1]


async def test_an_idle_broker_ends_without_waiting(tmp_path: Path) -> None:
    """Connections with nothing in flight do not delay the exit."""
    async with served(tmp_path, config="[limits]\ndrain_s = 600\n") as broker:
        await broker.ready()
        async with broker.peer() as peer:
            await peer.subscribe("t")
            assert 0 == await broker.end()
            await peer.expect_close()


# The real event loop.


async def test_the_real_event_loop_answers_after_a_half_close(tmp_path: Path) -> None:
    """The process uses a different event loop from the tests; half-close works the same."""
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            peer.send(*(publish(5, "t", b"x") for _ in range(500)), ping(6))
            peer.finish()
            await peer.expect(pong(6))
            await peer.expect_close()


async def test_the_real_event_loop_speaks_tls(tmp_path: Path) -> None:
    """With the configured certificate, from the handshake to the close."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    client = ssl.create_default_context()
    authority.configure_trust(client)
    config = f'[blip]\ntls_cert = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"\n'
    async with served(tmp_path, config=config) as broker:
        host, _, port = (await broker.ready())["blip"].rpartition(":")
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(
            Peer, host, int(port), ssl=client, server_hostname="localhost"
        )
        await peer.log_in()
        subscription = await peer.subscribe("t")
        await peer.publish("t", bytes(3_000_000))
        assert 3_000_000 == len((await peer.take(subscription))[1])
        assert 0 == await broker.end()
        await peer.expect_close()


# Logs, health and metrics.


async def test_logs_are_json_lines_without_secrets(tmp_path: Path) -> None:
    """Every line is JSON; no key and no payload shows, whatever a peer did with them."""
    async with served(tmp_path, config=key_section("ada", CANARY_KEY)) as broker:
        facts = await broker.ready()
        async with broker.peer(CANARY_KEY) as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", CANARY_PAYLOAD)
            await peer.take(subscription)
            peer.send(publish(5, "", CANARY_PAYLOAD), CANARY_PAYLOAD * 10)
            await peer.next()
            await peer.expect_close()
        host, _, port = facts["blip"].rpartition(":")
        loop = asyncio.get_running_loop()
        _, stranger = await loop.create_connection(Peer, host, int(port))
        stranger.send(hello(1), *(auth(2, CANARY_KEY + "x") for _ in range(5)))
        await until(stranger.transport.is_closing)
        status, metrics = await broker.get(f"/api/overview?key={CANARY_KEY}")
        assert 0 == await broker.end()
        lines = [json.loads(line) for line in broker.stderr.splitlines()]

        assert status in {200, 401}
        (ready,) = (line for line in lines if line["event"] == "ready")
        assert f"http://{facts['http']}/" == ready["page"]
        assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
        assert [] == [line for line in lines if line["level"] in {"error", "critical"}]
        for secret in (CANARY_KEY, CANARY_PAYLOAD.decode()):
            assert secret not in broker.stderr
            assert secret not in metrics


async def test_an_error_does_not_repeat_a_configured_secret(tmp_path: Path) -> None:
    """A malformed hash may be a key in the wrong place, so the error leaves it out."""
    section = f'[[auth.keys]]\nname = "ada"\nhash = "{CANARY_KEY}"\n'
    code, line = await refused(tmp_path, config=section)

    assert 2 == code
    assert "hash" in line
    assert CANARY_KEY not in line


async def test_metrics_need_a_key_beyond_loopback(tmp_path: Path) -> None:
    """A host that merely resolves to loopback, such as 127.1, does not count as loopback."""
    config = key_section("ada", "ada-key")
    async with served(tmp_path, "--http", "127.1:0", config=config, dev=False) as broker:
        await broker.ready()

        assert [401, 200] == [(await broker.get(path))[0] for path in ("/metrics", "/healthz")]


async def test_health_readiness_and_metrics_are_served(tmp_path: Path) -> None:
    """/healthz, /livez and /readyz are open; /metrics counts the publishes."""
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            await peer.publish("t", b"1", b"2", b"3")
            for path in ("/healthz", "/livez", "/readyz"):
                assert 200 == (await broker.get(path))[0]
            status, text = await broker.get("/metrics")

        assert 200 == status
        assert "braidmq_messages_published_total 3.0" in text
        # The metric names of the original, which its dashboards query.
        assert "\ntopics 1.0" in text
        assert "\nmessages_published_total 3.0" in text


# Development mode and keys.


async def test_dev_accepts_its_key_as_well_as_the_configured_ones(tmp_path: Path) -> None:
    """With `--dev`, both dev-key and the configured keys work."""
    async with served(tmp_path, config=key_section("ada", "ada-key")) as broker:
        await broker.ready()
        async with broker.peer("dev-key"), broker.peer("ada-key"):
            pass


async def test_the_dev_key_needs_dev(tmp_path: Path) -> None:
    """Without --dev the broker accepts configured keys only."""
    async with served(tmp_path, config=key_section("ada", "ada-key"), dev=False) as broker:
        await broker.ready()
        async with broker.peer("ada-key") as peer:
            await peer.expect_silence()
        with pytest.raises(AssertionError):
            async with broker.peer("dev-key"):
                pass


# Durability.


@pytest.mark.parametrize("policy", ["always", "none", "every_n:10", "interval_ms:20"])
async def test_a_kill_loses_nothing_under_any_fsync_policy(tmp_path: Path, policy: str) -> None:
    """fsync policies matter for power cuts: confirmed publishes survive kill -9 under each."""
    config = f'[wal]\nfsync = "{policy}"\n'
    async with served(tmp_path, config=config) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", *(b"%d" % number for number in range(25)))
            tag, _ = await peer.take(subscription)
            await peer.acknowledge(subscription, tag)
        broker.process.kill()
        await broker.ended()
        warned = [line for line in broker.stderr.splitlines() if '"level": "warning"' in line]
        assert (policy == "always") == (not warned)
    async with served(tmp_path, config=config) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            for number in range(1, 25):
                assert b"%d" % number == (await peer.take(subscription))[1]
            assert None is await peer.poll(subscription)
        assert 0 == await broker.end()
