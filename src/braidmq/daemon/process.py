"""The broker as a process: settings of the interpreter, signals, and the exit code.

The first SIGTERM or SIGINT stops the broker in order. A second one ends the process at once;
that loses nothing that was acknowledged, because the next start recovers from the log.
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Final

import structlog
import uvloop

from braidmq.base.build import is_compiled
from braidmq.base.errors import ConfigError
from braidmq.daemon.daemon import Daemon, write_atomically
from braidmq.server.config.config import Config
from braidmq.server.config.text import loss_note
from braidmq.wal.opening import Watch, unwatched

_GIL_SWITCH_S: Final = 0.001
"""The log's writer needs the interpreter a few times per commit. With the default of 5 ms each
time it would wait longer for the interpreter than for the disk."""

_GC_THRESHOLD: Final = 50_000
"""Messages come by the million and form no cycles, so the collector need not run as often."""

MAPPED_FROM_BYTES: Final = 1024 * 1024
"""Smaller buffers come from the heap: reads from a socket do, batches for the log do not."""

_M_MMAP_THRESHOLD: Final = -3  # of malloc.h

_log = structlog.get_logger(__name__)


def main(
    config: Config,
    *,
    ready_file: Path | None = None,
    mdns: bool = False,
    watch: Watch = unwatched,
) -> int:
    """Run the broker until a signal; return the exit code. *watch* follows recovery."""
    if mdns and not config.qumbed.enabled:
        raise ConfigError("--mdns", "announces the Qumbed strand, which is off")
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)  # a killed broker leaves it behind
    sys.setswitchinterval(_GIL_SWITCH_S)
    return_large_buffers()
    gc.set_threshold(_GC_THRESHOLD, 50, 50)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, ready_file, mdns=mdns, watch=watch))
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


async def _serve(config: Config, ready_file: Path | None, *, mdns: bool, watch: Watch) -> int:
    daemon = Daemon(config, mdns=mdns, watch=watch)
    stopping = _signals()
    try:
        await daemon.start()
        if ready_file is not None:
            write_atomically(ready_file, json.dumps(daemon.ready_facts()))
    except BaseException:
        await daemon.stop()
        raise
    gc.freeze()  # what was made so far stays: the collector need not walk it again
    note = loss_note(config.wal.fsync)
    if note:
        _log.warning(note)
    facts = daemon.ready_facts()
    _log.info(
        "ready",
        **daemon.addresses,
        page=daemon.page,
        qumbed_fingerprint=facts["qumbed_fingerprint"],
        compiled=is_compiled(),
    )
    waits = [asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(daemon.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    _log.info("stopping")
    await daemon.stop()
    if daemon.failure is not None:
        raise daemon.failure
    _log.info("stopped")
    return 0


def _signals() -> asyncio.Event:
    """Return an event that the first signal sets; a second signal ends the process."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def receive() -> None:
        if stopping.is_set():
            os._exit(0)  # the operator asked twice: that is not a failure
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, receive)
    return stopping


def return_large_buffers() -> bool:
    """Return large buffers to the system when freed; False where libc is not glibc.

    glibc maps large buffers one by one, but raises the threshold each time such a buffer is
    freed, up to 32 MiB. From then on the batches for the log come from the heap, which does not
    shrink. Setting the threshold explicitly stops it from moving.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
