"""`braidmq dlq` on a terminal."""

from braidmq.cli.data import dead_letters
from tests.integration.cli.terminals import on_terminal
from tests.unit.admin.world import KEYS, ROOT_CONFIG, ROOT_KEY, World
from tests.unit.cli.serving import serving, url


def test_a_replay_shows_its_progress() -> None:
    """The bar disappears once the result is printed."""
    world = World(auth={"keys": [*KEYS, ROOT_CONFIG]})
    world.bury("a", *(2 * dead_letters.LETTERS_AT_ONCE - 1) * [b"x"])
    with serving(world) as port:
        code, written = on_terminal(["dlq", "replay", "dlq.a", "--url", url(port, ROOT_KEY)])

    assert (0, True) == (code, "\u2501" in written)
    assert "\u2501" not in written.rstrip().splitlines()[-1]
    assert f"{2 * dead_letters.LETTERS_AT_ONCE - 1:,}" in written
