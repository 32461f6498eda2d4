"""`braidmq serve`: configuration, logs, and then the daemon until it is told to stop."""

from pathlib import Path
from typing import Annotated

import typer

from braidmq.cli.broker.config import ConfigFile, effective_config
from braidmq.cli.progress import progress

Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address, or off.")]


def serve(
    *,
    config_file: ConfigFile = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="Loopback only, and the API key dev-key.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the log is kept.")
    ] = None,
    blip: Address = None,
    vibe: Address = None,
    qumbed: Address = None,
    http: Address = None,
    flight: Address = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Written with the addresses when all accept."),
    ] = None,
    mdns: Annotated[
        bool, typer.Option("--mdns", help="Announce the Qumbed strand on the local network.")
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
    config = effective_config(config_file, flags, keys_needed=True)

    from braidmq.daemon import process
    from braidmq.daemon.logs import configure_logs

    configure_logs()
    with progress("reading the log", in_bytes=True) as watch:
        code = process.main(config, ready_file=ready_file, mdns=mdns, watch=watch)
    raise typer.Exit(code)
