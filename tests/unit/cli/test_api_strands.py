"""A strand's address, found through the broker's HTTP API."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from braidmq.base.errors import ConfigError
from braidmq.cli.api import HttpError, is_http, strand_address
from braidmq.cli.main import main
from braidmq.client.url import DEFAULT_PORTS, parse
from braidmq.server.access.keys import hash_key
from tests.unit.admin.world import ADMIN_KEY, KEYS, World
from tests.unit.cli.serving import serving, url


class Listening(World):
    """A broker that reports these listeners."""

    def __init__(
        self,
        listeners: dict[str, str | None],
        *tls: str,
        **config: Any,  # noqa: ANN401 - as World's
    ) -> None:
        super().__init__(recovered=False, **config)
        facts = msgspec.structs.replace(
            self.status.overview(), listeners=listeners, tls=list(tls)
        )
        self.status.overview = lambda: facts  # type: ignore[method-assign]  # see above


# What the broker reports, the strand that is wanted, and the address that is found.
FOUND = {
    "blip": (Listening({"blip": "127.0.0.1:77"}), "blip", "blip://{}@127.0.0.1:77"),
    "all addresses": (Listening({"blip": "0.0.0.0:77"}), "blip", "blip://{}@127.0.0.1:77"),
    "all addresses of IPv6": (Listening({"blip": "[::]:77"}), "blip", "blip://{}@127.0.0.1:77"),
    "another strand": (Listening({"vibe": "127.0.0.1:78"}), "vibe", "vibe://{}@127.0.0.1:78"),
    "TLS": (Listening({"blip": "127.0.0.1:77"}, "blip"), "blip", "blips://{}@127.0.0.1:77"),
    "QUIC": (
        Listening({"qumbed": "127.0.0.1:79"}, "qumbed"),
        "qumbed",
        "qumbed://{}@127.0.0.1:79",
    ),
    "nothing": (Listening({}), "blip", "blip://{}@127.0.0.1:5555"),
}


@pytest.mark.parametrize(("broker", "strand", "expected"), FOUND.values(), ids=FOUND.keys())
def test_the_broker_reports_where_a_strand_is(
    broker: Listening, strand: str, expected: str
) -> None:
    """Its port, and whether it has TLS; host and key are those of the URL."""
    with serving(broker) as port:
        assert expected.format(ADMIN_KEY) == strand_address(url(port), strand)


def test_a_strands_own_address_is_kept() -> None:
    """No broker is asked; a client that cannot use the address says so later."""
    for address in ("blip://k@h:1", "vibes://k@h", "qumbed://k@h?fingerprint=x", "nonsense"):
        assert not is_http(address)
        assert address == strand_address(address)


def test_the_default_ports_are_those_of_the_client() -> None:
    """They are not imported: the client library is not needed to print --help."""
    with serving(Listening({})) as here:
        found = {name: strand_address(url(here), name) for name in DEFAULT_PORTS}

    assert DEFAULT_PORTS == {name: parse(address).port for name, address in found.items()}


def test_a_key_is_quoted_again() -> None:
    """Whatever it holds, it is the same key to the strand."""
    odd = {**KEYS[0], "hash": hash_key("a/b@c:d")}
    with serving(Listening({"blip": "127.0.0.1:77"}, auth={"keys": [odd]})) as port:
        found = strand_address(f"http://a%2Fb%40c%3Ad@127.0.0.1:{port}")

    assert "a/b@c:d" == parse(found).key


@pytest.mark.parametrize("command", [["publish", "a", "1"], ["subscribe", "a"], ["bench"]])
def test_a_strand_that_is_off_is_reported(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one line: this command cannot use the address."""
    with serving(Listening({"blip": None})) as port:
        assert 2 == main([*command, "--url", url(port)])

    problem = (
        "error: --url: blip is off at that broker; give the address of a strand that is on\n"
    )
    assert problem == capsys.readouterr().err


def test_https_does_not_lead_to_a_strand_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key would be sent in the clear; a strand with TLS is found."""
    authority = trustme.CA()
    both, trusted = tmp_path / "both.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    authority.cert_pem.write_to_path(trusted)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    address = f"https://{ADMIN_KEY}@127.0.0.1:"
    with serving(Listening({"blip": "127.0.0.1:77"}), both) as port:
        problem = "blip has no TLS there; to connect without it, use blip://KEY@127.0.0.1:77"
        with pytest.raises(ConfigError, match=problem):
            strand_address(f"{address}{port}")
    with serving(Listening({"blip": "127.0.0.1:77"}, "blip"), both) as port:
        assert f"blips://{ADMIN_KEY}@127.0.0.1:77" == strand_address(f"{address}{port}")


def test_a_broker_that_does_not_listen_is_reported() -> None:
    """As by the commands that use HTTP."""
    with pytest.raises(HttpError, match=r"^cannot reach HTTP on 127\.0\.0\.1:1: "):
        strand_address("http://k@127.0.0.1:1")
