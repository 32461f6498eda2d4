"""`braidmq keygen`: make a key pair for Qumbed's encrypted messages.

The private key is written to a new file that only its owner can read; it is printed only if
the file is `-`. API keys are something else: `braidmq keys new` makes them.
"""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from braidmq.base.printable import printable
from braidmq.cli.option_groups import either
from braidmq.cli.terminal import AsJson, print_json

DEFAULT_FILE: Final = "qumbed.key"
STDOUT: Final = "-"

_MODE: Final = 0o600


def keygen(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help=f"New file for the private key; - prints it. Default: {DEFAULT_FILE}.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key pair for encrypted messages (Qumbed).

    The private key (Curve25519) is written to a file that only you can read. The public key is
    printed: give it to whoever publishes to you.
    """
    place = either("FILE", file, out) or DEFAULT_FILE
    from braidmq.client.qumbed.boxes import KeyPair

    keys = KeyPair.generate()
    private_key = keys.reveal_private_key().hex()
    shown = {"public_key": keys.public_key.hex(), "key_id": keys.key_id.hex()}
    if place == STDOUT:
        shown["private_key"] = private_key
    else:
        _write_new(Path(place), private_key.encode() + b"\n")
        shown["file"] = place
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        print(f"{name.replace('_', ' ')}: {printable(value)}")


def _write_new(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read, and wait until it is on disk."""
    from braidmq.base.errors import ConfigError

    # No temporary file and rename: in a shared directory another user could take its name.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, _MODE)
    except FileExistsError:
        problem = f"{path} exists, and overwriting a key would lose it; name another file"
        raise ConfigError("FILE", problem) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()
        raise
