"""`braidmq dlq` on a terminal."""

from braidmq.cli.data import dead_letters
from tests.integration.cli.terminals import on_terminal
from tests.unit.admin.sources import FakeSource
from tests.unit.cli.serving import serving, url


def test_a_person_sees_how_far_a_replay_is() -> None:
    """A bar, which is gone when the answer comes."""
    source = FakeSource()
    for offset in range(1, 2 * dead_letters.LETTERS_AT_ONCE):
        source.letters.add("dlq.a", offset)
    with serving(source) as port:
        code, written = on_terminal(["dlq", "replay", "dlq.a", "--url", url(port)])

    assert (0, True) == (code, "\u2501" in written)
    assert "\u2501" not in written.rstrip().splitlines()[-1]
    assert 2 == len(source.letters.replays)
