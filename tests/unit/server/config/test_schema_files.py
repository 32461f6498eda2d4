"""Schema files, read once at startup."""

import json
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.broker.schemas import PLAIN, SCHEMA_INVALID
from braidmq.server.config.schema_files import SCHEMA_FILE_BYTES_MAX, load_schemas

BUILT_IN = ["control.Command", "sensor.Humidity", "sensor.Temperature"]
PRESSURE = {
    "type": "object",
    "properties": {"hectopascal": {"type": "number", "minimum": 0}},
    "required": ["hectopascal"],
}


def write(path: Path, content: object) -> None:
    """Write JSON, or text as it is."""
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")


def test_without_a_directory_the_built_in_schemas_are_there() -> None:
    """No file is read."""
    assert BUILT_IN == load_schemas(None).ids()


def test_a_file_is_a_schema_named_after_it(tmp_path: Path) -> None:
    """Or after its own `$id`; other files and directories are ignored."""
    write(tmp_path / "sensor.Pressure.json", PRESSURE)
    write(tmp_path / "whatever.json", {"$id": "my.Flag", "type": "boolean"})
    write(tmp_path / "README.md", "not a schema")
    (tmp_path / "older").mkdir()
    schemas = load_schemas(tmp_path)

    assert sorted([*BUILT_IN, "my.Flag", "sensor.Pressure"]) == schemas.ids()
    assert PLAIN == schemas.judge(b'{"hectopascal":1013}', "sensor.Pressure", b"")
    assert SCHEMA_INVALID == schemas.judge(b'{"hectopascal":-1}', "sensor.Pressure", b"")
    assert PLAIN == schemas.judge(b"true", "my.Flag", b"")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", "{", "is not a JSON object"),
        ("a.json", "", "is not a JSON object"),
        ("a.json", "[]", "is not a JSON object"),
        ("a.json", "true", "is not a JSON object"),
        ("a.json", "[" * 100_000, "is not a JSON object"),
        ("a.json", {"type": "nonsense"}, "is not a JSON Schema"),
        ("a.json", {"$ref": "other.json"}, "is not a JSON Schema"),
        ("a.json", {"$id": 5}, "$id must be text"),
        ("a.json", {"$id": ""}, "a schema id has"),
        ("sensor.Temperature.json", {}, "already"),
        ("a.json", {"$id": "control.Command"}, "already"),
        ("a.json", " " * (SCHEMA_FILE_BYTES_MAX + 1), "limit is 1048576"),
    ],
)
def test_a_bad_file_prevents_startup(
    tmp_path: Path, name: str, content: object, problem: str
) -> None:
    """The error names the setting, the file and what is wrong with it."""
    write(tmp_path / "good.json", PRESSURE)
    write(tmp_path / name, content)
    with pytest.raises(ConfigError) as caught:
        load_schemas(tmp_path)

    assert "schemas_dir" == caught.value.key
    assert str(tmp_path / name) in str(caught.value)
    assert problem in str(caught.value)


def test_two_files_with_one_id_prevent_startup(tmp_path: Path) -> None:
    """The broker does not guess which of them counts."""
    write(tmp_path / "a.json", {"$id": "b"})
    write(tmp_path / "b.json", PRESSURE)

    with pytest.raises(ConfigError, match=r"b\.json: there is already a schema of that id"):
        load_schemas(tmp_path)


def test_a_file_that_is_not_utf_8_prevents_startup(tmp_path: Path) -> None:
    """JSON is UTF-8."""
    (tmp_path / "a.json").write_bytes(b'{"title":"\xff"}')

    with pytest.raises(ConfigError, match="is not a JSON object"):
        load_schemas(tmp_path)


def test_an_unreadable_directory_prevents_startup(tmp_path: Path) -> None:
    """Missing, a file, or with a subdirectory that is named like a schema."""
    write(tmp_path / "file", "x")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "a.json").mkdir()

    for directory in (tmp_path / "missing", tmp_path / "file", tmp_path / "dir"):
        with pytest.raises(ConfigError, match="cannot read"):
            load_schemas(directory)
