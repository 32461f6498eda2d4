"""`braidmq config show`, and the options with which commands find their configuration."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.terminal import AsJson, print_json

if TYPE_CHECKING:  # pydantic is slow to import, and most commands do not need it
    from braidmq.server.config.config import Config

app = typer.Typer(help="Show the configuration of the broker.", no_args_is_help=True)

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Configuration file of the broker, TOML or YAML. Default: BRAIDMQ_CONFIG.",
        metavar="FILE",
    ),
]


def effective_config(
    config_file: Path | None, flags: Mapping[str, object], *, keys_needed: bool
) -> "Config":
    """Return the configuration of this process, from file, environment and flags.

    Raises:
        ConfigError: It is invalid.
    """
    from braidmq.server.config.loading import load

    if config_file is None and os.environ.get("BRAIDMQ_CONFIG"):
        config_file = Path(os.environ["BRAIDMQ_CONFIG"])
    return load(config_file, os.environ, flags, keys_needed=keys_needed)


@app.command("show")
def show(config_file: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Print the configuration in effect, as TOML, without secrets.

    It is made of the built-in values, the file and the variables of the environment.
    """
    from braidmq.server.config.text import to_text

    text = to_text(effective_config(config_file, {}, keys_needed=False))
    if as_json:
        # Secrets are masked in one place, `to_text`: read its result back.
        print_json(tomllib.loads(text))
    else:
        print(text, end="")
