"""YAML: one value for each key, and errors without the text, which may hold a secret."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.server.config.yaml_text import parse


def test_a_document_is_parsed() -> None:
    """Into dicts, lists and plain values."""
    assert {"blip": {"port": 1}} == parse(Path("a.yaml"), "blip: {port: 1}")


@pytest.mark.parametrize("text", ["a: 1\na: s3cret", "a: [s3cret"])
def test_a_bad_document_is_not_quoted(text: str) -> None:
    """The error names the file and a line."""
    with pytest.raises(ConfigError, match=r"a\.yaml is not valid YAML") as caught:
        parse(Path("a.yaml"), text)

    assert "s3cret" not in str(caught.value)
