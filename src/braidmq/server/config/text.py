"""The effective configuration as TOML, which can be loaded again.

Secrets are masked, so everything but the hashes of the keys survives.
"""

import json
from pathlib import Path

from braidmq.server.config.config import MASK, Config, DeliveryConfig, KeyConfig, Section
from braidmq.wal.options import FsyncPolicy


def to_text(config: Config) -> str:
    """Return *config* as TOML, secrets masked, with what the fsync policy can lose."""
    lines: list[str] = ["# the effective configuration of braidmq"]
    if config.dev:
        lines.append("# --dev: loopback only, and the API key dev-key is accepted")
    lines += _key_values(config)
    for name in type(config).model_fields:
        section = getattr(config, name)
        if isinstance(section, Section) and name != "auth":
            lines += ["", f"[{name}]"]
            if name == "wal":
                lines += [f"# {note}" for note in [loss_note(config.wal.fsync)] if note]
            lines += _key_values(section)
    for key in config.auth.keys:
        lines += ["", "[[auth.keys]]", *_key_values(key)]
        own = key.quotas.given()
        if own:
            lines += ["", "[auth.keys.quotas]"]
            lines += [f"{name} = {value}" for name, value in own.items()]
    return "\n".join(lines) + "\n"


def loss_note(fsync: str) -> str | None:
    """Return what a power cut can lose under this policy, or None."""
    policy = FsyncPolicy.parse(fsync)
    if policy.is_strict:
        return None
    return f"fsync is {fsync}: a power cut can lose {policy.can_lose}"


def _key_values(section: Section) -> list[str]:
    lines = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section) or (isinstance(section, Config) and name == "dev"):
            continue
        if value is None and name in DeliveryConfig.model_fields:
            continue  # no override: the value is in [delivery]
        if isinstance(section, KeyConfig) and name == "hash":
            value = f"sha256:{MASK}"
        lines.append(f"# {name} is not set" if value is None else f"{name} = {_toml(value)}")
    return lines


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    assert isinstance(value, str | Path)
    # A JSON string is a TOML string once DEL, which JSON does not escape, is escaped. TOML
    # cannot express a path that is not UTF-8: the odd bytes are shown as question marks.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
