"""One address serves every command: HTTP is found from a strand's, and strands from any."""

import json
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.cli import contexts
from braidmq.cli.api import Api, api_at, strand_address
from braidmq.cli.main import main
from tests.unit.admin.world import ADMIN_KEY
from tests.unit.cli.serving import serving, url
from tests.unit.cli.test_api_strands import Listening

FACTS = {"blip": "127.0.0.1:6001", "vibe": None, "qumbed": None, "http": "127.0.0.1:6002"}


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a broker in this directory says where it listens; contexts are kept beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "run.json").write_text(json.dumps(FACTS), "utf-8")
    return tmp_path / "data" / "run.json"


@pytest.mark.usefixtures("run_file")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_broker_of_this_directory_says_where_its_http_is(host: str) -> None:
    """In run.json; the host is that of the address."""
    found = api_at(f"blip://k@{host}:6001")

    assert Api(host.strip("[]"), 6002, "k", tls=False) == found


def test_the_data_directory_may_be_elsewhere(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """BRAIDMQ_DATA_DIR names it, as it does for the broker."""
    run_file.parent.rename(tmp_path / "log")
    assert 9100 == api_at("blip://k@127.0.0.1:6001").port
    monkeypatch.setenv("BRAIDMQ_DATA_DIR", str(tmp_path / "log"))

    assert 6002 == api_at("blip://k@127.0.0.1:6001").port


@pytest.mark.parametrize(
    ("address", "facts", "tried"),
    [
        ("blip://k@127.0.0.1:7", FACTS, "data/run.json (of another broker)"),
        ("vibe://k@127.0.0.1:7", FACTS, "data/run.json (of another broker)"),
        (
            "blip://k@127.0.0.1:6001",
            FACTS | {"http": None},
            "data/run.json (HTTP is off there)",
        ),
        ("blip://k@127.0.0.1:6001", [], "data/run.json (not readable)"),
    ],
)
def test_other_facts_lead_to_the_default_port(
    address: str, facts: object, tried: str, run_file: Path
) -> None:
    """The error of a command that finds no broker there says what was tried."""
    run_file.write_text(json.dumps(facts), "utf-8")
    found = api_at(address)

    assert Api("127.0.0.1", 9100, "k", tls=False, is_guessed=True) == found
    assert f"{tried} and the default port" == found.tried


@pytest.mark.usefixtures("run_file")
def test_a_broker_elsewhere_is_not_looked_up_here() -> None:
    """The file is about this machine."""
    found = api_at("blip://k@example.org:6001")

    assert Api("example.org", 9100, "k", tls=False, is_guessed=True) == found
    assert "" == found.tried


@pytest.mark.usefixtures("run_file")
def test_a_context_may_have_an_http_address() -> None:
    """It wins; the key is that of the strand's address, unless it has one of its own."""
    contexts.add("a", {"url": "blip://k@127.0.0.1:6001", "http": "https://h"})
    contexts.add("b", {"url": "blip://k@127.0.0.1:6001", "http": "http://other@h:3"})
    contexts.use("a")
    assert Api("h", 9100, "k", tls=True) == api_at(None)
    contexts.use("b")

    assert Api("h", 3, "other", tls=False) == api_at(None)


@pytest.mark.usefixtures("run_file")
def test_an_invalid_address_in_a_context_is_reported_with_its_name() -> None:
    """Not as if --url had been wrong."""
    contexts.add("a", {"url": "nonsense"})
    contexts.use("a")
    with pytest.raises(ConfigError, match="context a: must be http://KEY@HOST:PORT"):
        api_at(None)


def test_any_strand_is_found_from_any_address(run_file: Path) -> None:
    """Over HTTP, which is found first; a strand's own address is kept."""
    with serving(Listening({"vibe": "127.0.0.1:78"})) as port:
        run_file.write_text(json.dumps(FACTS | {"http": f"127.0.0.1:{port}"}), "utf-8")
        blip = f"blip://{ADMIN_KEY}@127.0.0.1:6001"

        assert f"vibe://{ADMIN_KEY}@127.0.0.1:78" == strand_address(blip, "vibe")
        elsewhere = f"blip://{ADMIN_KEY}@127.0.0.1:1"
        found = strand_address(elsewhere, "vibe", f"http://127.0.0.1:{port}")
        assert f"vibe://{ADMIN_KEY}@127.0.0.1:78" == found
        assert (blip, blip) == (strand_address(blip), strand_address(blip, "blip"))


@pytest.mark.usefixtures("run_file")
def test_commands_follow_the_context(
    port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one in use, until the environment or --url names another broker."""
    contexts.add("here", {"url": url(port)})
    contexts.add("nowhere", {"url": f"http://{ADMIN_KEY}@127.0.0.1:1"})
    contexts.use("here")
    assert 0 == main(["queue", "create", "a"])
    monkeypatch.setenv("BRAIDMQ_CONTEXT", "nowhere")
    assert 1 == main(["queue", "list"])
    assert 0 == main(["queue", "list", "--url", url(port), "--json"])
    monkeypatch.setenv("BRAIDMQ_CONTEXT", "unknown")
    assert 2 == main(["publish", "t", "x"])
    out, err = capsys.readouterr()

    assert '"name": "a"' in out
    refused, unknown = err.splitlines()
    assert refused.startswith("error: cannot reach HTTP on 127.0.0.1:1")
    assert unknown.startswith("error: BRAIDMQ_CONTEXT: there is no context unknown")
