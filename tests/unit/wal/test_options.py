"""The log's own settings."""

import pytest

from braidmq.base.errors import ConfigError
from braidmq.wal.options import WalOptions


def test_wrong_options_are_refused() -> None:
    """Sizes out of bounds, negative limits and unknown policies are ConfigErrors."""
    for wrong in (
        {"segment_bytes": 4095},
        {"segment_bytes": 2**31},
        {"retention_hours": -1.0},
        {"retention_bytes": -1},
        {"fsync": "sometimes"},
    ):
        with pytest.raises(ConfigError):
            WalOptions(**wrong)
