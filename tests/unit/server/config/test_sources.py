"""Sources of settings: what each of them sets, before the values are checked."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.server.config.sources import (
    from_environment,
    from_file,
    from_flags,
    merged,
    parse_address,
)

ADDRESSES = {
    "127.0.0.1:5555": ("127.0.0.1", 5555),
    "localhost:0": ("localhost", 0),
    "[::1]:65535": ("::1", 65535),
    "[::]:1": ("::", 1),
}
BAD_ADDRESSES = {
    "": "HOST:PORT",
    "5555": "HOST:PORT",
    ":5555": "HOST:PORT",
    "[]:1": "HOST:PORT",
    "host": "HOST:PORT",
    "::1:5555": "in brackets",
    "host:": "from 0 to 65535",
    "host:x": "from 0 to 65535",
    "host:-1": "from 0 to 65535",
    "host:65536": "from 0 to 65535",
    "host:" + 5000 * "9": "from 0 to 65535",
    "host:" + 5000 * "0": "from 0 to 65535",
    "host:00000065536": "from 0 to 65535",
    "host:\u0661": "from 0 to 65535",
}


@pytest.mark.parametrize(("text", "address"), ADDRESSES.items())
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    """An IPv6 address stands in brackets, and port 0 means any port."""
    assert address == parse_address("--blip", text)


@pytest.mark.parametrize(("text", "problem"), BAD_ADDRESSES.items())
def test_anything_else_is_not_an_address(text: str, problem: str) -> None:
    """The error names the flag and says what was expected."""
    with pytest.raises(ConfigError, match=f"^--blip: .*{problem}"):
        parse_address("--blip", text)


def test_the_environment_names_section_and_key() -> None:
    """In upper case; the result says which variable set which key."""
    environ = {
        "BRAIDMQ_BLIP__PORT": "1",
        "BRAIDMQ_BLIP__HOST": "h",
        "BRAIDMQ_DATA_DIR": "d",
        "BRAIDMQ_SCHEMAS_DIR": "s",
        "BRAIDMQ_URL": "blip://key@host:1",
        "BRAIDMQ_PURE": "1",
        "OTHER__THING": "x",
    }
    settings, set_by = from_environment(environ)

    assert {
        "blip": {"port": "1", "host": "h"},
        "data_dir": "d",
        "schemas_dir": "s",
    } == settings
    assert "BRAIDMQ_BLIP__PORT" == set_by["blip.port"]


@pytest.mark.parametrize(
    "name",
    ["BRAIDMQ_A__B__C", "BRAIDMQ___B", "BRAIDMQ_A__", "BRAIDMQ___", "BRAIDMQ_AUTH__KEYS"],
)
def test_a_variable_with_two_underscores_is_ours_or_an_error(name: str) -> None:
    """The error names the variable without showing its value."""
    with pytest.raises(ConfigError) as caught:
        from_environment({name: "value"})

    assert name == caught.value.key
    assert "value" not in str(caught.value)


def test_a_section_is_not_a_value() -> None:
    """BRAIDMQ_DATA_DIR is a key; it has no keys below it."""
    with pytest.raises(ConfigError, match="BRAIDMQ_DATA_DIR__X: unknown key"):
        from_environment({"BRAIDMQ_DATA_DIR": "d", "BRAIDMQ_DATA_DIR__X": "1"})


def test_an_absent_flag_sets_nothing() -> None:
    """None means absent, and an address sets three keys."""
    settings, set_by = from_flags(
        {"blip": "h:1", "vibe": "off", "http": None, "data_dir": Path("d")},
        ("blip", "vibe", "http"),
    )

    assert {
        "blip": {"enabled": True, "host": "h", "port": 1},
        "vibe": {"enabled": False},
        "data_dir": Path("d"),
    } == settings
    assert ("--blip", "--data-dir") == (set_by["blip.host"], set_by["data_dir"])


def test_merging_keeps_what_the_upper_source_does_not_mention() -> None:
    """Sections are merged, values replaced."""
    below: dict[str, object] = {"a": {"x": 1, "y": 2}, "b": 3, "c": 4}
    above: dict[str, object] = {"a": {"y": 5}, "b": {"z": 6}}

    assert {"a": {"x": 1, "y": 5}, "b": {"z": 6}, "c": 4} == merged(below, above)


BAD_FILES = {
    "a.toml": ("x = ", "is not TOML: Invalid value (at end of document)"),
    "b.toml": ("x = 1\nx = 2\n", "is not TOML: Cannot overwrite a value (at line 2, column 6)"),
    "c.yaml": ("a: 1\nb: [", "is not valid YAML, or repeats a key, at line 2"),
    "d.yaml": ("a:\n  b: 1\n  b: 2", "is not valid YAML, or repeats a key, at line 2"),
    "e.yaml": ("- a", "must hold sections and keys"),
    "f.yaml": ("a: {1: 2}", "has a key that is not text; quote it"),
    "g.yaml": (
        "!!python/object/apply:os.getcwd []",
        "is not valid YAML, or repeats a key, at line 1",
    ),
    "h.yaml": ("a: \x07", "is not YAML"),
    "i.json": ("{}", "must end in .toml, .yaml or .yml"),
}


@pytest.mark.parametrize(("name", "text", "problem"), [(k, *v) for k, v in BAD_FILES.items()])
def test_a_bad_file_is_refused_in_one_line(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    """The line names the file and the position, and quotes nothing from the file."""
    path = tmp_path / name
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        from_file(path)

    assert f"config: {path} {problem}" == str(caught.value)


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    """Missing, a directory, or not text."""
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    reasons = {
        "nope.toml": "No such file",
        ".": "Is a directory",
        "binary.toml": "is not UTF-8",
    }
    for name, reason in reasons.items():
        with pytest.raises(ConfigError, match=reason):
            from_file(tmp_path / name)


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    """In either format, even with comments."""
    for name in ("a.toml", "a.yaml", "a.yml"):
        (tmp_path / name).write_text("# nothing\n", "utf-8")

        assert {} == from_file(tmp_path / name)
