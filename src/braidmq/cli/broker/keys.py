"""`braidmq keys`: make an API key, list the configured ones.

A key is printed once, when it is made; the configuration file holds only its hash.
"""

import json
import sys
from typing import Annotated, Final

import typer
from typer import Argument, Option

from braidmq.cli.broker.config import ConfigFile, effective_config
from braidmq.cli.option_groups import either
from braidmq.cli.terminal import AsJson, print_json, print_rows

app = typer.Typer(
    help="Make API keys, and list those of the configuration.", no_args_is_help=True
)

_NO_KEYS: Final = (
    "no keys are configured; `braidmq keys new NAME` creates one, --config FILE reads "
    "another configuration, and `serve --dev` always accepts the key dev-key"
)

Publish = Annotated[
    list[str] | None,
    Option(
        metavar="PATTERN", help="Topics that it may publish to, as 'orders.*'; may be repeated."
    ),
]
Subscribe = Annotated[
    list[str] | None,
    Option(metavar="PATTERN", help="Topics that it may subscribe to; may be repeated."),
]


def _take_name(context: typer.Context, name: str | None) -> str | None:
    """Let --name, the old spelling, take the place of the argument."""
    if name is not None:
        context.default_map = {"name": name}
    return name


@app.command("new")
def new(
    name: Annotated[
        str, Argument(metavar="NAME", help="Who the key is for, as billing; shown in logs.")
    ],
    *,
    old_name: Annotated[
        str | None,
        Option("--name", hidden=True, is_eager=True, callback=_take_name),
    ] = None,
    publish: Publish = None,
    subscribe: Subscribe = None,
    admin: Annotated[
        bool, Option("--admin", help="It may manage queues, topics and users, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key; print it, and the block for the configuration.

    The block holds only the hash of the key: the key itself is shown this once.
    """
    from braidmq.server.access.keys import hash_key, new_key

    key = new_key()
    entry = {
        "name": _checked_name(either("NAME", name, old_name) or ""),
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
        raise ConfigError("NAME", problem)
    return name


@app.command("list")
def list_(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the keys of the configuration, and what each may do."""
    config = effective_config(config_file, {}, keys_needed=False)
    rows = [key.model_dump(exclude={"hash", "quotas"}) for key in config.auth.keys]
    if rows or as_json or not sys.stdout.isatty():  # an empty table tells a person nothing
        print_rows(rows, ("name", "publish", "subscribe", "admin"), as_json=as_json)
    if not rows and not as_json:
        print(_NO_KEYS, file=sys.stderr)
