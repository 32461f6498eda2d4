"""The package itself: what `import braidmq` gives, and when it is loaded."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import braidmq
import braidmq.client
import braidmq.sync


def test_the_client_library_is_at_hand() -> None:
    """Every public name leads to what it names."""
    assert braidmq.client.connect is braidmq.connect
    assert [] == [name for name in braidmq.__all__ if not hasattr(braidmq, name)]
    assert version("braidmq") == braidmq.__version__
    assert set(braidmq.__all__) <= set(dir(braidmq))
    assert {*braidmq.client.__all__, "BraidError", "sync"} == set(braidmq.__all__)


def test_other_names_are_an_error() -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = braidmq.conect  # type: ignore[attr-defined] # that is the point


def test_what_is_not_used_is_not_loaded() -> None:
    """Every worker of Spark imports the package, and none of them needs the client."""
    found = "import braidmq, sys; print('braidmq.client' in sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", found], text=True)

    assert "False\n" == said
