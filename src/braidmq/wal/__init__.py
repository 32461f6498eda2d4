"""The write-ahead log: an append-only log of opaque records that survives a power cut.

All it knows about messages is what the injected `describe` tells it. It never reads a clock.
"""

from braidmq.base.records import Description
from braidmq.wal.disk import Disk, File, Files
from braidmq.wal.format import Describe
from braidmq.wal.opening import Recovered
from braidmq.wal.options import FsyncPolicy, WalOptions
from braidmq.wal.reading import ReadBack
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.wal import Wal, WalStats

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
