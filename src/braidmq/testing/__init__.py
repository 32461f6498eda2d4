"""Fakes that we ship: the clock, the disk, the ledger, the simulation and the real broker.

:func:`running_broker` is what most tests want: the real broker, in the test's own process.
"""

from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.testing.clock import FakeClock
from braidmq.testing.disk import FakeDisk

__all__ = ["FakeClock", "FakeDisk", "RunningBroker", "running_broker"]
