"""The greeting of `serve --dev` on a terminal: where everything is, and what to type next."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from braidmq.base.extras import how_to_get
from braidmq.base.printable import printable

if TYPE_CHECKING:  # pydantic is slow to import
    from braidmq.server.config.config import Config

KEY: Final = "dev-key"
TOPIC: Final = "orders"
PAYLOAD: Final = '{"n": 1}'
_DEFAULT_BLIP: Final = "127.0.0.1:5555"
_LABEL_CHARS: Final = 8


def banner(config: "Config", addresses: Mapping[str, str | None], page: str | None) -> str:
    """Return the greeting of a broker that listens on *addresses*."""
    flight = addresses["flight"] or "off"
    if addresses["flight"] is None and config.flight.enabled:
        flight = f"off ({how_to_get('columnar')})"
    places = {
        "Page": page or "off",
        "Key": f"{KEY} (it may do everything; only this machine can connect)",
        "Log": str(config.data_dir.absolute()),
        "Blip": addresses["blip"] or "off",
        "Vibe": addresses["vibe"] or "off",
        "Qumbed": addresses["qumbed"] or "off",
        "Flight": flight,
    }
    lines = [f"{name + ':':{_LABEL_CHARS}}{printable(at)}" for name, at in places.items()]
    commands = _commands(config, addresses)
    if commands:
        lines += ["", "In another terminal:", *(f"  {line}" for line in commands)]
    lines += ["", "Ctrl-C stops the broker. What it has confirmed is there at the next start."]
    return "\n".join(
        ["", "BraidMQ is ready.", "", *(f"  {line}".rstrip() for line in lines), ""]
    )


def _commands(config: "Config", addresses: Mapping[str, str | None]) -> list[str]:
    """Return how to subscribe and to publish, over Blip or else Vibe."""
    for strand, section in (("blip", config.blip), ("vibe", config.vibe)):
        address = addresses[strand]
        if address is not None and section.tls_cert is None:
            url = "" if address == _DEFAULT_BLIP else f" --url {strand}://{KEY}@{address}"
            return [
                f"{_program()} subscribe {TOPIC}{url}",
                f"{_program()} publish {TOPIC} {shlex.quote(PAYLOAD)}{url}",
            ]
    return []


def _program() -> str:
    """Return how the user can start this same program."""
    here = Path(sys.executable).with_name("braidmq")
    found = shutil.which("braidmq")
    if not here.exists() or (found is not None and Path(found) == here):
        return "braidmq"
    place = Path.cwd()
    return shlex.quote(os.fspath(here.relative_to(place) if place in here.parents else here))
