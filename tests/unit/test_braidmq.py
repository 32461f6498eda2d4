"""The package itself: its public names, and what importing it loads."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import braidmq
import braidmq.client
import braidmq.sync


def test_the_package_exports_the_client_library() -> None:
    """Every public name exists, and none is missing."""
    assert braidmq.client.connect is braidmq.connect
    assert [] == [name for name in braidmq.__all__ if not hasattr(braidmq, name)]
    assert version("braidmq") == braidmq.__version__
    assert set(braidmq.__all__) <= set(dir(braidmq))
    assert {*braidmq.client.__all__, "BraidError", "sync"} == set(braidmq.__all__)


def test_an_unknown_name_is_an_error() -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = braidmq.conect  # type: ignore[attr-defined] # the mistake under test


def test_the_client_is_not_loaded_before_it_is_used() -> None:
    """Every Spark worker imports the package, and none of them needs the client."""
    code = "import braidmq, sys; print('braidmq.client' in sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", code], text=True)

    assert "False\n" == output
