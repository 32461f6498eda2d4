"""A strand's address, found by that of the broker's HTTP side."""

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


class Told(World):
    """A broker that says what it listens on."""

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


# What the broker says, which strand is asked for, and what comes of it.
FOUND = {
    "blip": (Told({"blip": "127.0.0.1:77"}), "blip", "blip://{}@127.0.0.1:77"),
    "all addresses": (Told({"blip": "0.0.0.0:77"}), "blip", "blip://{}@127.0.0.1:77"),
    "of the other version": (Told({"blip": "[::]:77"}), "blip", "blip://{}@127.0.0.1:77"),
    "another strand": (Told({"vibe": "127.0.0.1:78"}), "vibe", "vibe://{}@127.0.0.1:78"),
    "TLS": (Told({"blip": "127.0.0.1:77"}, "blip"), "blip", "blips://{}@127.0.0.1:77"),
    "QUIC": (
        Told({"qumbed": "127.0.0.1:79"}, "qumbed"),
        "qumbed",
        "qumbed://{}@127.0.0.1:79",
    ),
    "nothing": (Told({}), "blip", "blip://{}@127.0.0.1:5555"),
}


@pytest.mark.parametrize(("told", "strand", "expected"), FOUND.values(), ids=FOUND.keys())
def test_the_broker_says_where_a_strand_is(told: Told, strand: str, expected: str) -> None:
    """Its port, and whether it has TLS; host and key are those of the URL."""
    with serving(told) as port:
        assert expected.format(ADMIN_KEY) == strand_address(url(port), strand)


def test_a_strands_own_address_stays_as_it_is() -> None:
    """Nobody is asked about it; whoever cannot use it says so."""
    for address in ("blip://k@h:1", "vibes://k@h", "qumbed://k@h?fingerprint=x", "nonsense"):
        assert not is_http(address)
        assert address == strand_address(address)


def test_the_usual_ports_are_those_of_the_client() -> None:
    """They are not imported: the client library is not needed to print --help."""
    with serving(Told({})) as here:
        found = {name: strand_address(url(here), name) for name in DEFAULT_PORTS}

    assert DEFAULT_PORTS == {name: parse(address).port for name, address in found.items()}


def test_a_key_is_quoted_again() -> None:
    """Whatever it holds, it is the same key to the strand."""
    odd = {**KEYS[0], "hash": hash_key("a/b@c:d")}
    with serving(Told({"blip": "127.0.0.1:77"}, auth={"keys": [odd]})) as port:
        found = strand_address(f"http://a%2Fb%40c%3Ad@127.0.0.1:{port}")

    assert "a/b@c:d" == parse(found).key


@pytest.mark.parametrize("command", [["publish", "a", "1"], ["subscribe", "a"], ["bench"]])
def test_a_strand_that_is_off_is_told(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one line: this address does not do for this command."""
    with serving(Told({"blip": None})) as port:
        assert 2 == main([*command, "--url", url(port)])

    told = "error: --url: blip is off at that broker; give the address of a strand that is on\n"
    assert told == capsys.readouterr().err


def test_https_does_not_lead_to_a_strand_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key would go in the clear, which nobody has asked for; one with TLS is found."""
    authority = trustme.CA()
    both, trusted = tmp_path / "both.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    authority.cert_pem.write_to_path(trusted)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    address = f"https://{ADMIN_KEY}@127.0.0.1:"
    with serving(Told({"blip": "127.0.0.1:77"}), both) as port:
        told = "blip has no TLS there; to connect without it, use blip://KEY@127.0.0.1:77"
        with pytest.raises(ConfigError, match=told):
            strand_address(f"{address}{port}")
    with serving(Told({"blip": "127.0.0.1:77"}, "blip"), both) as port:
        assert f"blips://{ADMIN_KEY}@127.0.0.1:77" == strand_address(f"{address}{port}")


def test_a_broker_that_is_not_there_is_told() -> None:
    """As by the commands that ask over HTTP."""
    with pytest.raises(HttpError, match=r"^cannot reach HTTP on 127\.0\.0\.1:1: "):
        strand_address("http://k@127.0.0.1:1")
