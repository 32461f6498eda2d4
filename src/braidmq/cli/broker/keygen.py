"""`braidmq keygen`: make a key pair for Qumbed's encrypted messages.

The private key is written to a new file that only its owner can read; it is printed only with
`--out -`. API keys are something else: `braidmq keys new` makes them.
"""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from braidmq.base.printable import printable
from braidmq.cli.terminal import AsJson, print_json

DEFAULT_FILE: Final = "qumbed.key"
STDOUT: Final = "-"

_MODE: Final = 0o600


def keygen(
    out: Annotated[
        str, typer.Option(metavar="FILE", help="New file for the private key; - prints it.")
    ] = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Create a Curve25519 key pair; print the public key and its id."""
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
    """Write a new file that only its owner can read, and wait until it is on disk."""
    from braidmq.base.errors import ConfigError

    # No temporary file and rename: in a shared directory another user could take its name.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, _MODE)
    except FileExistsError:
        problem = f"{path} exists, and overwriting a key would lose it; name another file"
        raise ConfigError("--out", problem) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()
        raise
