"""Shared by the delivery tests."""

import pytest

from tests.unit.broker.drive import Drive


@pytest.fixture
def drive() -> Drive:
    return Drive()
