"""Confirmation: the name is typed once more, or nothing happens."""

import io

import pytest

from braidmq.cli.confirmation import NotConfirmedError, confirm


def test_with_yes_nothing_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts do not type."""
    confirm("delete queue", "orders", yes=True)

    assert ("", "") == capsys.readouterr()


@pytest.mark.parametrize("typed", ["orders\n", "orders"])
def test_the_name_lets_it_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    """The question is not on stdout, where the answer of the command is."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    confirm("delete queue", "orders", yes=False)
    out, err = capsys.readouterr()

    assert "" == out
    assert err.startswith("delete queue orders: type its name to confirm: ")


@pytest.mark.parametrize(
    "typed", ["", "\n", "y\n", "yes\n", "Orders\n", "orders \n", 99999 * "o"]
)
def test_anything_else_stops_it(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    """So does the end of the input: nobody is there to answer."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    with pytest.raises(
        NotConfirmedError, match="nothing was changed; --yes skips the confirmation"
    ) as e:
        confirm("delete queue", "orders", yes=False)
    assert 2 == e.value.exit_code


def test_a_name_cannot_play_with_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names come from strangers."""
    monkeypatch.setattr("sys.stdin", io.StringIO("a\x1b[2J\n"))
    confirm("purge queue", "a\x1b[2J", yes=False)

    assert "\x1b" not in capsys.readouterr().err
