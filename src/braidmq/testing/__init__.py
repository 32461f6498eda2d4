"""Support for tests: a real broker in process, a fake clock and disk, a simulation.

Most tests want :func:`running_broker`: the real broker, in the test's own process.
Needs the extra `server`.
"""

from braidmq.base.extras import needing

with needing("server", "braidmq.testing"):
    from braidmq.testing.broker import RunningBroker, running_broker
    from braidmq.testing.clock import FakeClock
    from braidmq.testing.disk import FakeDisk

__all__ = ["FakeClock", "FakeDisk", "RunningBroker", "running_broker"]
