"""The listener of the Flight endpoint."""

import asyncio
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import structlog
import trustme

from braidmq.base.errors import AddressInUseError, ConfigError
from braidmq.broker.authorize import Principal
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.daemon.daemon import Daemon
from braidmq.server.config.config import Config, FlightConfig, LimitsConfig
from braidmq.server.flight.listener import FlightListener
from braidmq.testing import running_broker
from braidmq.transport.door import Door
from tests.integration.blip.peer import until
from tests.unit.columnar.logs import message, write_log

KEYS = {"key": Principal("anna", publish=[], subscribe=["*"])}


def listener_of(section: FlightConfig, path: Path) -> FlightListener:
    return FlightListener(
        section,
        LimitsConfig(),
        door=Door(connections=10, strangers=10),
        connections_max=10,
        data_dir=path,
        find=KEYS.get,
    )


@contextmanager
def listening(path: Path, **config: object) -> Iterator[FlightListener]:
    listener = listener_of(FlightConfig.model_validate({"port": 0, **config}), path)
    try:
        yield listener
    finally:
        listener.stop_accepting()
        listener.abort_connections()
        asyncio.run(listener.close())


def port_of(listener: FlightListener) -> int:
    return int(listener.address.rpartition(":")[2])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_the_address_is_where_the_endpoint_listens(tmp_path: Path, host: str) -> None:
    """With the port that the system chose, and IPv6 in brackets."""
    with listening(tmp_path, host=host) as listener:
        shown = f"[{host}]" if ":" in host else host

        assert f"{shown}:{port_of(listener)}" == listener.address
        assert port_of(listener) > 0


def test_an_address_in_use_is_reported(tmp_path: Path) -> None:
    """Before the log is recovered."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(AddressInUseError, match="Address already in use"),
    ):
        listener_of(FlightConfig(port=other.getsockname()[1]), tmp_path)


def test_an_unusable_certificate_is_reported(tmp_path: Path) -> None:
    """Before anything listens."""
    path = tmp_path / "rubbish.pem"
    path.write_text("no")
    with pytest.raises(ConfigError, match=r"flight\.tls_cert"):
        listener_of(FlightConfig(port=0, tls_cert=path, tls_key=path), tmp_path)


def test_with_a_certificate_the_address_names_its_scheme(tmp_path: Path) -> None:
    """A client that reads it from a file would assume the other scheme."""
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(tmp_path / "cert.pem", append=number > 0)
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    with listening(tmp_path, **files) as listener:
        assert listener.address.startswith("grpc+tls://127.0.0.1:")


def test_connections_are_refused_until_the_log_is_recovered(tmp_path: Path) -> None:
    """The address is bound from the beginning, so that one in use is found early."""
    with listening(tmp_path) as listener:
        endpoint = Endpoint(f"grpc://{listener.address}", "key")
        with pytest.raises(UnavailableError):
            endpoint.offsets()
        assert 0 == len(listener)


def test_nothing_of_the_inner_socket_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even after a kill: its directory is gone as soon as gRPC listens."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with listening(tmp_path):
        assert [] == list(tmp_path.iterdir())


@pytest.mark.asyncio
async def test_a_stuck_reader_does_not_hold_up_the_shutdown(tmp_path: Path) -> None:
    """Calls end with their connections; their slots are freed, and their threads are gone."""
    size = 15 * 2**20  # more than a connection buffers for a client that does not read
    write_log(tmp_path, [message("t", bytes(size))], segment_bytes=2**26)
    async with running_broker(data_dir=tmp_path, config={"flight": {}}) as broker:
        client = fl.FlightClient(broker.endpoint)
        options = fl.FlightCallOptions(headers=[(b"authorization", b"Bearer dev-key")])
        (listener,) = (one for one in broker.daemon.status.listeners if one.strand == "flight")
        assert isinstance(listener, FlightListener)
        reader = await asyncio.to_thread(client.do_get, fl.Ticket(b"{}"), options)
        workers = listener.calls.workers
        await until(lambda: pa.total_allocated_bytes() >= size and not workers.taken)
        assert 1 == len(listener)

    assert 0 == len(listener)
    with pytest.raises(fl.FlightError):
        reader.read_all()


@pytest.mark.asyncio
@pytest.mark.parametrize("configured", [True, False])
async def test_without_pyarrow_there_is_no_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    """If Flight is configured, the broker refuses to start; if not, it starts and logs why."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in [name for name in sys.modules if name.startswith("braidmq.server.flight")]:
        monkeypatch.delitem(sys.modules, name)
    given = {name: {"port": 0} for name in ("blip", "vibe", "qumbed", "http")}
    if configured:
        given["flight"] = {"port": 0}
    daemon = Daemon(Config.model_validate({"data_dir": tmp_path, "dev": True, **given}))
    problem = "needs pyarrow: make demo, or pip install 'braidmq[columnar]'; or turn it off"
    with structlog.testing.capture_logs() as logs:
        try:
            if configured:
                with pytest.raises(ConfigError) as caught:
                    await daemon.start()
                assert f"flight: {problem}" == str(caught.value)
            else:
                await daemon.start()
                assert None is daemon.addresses["flight"]
                warnings = [one["event"] for one in logs if one["log_level"] == "warning"]
                assert [f"flight is off: it {problem}"] == warnings
        finally:
            await daemon.stop()
