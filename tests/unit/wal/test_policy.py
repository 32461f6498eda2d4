"""The fsync policies."""

import pytest

from braidmq.base.errors import ConfigError
from braidmq.wal.policy import FsyncPolicy

POLICIES = {
    "always": (FsyncPolicy(1, 0), True, "nothing"),
    "every_n:1": (FsyncPolicy(1, 0), True, "nothing"),
    "every_n:64": (FsyncPolicy(64, 0), False, "up to 63 acknowledged"),
    "interval_ms:5": (FsyncPolicy(0, 5), False, "last 5 ms"),
    "none": (FsyncPolicy(0, 0), False, "everything"),
}


@pytest.mark.parametrize("text", POLICIES)
def test_each_policy_says_what_it_can_lose(text: str) -> None:
    """A policy is parsed from its text and tells what a power cut can take."""
    expected, strict, loss = POLICIES[text]
    policy = FsyncPolicy.parse(text)

    assert expected == policy
    assert strict == policy.is_strict
    assert loss in policy.can_lose


MISSPELT = (
    "Always every_n every_n: every_n:0 every_n:-1 every_n:x none:1 "
    "interval_ms:0 interval_ms:1.5 always:1 every_n:1:2"
)


@pytest.mark.parametrize("text", ["", *MISSPELT.split()])
def test_anything_else_is_refused(text: str) -> None:
    """A policy that is misspelt is an error, never a default."""
    with pytest.raises(ConfigError, match=r"wal\.fsync"):
        FsyncPolicy.parse(text)


def test_a_commit_syncs_when_enough_is_unsynced() -> None:
    """`always` syncs for one record, `every_n` for N, the others never; nothing needs none."""
    answers = {
        text: [POLICIES[text][0].wants_sync(unsynced) for unsynced in (0, 1, 63, 64, 65)]
        for text in POLICIES
    }

    assert [False, True, True, True, True] == answers["always"]
    assert [False, False, False, True, True] == answers["every_n:64"]
    assert [False] * 5 == answers["interval_ms:5"] == answers["none"]
