"""The counters of a log."""

from braidmq.wal.stats import FSYNCS_KEPT, WalStats


def test_an_fsync_is_counted_in_every_statistic() -> None:
    """The last duration, the total, the histogram, and the recent durations."""
    stats = WalStats()
    for seconds in (0.001, 0.3):
        stats.count_fsync(seconds)

    assert (2, 0.3, 0.301) == (
        stats.fsyncs,
        stats.fsync_seconds_last,
        round(stats.fsync_seconds_total, 6),
    )
    assert [0.001, 0.3] == list(stats.fsync_seconds_lately)
    assert 2 == sum(stats.fsync_seconds.counts)


def test_recent_fsync_durations_are_bounded() -> None:
    """Only the latest are kept, even if they are never read."""
    stats = WalStats()
    for number in range(FSYNCS_KEPT + 5):
        stats.count_fsync(float(number))

    assert (FSYNCS_KEPT, 5.0) == (
        len(stats.fsync_seconds_lately),
        stats.fsync_seconds_lately[0],
    )
