"""The pace of mDNS in tests whose services are strangers to every other program."""

import pytest


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let probes and announcements follow each other in milliseconds, instead of two seconds.

    The pauses are for networks on which others may have the same name, and lose packets.
    """
    monkeypatch.setattr("zeroconf._core._PROBE_RANDOM_DELAY_INTERVAL", (1, 5))
    for pause in ("_CHECK_TIME", "_REGISTER_TIME", "_UNREGISTER_TIME"):
        monkeypatch.setattr(f"zeroconf._core.{pause}", 20)
