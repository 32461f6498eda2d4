"""`braidmq top`: what it refuses, and the order of its rows."""

from braidmq.cli.data.top import _rates


def test_the_busiest_come_first() -> None:
    """By messages a second; at the first look, when none is known, by all of them."""
    now = {"a": 10, "b": 300, "new": 5}

    assert ["b", "a", "new"] == [name for name, _, _ in _rates({}, now, 1.0)]
    assert [("a", 4.0, 10), ("new", 0.5, 5), ("b", 0.0, 300)] == _rates(
        {"a": 2, "b": 300}, now, 2.0
    )
