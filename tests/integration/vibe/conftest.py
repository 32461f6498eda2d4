"""Fixtures of the Vibe strand's tests."""

import pytest

from tests.integration.vibe.peer import V1_0, V1_1


@pytest.fixture(params=[V1_0, V1_1])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)
