"""`braidmq serve`: load the configuration, set up logging, run the daemon."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from braidmq.base.extras import needing
from braidmq.cli.broker.banner import banner
from braidmq.cli.broker.config import ConfigFile, effective_config
from braidmq.cli.progress import is_watched, progress

if TYPE_CHECKING:  # pydantic is slow to import
    from braidmq.server.config.config import Config

Address = Annotated[
    str | None, Option(metavar="HOST:PORT", help="Address to listen on, or off.")
]


def serve(
    *,
    config_file: ConfigFile = None,
    dev: Annotated[
        bool, Option("--dev", help="Development mode: loopback only, with the API key dev-key.")
    ] = False,
    data_dir: Annotated[
        Path | None, Option(metavar="DIR", help="Directory of the log.")
    ] = None,
    blip: Address = None,
    vibe: Address = None,
    qumbed: Address = None,
    http: Address = None,
    flight: Address = None,
    ready_file: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Write the addresses to this file once all listeners accept."
        ),
    ] = None,
    mdns: Annotated[
        bool, Option("--mdns", help="Announce Qumbed on the local network.")
    ] = False,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C."""
    flags = {
        "dev": dev,
        "data_dir": data_dir,
        "blip": blip,
        "vibe": vibe,
        "qumbed": qumbed,
        "http": http,
        "flight": flight,
    }

    _import_structlog()

    def load() -> "Config":
        return effective_config(config_file, flags, keys_needed=True)

    config = load()

    with needing("server", "braidmq serve"):
        from braidmq.daemon import process
        from braidmq.daemon.logs import configure_logs

    def greet(addresses: Mapping[str, str | None], page: str | None) -> None:
        print(banner(config, addresses, page), file=sys.stderr, flush=True)

    configure_logs()
    with progress("reading the log", in_bytes=True) as watch:
        code = process.main(
            config,
            ready_file=ready_file,
            mdns=mdns,
            watch=watch,
            load=load,
            greet=greet if config.dev and is_watched() else None,
        )
    raise typer.Exit(code)


def _import_structlog() -> None:
    """Import structlog without rich.

    It would import all of it for tracebacks that we print plainly; that is a tenth of the time
    until the broker is ready.
    """
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # how the import system is told that there is none
    try:
        with needing("server", "braidmq serve"):
            import structlog  # noqa: F401 - for its effect on later imports
    finally:
        del sys.modules["rich"]
