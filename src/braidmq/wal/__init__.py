"""The write-ahead log: an append-only log of opaque records that survives a power cut.

It knows nothing of messages but what the injected `describe` says, and it never reads a clock.
"""

from braidmq.base.records import Description
from braidmq.wal.disk import Disk
from braidmq.wal.files import File, Files
from braidmq.wal.format import Describe
from braidmq.wal.opening import Recovered
from braidmq.wal.policy import FsyncPolicy
from braidmq.wal.reading import ReadBack
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.stats import WalStats
from braidmq.wal.wal import Wal, WalOptions

__all__ = [
    "Describe",
    "Description",
    "Disk",
    "File",
    "Files",
    "FsyncPolicy",
    "ReadBack",
    "Recovered",
    "SegmentInfo",
    "Wal",
    "WalOptions",
    "WalStats",
]
