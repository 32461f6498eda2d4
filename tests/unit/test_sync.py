"""The blocking facade as `braidmq.sync`."""

import braidmq.sync
from braidmq.client import sync


def test_the_facade_is_a_module_of_the_package() -> None:
    """`import braidmq` is enough, and `import braidmq.sync` works too."""
    assert sync.connect is braidmq.sync.connect
    assert all(
        getattr(sync, name) is getattr(braidmq.sync, name) for name in braidmq.sync.__all__
    )
