"""The Flight listener: TLS, malformed input, its address, and how to turn it off."""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import trustme

from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.columnar.flight.requests import SinkKey
from braidmq.columnar.logs import DirectoryLog
from tests.integration.flights import (
    FLIGHT,
    SCHEMA,
    assert_clean,
    in_thread,
    rows,
    serving,
)
from tests.integration.served import Served, refused, served
from tests.unit.columnar.endpoints import read
from tests.unit.columnar.logs import message, write_log

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

ROOT: Final = Path(__file__).resolve().parents[2]


def certificate(directory: Path) -> tuple[str, bytes]:
    """Return a config section with a certificate for 127.0.0.1, and its root certificate."""
    directory.mkdir(exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(directory / "cert.pem", append=number > 0)
    files = f'tls_cert = "{directory}/cert.pem"\ntls_key = "{directory}/key.pem"\n'
    return f"[flight]\n{files}", authority.cert_pem.bytes()


async def test_only_clients_that_trust_the_certificate_can_connect(tmp_path: Path) -> None:
    """The ready file says that the address uses TLS; other clients cannot connect."""
    section, root = certificate(tmp_path)
    path = tmp_path / "data"
    path.mkdir()
    write_log(path, [message("t", b"x")] * 30)
    async with serving(tmp_path, config=section) as broker:
        address = broker.facts()["flight"]
        assert address.startswith("grpc+tls://127.0.0.1:")
        friend = Endpoint(address, "dev-key", roots=root)

        assert read(DirectoryLog(path)) == await in_thread(read, friend)
        stage = await in_thread(friend.stage, "t", SCHEMA, rows("x"))
        assert 1 == (await in_thread(friend.commit, SinkKey("q", "", 0), [stage.id])).messages
        stranger = Endpoint(address, "dev-key", roots=trustme.CA().cert_pem.bytes())
        with pytest.raises(UnavailableError):
            await in_thread(stranger.offsets)
        with pytest.raises(UnavailableError):
            await in_thread(Endpoint(address.replace("+tls", ""), "dev-key").offsets)
        assert 0 == await broker.end()
        assert_clean(broker)


READ: Final = """
import sys
from tests.unit.spark.sources import read_batch
for row in read_batch(None, endpoint=sys.argv[1], apiKey="dev-key"):
    print(row["offset"], row["topic"], row["value"].decode())
"""


async def test_the_spark_source_trusts_the_roots_that_the_environment_names(
    tmp_path: Path,
) -> None:
    """In its own process, like a driver or an executor; without the variable it fails."""
    section, root = certificate(tmp_path)
    (tmp_path / "root.pem").write_bytes(root)
    write_log(tmp_path / "data", [message("t", b"x%d" % number) for number in range(1, 31)])
    async with serving(tmp_path, config=section) as broker:
        address = broker.facts()["flight"]
        run = await in_thread(
            subprocess.run,
            [sys.executable, "-c", READ, address],
            env={**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "root.pem")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

        assert (0, "") == (run.returncode, run.stderr)
        assert [f"{n} t x{n}" for n in range(1, 31)] == run.stdout.splitlines()
        with pytest.raises(UnavailableError):
            await in_thread(Endpoint(address, "dev-key").offsets)


GARBAGE: Final = (
    b"",
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    bytes(100_000),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
)


@pytest.mark.parametrize("tls", [False, True])
async def test_garbage_on_the_socket_does_no_harm(tmp_path: Path, tls: bool) -> None:
    """The broker answers the next call, and writes nothing but ordinary log lines."""
    section, root = certificate(tmp_path)
    async with serving(tmp_path, config=section if tls else "") as broker:
        address = broker.facts()["flight"]
        host, _, port = address.rpartition("//")[2].rpartition(":")
        for data in GARBAGE:
            with socket.create_connection((host, int(port))) as peer:
                with suppress(OSError):  # it may have hung up already
                    peer.sendall(data)
                    peer.shutdown(socket.SHUT_WR)
                while await in_thread(_received, peer):
                    pass
        friend = Endpoint(address if tls else f"grpc://{address}", "dev-key", roots=root)

        assert (1, 1) == await in_thread(friend.offsets)
        assert 0 == await broker.end()
        assert_clean(broker)


def _received(peer: socket.socket) -> bytes:
    try:
        return peer.recv(65536)
    except ConnectionResetError:
        return b""


async def test_the_address_is_in_the_ready_file_and_in_the_data_directory(
    tmp_path: Path,
) -> None:
    """A client finds the broker by its directory; a second broker cannot take the address."""
    async with serving(tmp_path) as broker:
        address = broker.facts()["flight"]
        found = json.loads((tmp_path / "data" / "run.json").read_text())
        assert address == found["flight"]
        code, line = await refused(tmp_path / "other", "--flight", address)

        assert 69 == code
        error = f"error: flight: cannot listen on {address}: Address already in use; "
        assert error + "choose another with --flight HOST:PORT, or pass --flight off" == line


async def test_flight_without_pyarrow_is_refused(tmp_path: Path) -> None:
    """The broker exits with 2 and one line that says how to fix it."""
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError(name='pyarrow')")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    code, line = await refused(tmp_path / "b", *FLIGHT, environment={"PYTHONPATH": path})

    assert 2 == code
    how = "make demo, or pip install 'braidmq[columnar]'"
    assert f"error: flight: needs pyarrow: {how}; or turn it off" == line


def has_loaded(broker: Served, library: str) -> bool:
    return library in Path(f"/proc/{broker.process.pid}/maps").read_text()


async def test_flight_that_is_off_costs_nothing(tmp_path: Path) -> None:
    """The broker imports none of it, which saves start-up time and memory."""
    async with served(tmp_path) as broker:
        await broker.ready()

        assert not has_loaded(broker, "libarrow")
        assert None is broker.facts()["flight"]
