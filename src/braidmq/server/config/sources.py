"""The sources of settings: a TOML or YAML file, the environment, flags.

Each source becomes a nested dict; nothing here knows which keys exist or which values are
valid, except that an address on the command line has two parts. No error text contains a value:
a misplaced value may be a secret.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from braidmq.base.errors import ConfigError
from braidmq.server.config.config import PORT_MAX

Settings = dict[str, object]

ENVIRONMENT_PREFIX: Final = "BRAIDMQ_"

_TOP_LEVEL: Final = {"BRAIDMQ_DATA_DIR": "data_dir", "BRAIDMQ_SCHEMAS_DIR": "schemas_dir"}
_KEY_PARTS: Final = 2  # section and key
_PORT_DIGITS_MAX: Final = 6  # some write leading zeros


def from_file(path: Path) -> Settings:
    """Return the settings of a file.

    Raises:
        ConfigError: It cannot be read, or is not TOML or YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("config", f"{path} is not UTF-8 text") from None
    if path.suffix == ".toml":
        return _from_toml(path, text)
    if path.suffix in {".yaml", ".yml"}:
        return _from_yaml(path, text)
    raise ConfigError("config", f"{path} must end in .toml, .yaml or .yml")


def _from_toml(path: Path, text: str) -> Settings:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("config", f"{path} is not TOML: {error}") from None


def _from_yaml(path: Path, text: str) -> Settings:
    from braidmq.server.config.yaml_text import parse  # noqa: PLC0415 - most files are TOML

    data = parse(path, text)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError("config", f"{path} must hold sections and keys")
    return _with_text_keys(data, path)


def _with_text_keys(data: dict[object, object], path: Path) -> Settings:
    settings: Settings = {}
    for key, value in data.items():
        if not isinstance(key, str):
            raise ConfigError("config", f"{path} has a key that is not text; quote it")
        nested = _with_text_keys(value, path) if isinstance(value, dict) else value
        settings[key] = nested
    return settings


def from_environment(environ: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    """Return the settings of the environment, and the variable of each, by dotted key.

    `BRAIDMQ_BLIP__PORT` is section, two underscores, key. Variables without two underscores
    belong to commands, and are ignored.

    Raises:
        ConfigError: A name has two underscores but not exactly a section and a key.
    """
    settings: Settings = {}
    said_by: dict[str, str] = {}
    for name in sorted(environ):
        if name in _TOP_LEVEL:
            settings[_TOP_LEVEL[name]] = environ[name]
            said_by[_TOP_LEVEL[name]] = name
        elif name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            parts = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            if len(parts) != _KEY_PARTS or not all(parts):
                raise ConfigError(name, "unknown key; the form is BRAIDMQ_SECTION__KEY")
            section, key = parts
            if (section, key) == ("auth", "keys"):
                raise ConfigError(name, "keys are set in the file, under [[auth.keys]]")
            table = settings.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(name, "unknown key")
            table[key] = environ[name]
            said_by[f"{section}.{key}"] = name
    return settings, said_by


def from_flags(
    flags: Mapping[str, object], listeners: tuple[str, ...]
) -> tuple[Settings, dict[str, str]]:
    """Return the settings of the command line, and the flag of each; None: not given.

    Raises:
        ConfigError: An address is not `H:P` or `off`.
    """
    settings: Settings = {}
    said_by: dict[str, str] = {}
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if name in listeners:
            settings[name] = _listener(flag, str(value))
            said_by |= {f"{name}.{key}": flag for key in ("enabled", "host", "port")}
        else:
            settings[name] = value
            said_by[name] = flag
    return settings, said_by


def _listener(flag: str, address: str) -> Settings:
    if address == "off":
        return {"enabled": False}
    host, port = parse_address(flag, address)
    return {"enabled": True, "host": host, "port": port}


def parse_address(name: str, address: str) -> tuple[str, int]:
    """Return host and port of `H:P` or `[IPv6]:P`; *name* is the subject of an error.

    Raises:
        ConfigError: It is neither.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(name, "put an IPv6 address in brackets: [::1]:5555")
    if not colon or not host:
        raise ConfigError(name, "must be HOST:PORT or off")
    # The length is checked because Python refuses to convert thousands of digits.
    is_number = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS_MAX
    if not is_number or int(port) > PORT_MAX:
        raise ConfigError(name, f"the port must be a whole number from 0 to {PORT_MAX}")
    return host, int(port)


def merged(below: Settings, above: Settings) -> Settings:
    """Return the settings of both, merged key by key; *above* wins."""
    result = dict(below)
    for key, value in above.items():
        lower = result.get(key)
        if isinstance(value, dict) and (lower is None or isinstance(lower, dict)):
            result[key] = merged(lower or {}, value)
        else:
            result[key] = value
    return result
