"""`braidmq keys`: make an API key, list the configured ones.

A key is printed once, when it is made; the configuration file holds only its hash.
"""

import json
import sys
from typing import Annotated, Final

import typer
from typer import Option

from braidmq.cli.broker.config import ConfigFile, effective_config
from braidmq.cli.terminal import AsJson, print_json, print_rows

app = typer.Typer(help="API keys.", no_args_is_help=True)

_NO_KEYS: Final = (
    "no keys are configured; `braidmq keys new --name NAME` creates one, --config FILE reads "
    "another configuration, and `serve --dev` always accepts the key dev-key"
)

Publish = Annotated[
    list[str] | None,
    Option(metavar="PATTERN", help="Topics that it may publish to; may be repeated."),
]
Subscribe = Annotated[
    list[str] | None,
    Option(metavar="PATTERN", help="Topics that it may subscribe to; may be repeated."),
]


@app.command("new")
def new(
    name: Annotated[str, Option(help="Name of the principal.")],
    publish: Publish = None,
    subscribe: Subscribe = None,
    admin: Annotated[
        bool, Option("--admin", help="Allow administration of the broker.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it, with the block to add to the configuration file."""
    from braidmq.server.access.keys import hash_key, new_key

    key = new_key()
    entry = {
        "name": _checked_name(name),
        "hash": hash_key(key),
        "publish": publish or [],
        "subscribe": subscribe or [],
        "admin": admin,
    }
    if as_json:
        print_json({"key": key, **entry})
        return
    print(f"# API key of {name}; it is shown only once:")
    print(f"#   {key}")
    print("[[auth.keys]]")
    for field, value in entry.items():
        # JSON's strings, lists and booleans are TOML's.
        print(f"{field} = {json.dumps(value, ensure_ascii=False)}")


def _checked_name(name: str) -> str:
    from braidmq.base.errors import ConfigError
    from braidmq.server.config.config import NAME_CHARS_MAX

    if not name or not name.isprintable() or len(name) > NAME_CHARS_MAX:
        problem = f"must be 1 to {NAME_CHARS_MAX} printable characters"
        raise ConfigError("--name", problem)
    return name


@app.command("list")
def list_(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the names and permissions of the configured keys."""
    config = effective_config(config_file, {}, keys_needed=False)
    rows = [key.model_dump(exclude={"hash", "quotas"}) for key in config.auth.keys]
    if rows or as_json or not sys.stdout.isatty():  # an empty table tells a person nothing
        print_rows(rows, ("name", "publish", "subscribe", "admin"), as_json=as_json)
    if not rows and not as_json:
        print(_NO_KEYS, file=sys.stderr)
