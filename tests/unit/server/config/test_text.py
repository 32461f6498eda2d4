"""The effective settings as text."""

import tomllib
from pathlib import Path

import pytest

from braidmq.broker.quotas import DEFAULTS
from braidmq.server.config.config import MASK, AuthConfig, Config, KeyConfig, WalConfig
from braidmq.server.config.loading import load
from braidmq.server.config.text import loss_note, to_text

HASH = "sha256:" + 64 * "a"


def test_the_text_reads_back_as_the_same_configuration(tmp_path: Path) -> None:
    """`config show` prints a usable file, apart from the hashes."""
    odd = 'q"u\\o\te\x7f-ü'
    environ = {"BRAIDMQ_BLIP__WINDOW": "7", "BRAIDMQ_DATA_DIR": odd}
    config = load(None, environ, {"vibe": "[::1]:3", "http": "off"}, keys_needed=False)
    path = tmp_path / "shown.toml"
    path.write_text(to_text(config), "utf-8")

    assert config == load(path, {}, {}, keys_needed=False)


def test_hashes_are_masked_and_permissions_shown() -> None:
    """The permissions of a key are no secret, but its hash is."""
    key = KeyConfig(name="billing", hash=HASH, publish=["orders.*"], admin=True)
    text = to_text(Config(auth=AuthConfig(keys=[key])))

    assert HASH not in text
    assert [
        {
            "name": "billing",
            "hash": "sha256:********",
            "publish": ["orders.*"],
            "subscribe": [],
            "admin": True,
        }
    ] == tomllib.loads(text)["auth"]["keys"]


def test_quotas_of_a_key_are_shown_and_read_back(tmp_path: Path) -> None:
    """Only what differs is in its block; the rest is in [quotas]."""
    path = tmp_path / "some.toml"
    path.write_text(
        f"[quotas]\ncursors = 0\n[[auth.keys]]\nname = 'a'\nhash = '{HASH}'\n"
        "quotas = { topics = 5 }\n",
        "utf-8",
    )
    text = to_text(load(path, {}, {}))
    shown = tomllib.loads(text)

    assert {"topics": 5} == shown["auth"]["keys"][0]["quotas"]
    assert {**DEFAULTS, "cursors": 0} == shown["quotas"]
    path.write_text(text.replace(f"sha256:{MASK}", HASH), "utf-8")
    assert text == to_text(load(path, {}, {}))


LOSSES = {
    "every_n:5": "up to 4 acknowledged records",
    "interval_ms:40": "what was acknowledged in the last 40 ms, and more if the disk lags",
    "none": "everything acknowledged since the last snapshot",
}


@pytest.mark.parametrize(("policy", "loss"), LOSSES.items())
def test_a_note_says_what_an_fsync_policy_can_lose(policy: str, loss: str) -> None:
    """It is a comment in the [wal] section, right above the policy."""
    text = to_text(Config(wal=WalConfig(fsync=policy)))

    assert f'# fsync is {policy}: a power cut can lose {loss}\nfsync = "{policy}"\n' in text


def test_the_default_policy_loses_nothing_and_needs_no_note() -> None:
    """A warning that is always there goes unread."""
    assert loss_note("always") is None
    assert "lose" not in to_text(Config())


def test_development_mode_is_shown_as_a_comment() -> None:
    """It is not a key of the file, so that it cannot be left in one."""
    assert "# --dev: " in to_text(Config(dev=True))
    assert "dev" not in tomllib.loads(to_text(Config(dev=True)))
