"""`braidmq serve`: load the configuration, set up logging, run the daemon."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from braidmq.base.extras import needing
from braidmq.cli.broker.banner import banner
from braidmq.cli.broker.config import ConfigFile, effective_config
from braidmq.cli.progress import is_watched, progress

if TYPE_CHECKING:  # pydantic is slow to import
    from braidmq.server.config.config import Config


def _listener(what: str) -> Any:  # noqa: ANN401 - an option, whose type typer does not name
    return Option(metavar="HOST:PORT", help=f"Where {what} listens; off: nowhere.")


def serve(
    *,
    config_file: ConfigFile = None,
    dev: Annotated[
        bool,
        Option(
            "--dev", help="For development: accept the API key dev-key, on this machine only."
        ),
    ] = False,
    data_dir: Annotated[
        Path | None,
        Option(metavar="DIR", help="Directory to keep the messages in. Default: data."),
    ] = None,
    blip: Annotated[str | None, _listener("the Blip protocol (TCP)")] = None,
    vibe: Annotated[str | None, _listener("the Vibe protocol (TCP)")] = None,
    qumbed: Annotated[str | None, _listener("the Qumbed protocol (QUIC)")] = None,
    http: Annotated[str | None, _listener("HTTP, with the dashboard,")] = None,
    flight: Annotated[str | None, _listener("Arrow Flight, for Spark,")] = None,
    ready_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write the addresses to this file, as JSON, once the broker is ready.",
        ),
    ] = None,
    mdns: Annotated[
        bool, Option("--mdns", help="Announce the broker on the local network (Qumbed).")
    ] = False,
) -> None:
    """Run the broker, until Ctrl-C or SIGTERM.

    Without --dev it needs a configuration with at least one API key: `braidmq keys new` makes
    one. Default addresses: Blip 127.0.0.1:5555, Vibe 127.0.0.1:2925, Qumbed 127.0.0.1:6121,
    HTTP 127.0.0.1:9100, Flight 127.0.0.1:8815.
    """
    flags = {
        "dev": dev,
        "data_dir": data_dir,
        "blip": blip,
        "vibe": vibe,
        "qumbed": qumbed,
        "http": http,
        "flight": flight,
    }

    def load() -> "Config":
        return effective_config(config_file, flags, keys_needed=True)

    raise typer.Exit(_run(load, ready_file, mdns=mdns))


def _run(load: Callable[[], "Config"], ready_file: Path | None, *, mdns: bool) -> int:
    """Run the daemon with what *load* returns; return its exit code."""
    _import_structlog()
    config = load()

    with needing("server", "braidmq serve"):
        from braidmq.daemon import process
        from braidmq.daemon.logs import configure_logs

    def greet(addresses: Mapping[str, str | None], page: str | None) -> None:
        print(banner(config, addresses, page), file=sys.stderr, flush=True)

    configure_logs()
    with progress("reading the log", in_bytes=True) as watch:
        return process.main(
            config,
            ready_file=ready_file,
            mdns=mdns,
            watch=watch,
            load=load,
            greet=greet if config.dev and is_watched() else None,
        )


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
