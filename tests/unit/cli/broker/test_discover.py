"""`braidmq discover`: what it refuses, and what it prints when no relay answers."""

import secrets
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from braidmq.cli.main import main
from braidmq.server.strands.qumbed import mdns


@pytest.fixture(autouse=True)
def own_type(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A service type that nothing else on this machine announces or looks for."""
    monkeypatch.setattr(mdns, "SERVICE_TYPE", f"_q{secrets.token_hex(5)}._udp.local.")
    with capture_logs():  # the announcer's lines are not the command's
        yield


@pytest.mark.parametrize(
    ("options", "printed"), [([], "node\taddress\tpublic_key\ttopics\n"), (["--json"], "[]\n")]
)
def test_a_hint_says_what_to_do_when_no_relay_is_heard(
    capsys: pytest.CaptureFixture[str], options: list[str], printed: str
) -> None:
    """On stderr: a script that reads the output gets an empty list, which is no error."""
    assert 0 == main(["discover", "--timeout", "0.2", *options])
    hint = "no relay heard within 0.2 s; `braidmq serve --mdns` announces one\n"
    assert (printed, hint) == capsys.readouterr()


@pytest.mark.parametrize("options", ["--timeout 0", "--timeout soon", "--count 0"])
def test_invalid_options_are_refused(capsys: pytest.CaptureFixture[str], options: str) -> None:
    """In one line that names the option."""
    assert 2 == main(["discover", *options.split()])
    captured = capsys.readouterr()
    assert "" == captured.out
    assert 1 == captured.err.count("\n")
    assert options.split(maxsplit=1)[0] in captured.err
