"""The broker as a process: settings of the interpreter, signals, and the exit code.

The first SIGTERM or SIGINT stops the broker in order. A second one ends the process at once;
that loses nothing that was acknowledged, because the next start recovers from the log. SIGHUP
has keys, users, certificates and schemas read again; one that comes because the terminal is
gone stops the broker, as it would stop any program that was started there.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import uvloop

from braidmq.base.build import is_compiled
from braidmq.base.errors import ConfigError, LogScarceError
from braidmq.daemon.daemon import Daemon
from braidmq.daemon.descriptors import raise_limit
from braidmq.daemon.ready import write_atomically
from braidmq.daemon.reloading import LoadConfig
from braidmq.server.config.config import Config
from braidmq.server.config.text import loss_note
from braidmq.server.engine.requests import UnavailableError
from braidmq.wal.opening import Watch, unwatched

_GIL_SWITCH_S: Final = 0.001
"""The log's writer needs the interpreter a few times per commit. With the default of 5 ms each
time it would wait longer for the interpreter than for the disk."""

_GC_THRESHOLD: Final = 50_000
"""Messages come by the million and form no cycles, so the collector need not run as often."""

MAPPED_FROM_BYTES: Final = 1024 * 1024
"""Smaller buffers come from the heap: reads from a socket do, batches for the log do not."""

KEPT_FREE_BYTES: Final = 4 * 1024 * 1024
"""Free memory at the heap's end up to this stays with the process: a chunk of messages comes
and goes with every read, and would be given back and faulted in again each time."""

HEAP_STEP_BYTES: Final = 1024 * 1024
"""What the heap grows by at a time."""

Greet = Callable[[Mapping[str, str | None], str | None], None]
"""Greets a person: gets the address of each listener, or None, and the URL of the page."""

# Of malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

_log = structlog.get_logger(__name__)


def main(
    config: Config,
    *,
    ready_file: Path | None = None,
    mdns: bool = False,
    watch: Watch = unwatched,
    load: LoadConfig | None = None,
    greet: Greet | None = None,
) -> int:
    """Run the broker until a signal; return the exit code.

    *watch* follows recovery, and *load* reads the configuration again for SIGHUP. *greet* is
    called with the addresses and the page when the broker is ready, in place of a log line.
    """
    if mdns and not config.qumbed.enabled:
        raise ConfigError("--mdns", "announces the Qumbed strand, which is off")
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)  # a killed broker leaves it behind
    raise_limit()
    sys.setswitchinterval(_GIL_SWITCH_S)
    return_large_buffers()
    gc.set_threshold(_GC_THRESHOLD, 50, 50)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            daemon = partial(
                Daemon, config, mdns=mdns, watch=watch, load=load, is_greeted=greet is not None
            )
            return runner.run(_serve(daemon, config, ready_file, greet))
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


async def _serve(
    make: Callable[[], Daemon], config: Config, ready_file: Path | None, greet: Greet | None
) -> int:
    daemon = make()  # it needs the running loop
    hung_up = asyncio.Event()
    stopping = _signals(hung_up, daemon.leaving)

    def tell() -> None:
        if ready_file is not None:
            write_atomically(ready_file, json.dumps(daemon.ready_facts()))

    try:
        await daemon.start()
        tell()
    except LogScarceError:
        await daemon.stop()
        if not stopping.is_set():
            raise
        return 0  # the operator did not wait until the log could be opened
    except BaseException:
        await daemon.stop()
        raise
    gc.freeze()  # what was made so far stays: the collector need not walk it again
    note = loss_note(config.wal.fsync)
    if note:
        _log.warning(note)
    if greet is not None:
        greet(daemon.addresses, daemon.page)
    else:
        _log.info(
            "ready",
            **daemon.addresses,
            page=daemon.page,
            qumbed_fingerprint=daemon.ready_facts()["qumbed_fingerprint"],
            compiled=is_compiled(),
        )
    daemon.reloaded = tell
    waits = [asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(daemon.ended.wait())]
    reloads = asyncio.ensure_future(_reload_again(daemon, hung_up))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in (*waits, reloads):
        wait.cancel()
    _log.info("stopping")
    await daemon.stop()
    if daemon.failure is not None:
        raise daemon.failure
    _log.info("stopped")
    return 0


async def _reload_again(daemon: Daemon, hung_up: asyncio.Event) -> None:
    """Reload after each SIGHUP; one that comes during the start waits until it is done."""
    while True:
        await hung_up.wait()
        hung_up.clear()
        with contextlib.suppress(ConfigError, UnavailableError):  # the log has said so
            await daemon.reload()


def _signals(hung_up: asyncio.Event, stopping: asyncio.Event) -> asyncio.Event:
    """Have the first signal set *stopping*, which is returned; a second ends the process.

    SIGHUP sets *hung_up* instead.
    """
    loop = asyncio.get_running_loop()
    had_terminal = os.isatty(0)

    def receive() -> None:
        if stopping.is_set():
            os._exit(0)  # the operator asked twice: that is not a failure
        stopping.set()

    def hang_up() -> None:
        if had_terminal and not os.isatty(0):
            receive()
        else:
            hung_up.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, receive)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    return stopping


def return_large_buffers() -> bool:
    """Return large buffers to the system when freed; False where libc is not glibc.

    glibc maps large buffers one by one, but raises the threshold each time such a buffer is
    freed, up to 32 MiB. From then on the batches for the log come from the heap, which does not
    shrink. Setting the threshold explicitly stops it from moving, and the heap from keeping
    free what it will need again: hence the other two.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    settings = (
        (_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
        (_M_TRIM_THRESHOLD, KEPT_FREE_BYTES),
        (_M_TOP_PAD, HEAP_STEP_BYTES),
    )
    return all(mallopt(what, size) for what, size in settings)
