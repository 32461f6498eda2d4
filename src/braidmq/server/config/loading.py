"""Loading the configuration: built-in < file < environment < flags, checked, in one object.

Each source is read in `sources`, and the models of `config` check each value. Here they are
joined, relations between values are checked, and errors become one plain line.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from braidmq.base.errors import ConfigError
from braidmq.server.config import sources
from braidmq.server.config.config import (
    DEV_PRINCIPAL,
    LISTENERS,
    STRANDS,
    AuthConfig,
    Config,
    KeyConfig,
    QumbedConfig,
    Section,
    delivery_for,
)

_PLAIN_WORDS: Final = {
    "extra_forbidden": "unknown key",
    "missing": "is missing",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must be at most {max_length} characters long",
    "string_type": "must be text",
    "path_type": "must be a path",
    "list_type": "must be a list",
    "model_type": "must be a section with keys",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "wrong": "{problem}",
}
_NOT_WHOLE: Final = "must be a whole number"


def load(
    config_file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    keys_needed: bool = True,
) -> Config:
    """Return the effective configuration.

    *flags* are `dev`, `data_dir`, `schemas_dir` and an address (`H:P` or `off`) per listener;
    None is a flag that was not given. With *keys_needed* off, a configuration without API keys,
    with which no broker would start, can still be inspected.

    Raises:
        ConfigError: A key is unknown, a value cannot be used, or a file cannot be read.
    """
    in_file = _with_sections(sources.from_file(config_file)) if config_file else {}
    # Only a flag: a mode that opens the broker must not be left behind in a file.
    if "dev" in in_file:
        raise ConfigError("dev", "unknown key; development mode is the flag --dev")
    in_environment, by_variable = sources.from_environment(environ)
    on_command_line, by_flag = sources.from_flags(flags, LISTENERS)
    settings = sources.merged(sources.merged(in_file, in_environment), on_command_line)
    try:
        config = Config.model_validate(settings)
    except ValidationError as error:
        # One error at a time, and without the input: it may be a secret.
        first = error.errors(include_url=False, include_input=False)[0]
        raise _plain(first, by_variable | by_flag) from None
    _check_relations(config)
    _check_tls_files(config)
    if config.dev:
        _check_dev(config)
    elif keys_needed and not config.auth.keys:
        problem = "no API keys are configured; 'braidmq keys new NAME' makes one"
        raise ConfigError("auth.keys", f"{problem}, --dev does without")
    _check_qumbed(config.qumbed)
    return config


def known_keys() -> dict[str, object]:
    """Return every key of the file as `section.key`, with its default."""
    return dict(_keys_of(Config, ""))


def _keys_of(model: type[Section], prefix: str) -> Iterator[tuple[str, object]]:
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=False)
        if model is AuthConfig:
            yield from _keys_of(KeyConfig, f"{prefix}{name}.")
        elif isinstance(default, Section):
            yield from _keys_of(type(default), f"{prefix}{name}.")
        elif name != "dev":
            yield prefix + name, default


def _with_sections(settings: sources.Settings) -> sources.Settings:
    # In YAML a section whose keys are all commented out is null.
    names = {name for name in Config.model_fields if name not in {"data_dir", "schemas_dir"}}
    return {
        name: {} if value is None and name in names else value
        for name, value in settings.items()
    }


def _plain(error: ErrorDetails, said_by: Mapping[str, str]) -> ConfigError:
    key = ""
    for part in error["loc"]:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    kind = error["type"]
    problem = _PLAIN_WORDS.get(kind, "").format(**error.get("ctx", {}))
    if not problem:
        problem = _NOT_WHOLE if kind.startswith("int_") else "has a value that cannot be used"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(key, known_keys(), n=1)
        problem += f"; did you mean {near[0]}?" if near else ""
    for place, name in said_by.items():
        # For an unknown section, name the source of the key in it.
        if place == key or place.startswith(f"{key}."):
            problem += f" ({name})"
            break
    return ConfigError(_printable(key), _printable(problem))


def _printable(text: str) -> str:
    # A key in a file is free text, but an error must stay one line.
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _check_relations(config: Config) -> None:
    sections = [("delivery", config.delivery)]
    sections += [(strand, delivery_for(config, strand)) for strand in STRANDS]
    for name, delivery in sections:
        if delivery.retry_backoff_max_ms < delivery.retry_backoff_ms:
            key = f"{name}.retry_backoff_max_ms"
            raise ConfigError(key, "must be at least retry_backoff_ms")


def _check_qumbed(qumbed: QumbedConfig) -> None:
    if not qumbed.enabled:
        return
    if qumbed.auth == "none" and not qumbed.loopback:
        raise ConfigError(
            "qumbed.auth",
            f"none is for loopback only: must be key or mtls to listen on {qumbed.host}",
        )
    if qumbed.auth == "mtls" and qumbed.tls_ca is None:
        raise ConfigError("qumbed.tls_ca", "is missing: mtls needs the CA of the clients")


def _check_tls_files(config: Config) -> None:
    for name, listener in config.listeners():
        files = {"tls_cert": listener.tls_cert, "tls_key": listener.tls_key}
        if any(files.values()) and not all(files.values()):
            missing = next(key for key, path in files.items() if path is None)
            raise ConfigError(f"{name}.{missing}", "tls_cert and tls_key belong together")
        if isinstance(listener, QumbedConfig):
            files["tls_ca"] = listener.tls_ca
        for key, path in files.items():
            if path is None:
                continue
            if not path.is_file():
                raise ConfigError(f"{name}.{key}", f"there is no file {path}")
            if not os.access(path, os.R_OK):
                raise ConfigError(f"{name}.{key}", f"cannot read {path}")


def _check_dev(config: Config) -> None:
    for name, listener in config.listeners():
        if listener.enabled and not listener.loopback:
            raise ConfigError(
                f"{name}.host", f"--dev listens on loopback only, not on {listener.host}"
            )
    if any(key.name == DEV_PRINCIPAL for key in config.auth.keys):
        raise ConfigError(
            "auth.keys", f"under --dev the name {DEV_PRINCIPAL!r} belongs to dev-key"
        )
