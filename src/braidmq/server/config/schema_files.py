"""Schema files: the JSON Schemas of `schemas_dir`, read once at start.

A schema's id is its `$id`, or the file's name without `.json`. A file that cannot be used
prevents the start: a broker must not check less than it was configured to. What a schema means
is in broker/schemas.py.
"""

from pathlib import Path
from typing import Final

import msgspec

from braidmq.base.errors import ConfigError
from braidmq.base.limits import MIB
from braidmq.broker.schemas import SchemaError, Schemas

SETTING: Final = "schemas_dir"

SCHEMA_FILE_BYTES_MAX: Final = MIB
"""No hand-written schema is longer; a longer file is there by mistake."""


def load_schemas(directory: Path | None) -> Schemas:
    """Return the built-in schemas and those of *directory*, in the order of file names.

    Raises:
        ConfigError: The directory or a file cannot be read, or a file is not a schema.
    """
    schemas = Schemas()
    if directory is None:
        return schemas
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".json")
    except OSError as error:
        raise ConfigError(SETTING, f"cannot read {directory}: {error.strerror}") from None
    for path in paths:
        json_schema = _read(path)
        try:
            schemas.add(_schema_id(path, json_schema), json_schema)
        except SchemaError as error:
            raise ConfigError(SETTING, f"{path}: {error}") from None
    return schemas


def _read(path: Path) -> dict[str, object]:
    try:
        size = path.stat().st_size
        if size > SCHEMA_FILE_BYTES_MAX:
            problem = f"{path} has {size} bytes, limit is {SCHEMA_FILE_BYTES_MAX}"
            raise ConfigError(SETTING, problem)
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(SETTING, f"cannot read {path}: {error.strerror}") from None
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except (ValueError, RecursionError) as error:
        raise ConfigError(SETTING, f"{path} is not a JSON object: {error}") from None


def _schema_id(path: Path, json_schema: dict[str, object]) -> str:
    schema_id = json_schema.get("$id", path.stem)
    if not isinstance(schema_id, str):
        raise ConfigError(SETTING, f"{path}: $id must be text")
    return schema_id
