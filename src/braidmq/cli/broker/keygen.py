"""`braidmq keygen`: make a key pair for Qumbed's sealed messages.

The private key goes into a new file for its owner only; on the screen it comes with `--out -`
and not otherwise. API keys, which are another thing, are made by `braidmq keys new`.
"""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from braidmq.cli.broker.config import AsJson
from braidmq.cli.tables import print_json, printable

DEFAULT_FILE: Final = "qumbed.key"
STDOUT: Final = "-"

_MODE: Final = 0o600


def keygen(
    out: Annotated[
        str,
        typer.Option(metavar="FILE", help="For the private key; - prints it."),
    ] = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Make a Curve25519 key pair; print the public key and its id."""
    from braidmq.client.qumbed.boxes import KeyPair

    keys = KeyPair.generate()
    private_key = keys.reveal_private_key().hex()
    shown = {"public_key": keys.public_key.hex(), "key_id": keys.key_id.hex()}
    if out == STDOUT:
        shown["private_key"] = private_key
    else:
        _write_new(Path(out), private_key.encode() + b"\n")
        shown["file"] = out
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        print(f"{name.replace('_', ' ')}: {printable(value)}")


def _write_new(path: Path, data: bytes) -> None:
    """Write a file that was not there, for its owner only, and wait for the disk."""
    from braidmq.base.errors import ConfigError

    # Not through a temporary file: where others may write too, its name could be taken first.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, _MODE)
    except FileExistsError:
        problem = f"{path} is there already, and a key that is overwritten is lost"
        raise ConfigError("--out", problem) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()
        raise
