"""What tests of commands that ask a broker share: one that is made up, on a real socket."""

from collections.abc import Iterator

import pytest

from tests.unit.admin.sources import FakeSource
from tests.unit.cli.serving import serving


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def port(source: FakeSource) -> Iterator[int]:
    with serving(source) as port:
        yield port
