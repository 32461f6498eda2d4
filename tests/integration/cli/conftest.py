"""For all tests of commands: the contexts of whoever runs them stay out."""

import pytest


@pytest.fixture(autouse=True)
def _no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    for name in ("BRAIDMQ_URL", "BRAIDMQ_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
