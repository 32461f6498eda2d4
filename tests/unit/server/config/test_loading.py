"""The configuration as a whole: precedence, refusals, dependent settings, development mode."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from braidmq.base.errors import ConfigError
from braidmq.broker.quotas import DEFAULTS
from braidmq.server.config.config import Config, delivery_for
from braidmq.server.config.loading import known_keys, load

ROOT = Path(__file__).resolve().parents[4]
DEV = {"dev": True}
SECRET = "bk_a-secret-that-must-not-leak"
HASH = "sha256:" + 64 * "0"


def written(directory: Path, text: str, name: str = "braidmq.toml") -> Path:
    path = directory / name
    path.write_text(text, "utf-8")
    return path


def refusal(
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] = DEV,
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(config_file, environ or {}, flags)
    return caught.value


def test_without_any_source_the_defaults_hold() -> None:
    """--dev alone is a working configuration, with the documented ports and policy."""
    config = load(None, {}, DEV)

    assert (5555, 2925, 6121, 9100, 8815) == tuple(
        listener.port for _, listener in config.listeners()
    )
    assert ("always", Path("data"), True) == (config.wal.fsync, config.data_dir, config.dev)


def test_a_later_source_wins_over_an_earlier_one(tmp_path: Path) -> None:
    """Built-in < file < environment < flags, key by key."""
    path = written(
        tmp_path, 'data_dir = "f"\n[blip]\nport = 1\nmax_retries = 7\n[http]\nport = 1\n'
    )
    environ = {"BRAIDMQ_BLIP__PORT": "2", "BRAIDMQ_HTTP__PORT": "2", "BRAIDMQ_DATA_DIR": "e"}
    config = load(path, environ, {"dev": True, "blip": "127.0.0.2:3", "http": None})

    assert ("127.0.0.2", 3, 7) == (config.blip.host, config.blip.port, config.blip.max_retries)
    assert ("127.0.0.1", 2) == (config.http.host, config.http.port)
    assert Path("e") == config.data_dir


@pytest.mark.parametrize("listener", ["blip", "vibe", "qumbed", "http", "flight"])
def test_an_address_from_a_later_source_leaves_tls_on(listener: str, tmp_path: Path) -> None:
    """A flag or a variable that moves a listener must not take its certificate away."""
    files = {key: written(tmp_path, "", f"{key}.pem") for key in ("tls_cert", "tls_key")}
    settings = "".join(f"{key} = '{path}'\n" for key, path in files.items())
    path = written(tmp_path, f"[{listener}]\n{settings}")
    by_flag = load(path, {}, {**DEV, listener: "127.0.0.1:1"})
    by_variable = load(path, {f"BRAIDMQ_{listener.upper()}__PORT": "1"}, DEV)

    for config in (by_flag, by_variable):
        section = dict(config.listeners())[listener]
        assert (1, *files.values()) == (section.port, section.tls_cert, section.tls_key)


def test_yaml_and_toml_give_the_same_configuration(tmp_path: Path) -> None:
    """The file format is a matter of taste."""
    toml = written(tmp_path, "[blip]\nport = 7\n[wal]\nfsync = 'every_n:3'\n")
    yaml = written(tmp_path, "blip: {port: 7}\nwal:\n  fsync: every_n:3\nvibe:\n", "b.yaml")

    assert load(toml, {}, DEV) == load(yaml, {}, DEV)


def test_off_turns_a_listener_off_and_an_address_turns_it_on(tmp_path: Path) -> None:
    """`off` works as a flag, as a host in the file or environment, and as enabled = false."""
    path = written(tmp_path, "[vibe]\nhost = 'off'\n[qumbed]\nenabled = false\n")
    config = load(
        path, {"BRAIDMQ_HTTP__HOST": "off"}, {**DEV, "blip": "off", "vibe": "[::1]:0"}
    )

    enabled = {name: listener.enabled for name, listener in config.listeners()}
    assert {
        "blip": False,
        "vibe": True,
        "qumbed": False,
        "http": False,
        "flight": True,
    } == enabled
    assert ("::1", 0, "[::1]:0") == (config.vibe.host, config.vibe.port, config.vibe.address)


ENVIRONMENT_REFUSALS = {
    "BRAIDMQ_BLIP__PORT=x": "blip.port: must be a whole number (BRAIDMQ_BLIP__PORT)",
    "BRAIDMQ_BLIP__PORT=65536": "blip.port: must be at most 65535 (BRAIDMQ_BLIP__PORT)",
    "BRAIDMQ_BLIP__PORT=": "blip.port: must be a whole number (BRAIDMQ_BLIP__PORT)",
    "BRAIDMQ_BLIP__PROT=1": (
        "blip.prot: unknown key; did you mean blip.port? (BRAIDMQ_BLIP__PROT)"
    ),
    "BRAIDMQ_NOPE__X=1": "nope: unknown key (BRAIDMQ_NOPE__X)",
    "BRAIDMQ_A__B__C=1": "BRAIDMQ_A__B__C: unknown key; the form is BRAIDMQ_SECTION__KEY",
    "BRAIDMQ_DATA_DIR=": "data_dir: must not be empty (BRAIDMQ_DATA_DIR)",
    "BRAIDMQ_DELIVERY__MAX_RETRIES=0": (
        "delivery.max_retries: must be at least 1 (BRAIDMQ_DELIVERY__MAX_RETRIES)"
    ),
    "BRAIDMQ_BLIP__MAX_RETRIES=0": (
        "blip.max_retries: must be at least 1 (BRAIDMQ_BLIP__MAX_RETRIES)"
    ),
    "BRAIDMQ_WAL__SEGMENT_BYTES=65535": (
        "wal.segment_bytes: must be at least 65536 (BRAIDMQ_WAL__SEGMENT_BYTES)"
    ),
    "BRAIDMQ_WAL__RETENTION_FORCE=perhaps": (
        "wal.retention_force: must be true or false (BRAIDMQ_WAL__RETENTION_FORCE)"
    ),
    "BRAIDMQ_QUOTAS__TOPICS=-1": ("quotas.topics: must be at least 0 (BRAIDMQ_QUOTAS__TOPICS)"),
    "BRAIDMQ_LIMITS__DRAIN_S=nan": (
        "limits.drain_s: must be a finite number (BRAIDMQ_LIMITS__DRAIN_S)"
    ),
    "BRAIDMQ_LIMITS__HANDSHAKE_TIMEOUT_S=0": (
        "limits.handshake_timeout_s: must be more than 0 (BRAIDMQ_LIMITS__HANDSHAKE_TIMEOUT_S)"
    ),
    "BRAIDMQ_DELIVERY__RETRY_BACKOFF_MS=60001": (
        "delivery.retry_backoff_max_ms: must be at least retry_backoff_ms"
    ),
    "BRAIDMQ_VIBE__RETRY_BACKOFF_MS=60001": (
        "vibe.retry_backoff_max_ms: must be at least retry_backoff_ms"
    ),
    "BRAIDMQ_HTTP__HOST=0.0.0.0": "http.host: --dev listens on loopback only, not on 0.0.0.0",
    "BRAIDMQ_QUMBED__HOST=::": "qumbed.host: --dev listens on loopback only, not on ::",
    "BRAIDMQ_QUMBED__AUTH=on": (
        "qumbed.auth: must be none, key or mtls (BRAIDMQ_QUMBED__AUTH)"
    ),
    "BRAIDMQ_QUMBED__AUTH=mtls": "qumbed.tls_ca: is missing: mtls needs the CA of the clients",
    "BRAIDMQ_QUMBED__ROUTE=some": (
        "qumbed.route: must be recipient or all (BRAIDMQ_QUMBED__ROUTE)"
    ),
    "BRAIDMQ_QUMBED__GATEWAY=": (
        "qumbed.gateway: must be seal or off (BRAIDMQ_QUMBED__GATEWAY)"
    ),
    "BRAIDMQ_QUMBED__TLS_CA=nope": "qumbed.tls_ca: there is no file nope",
    "BRAIDMQ_QUMBED__WINDOW_BYTES=0": (
        "qumbed.window_bytes: must be at least 1 (BRAIDMQ_QUMBED__WINDOW_BYTES)"
    ),
    "BRAIDMQ_BLIP__TLS_CERT=a.pem": "blip.tls_key: tls_cert and tls_key belong together",
    "BRAIDMQ_BLIP__TLS_KEY=a.pem": "blip.tls_cert: tls_cert and tls_key belong together",
}


@pytest.mark.parametrize(("setting", "line"), ENVIRONMENT_REFUSALS.items())
def test_a_bad_setting_is_refused_in_one_line_that_names_it(setting: str, line: str) -> None:
    """The operator learns which key it is, what is wrong, and where the value came from."""
    name, _, value = setting.partition("=")
    error = refusal(environ={name: value})

    assert line == str(error)
    assert 2 == error.exit_code


FILE_REFUSALS = {
    "prot = 1": "prot: unknown key",
    "dev = true": "dev: unknown key; development mode is the flag --dev",
    "[blip]\nport = true": "blip.port: must be a number, not true or false",
    "[blip]\nport = 1.5": "blip.port: must be a whole number",
    "[blip]\nhost = 1": "blip.host: must be text",
    "blip = 1": "blip: must be a section with keys",
    "data_dir = 1": "data_dir: must be a path",
    "[auth]\nkeys = 1": "auth.keys: must be a list",
    "[[auth.keys]]\nname = 'a'": "auth.keys[0].hash: is missing",
    '"a\\nb" = 1': "a\\u000ab: unknown key",
}


@pytest.mark.parametrize(("text", "line"), FILE_REFUSALS.items())
def test_a_bad_line_of_the_file_is_refused_by_name(
    tmp_path: Path, text: str, line: str
) -> None:
    """Unknown keys and values of the wrong type are errors, each in one line."""
    assert line == str(refusal(written(tmp_path, text)))


SECRETS_IN_WRONG_PLACES = {
    "a.toml": f"[[auth.keys]]\nname = 'a'\nhash = '{SECRET}'",
    "b.toml": f"[[auth.keys]]\nname = 'a'\nhash = '{HASH}'\nkey = '{SECRET}'",
    "c.toml": f"[auth]\nkeys = '{SECRET}'",
    "d.toml": f"[auth]\nkeys = ['{SECRET}']",
    "e.toml": f"[blip]\nport = '{SECRET}'",
    "f.toml": f"[auth]\nkeys = {SECRET}",
    "g.yaml": f"auth: {{keys: [{{name: a, hash: {SECRET}}}]}}",
    "h.yaml": f"auth: [{SECRET}",
    "i.yaml": f"a: {SECRET}\na: {SECRET}",
    "j.yaml": f"a: *{SECRET}",
    "k.yaml": SECRET,
    "l.yaml": f"wal: {{fsync: {SECRET}}}",
    "m.yaml": f"blip: {{host: 'x@{SECRET}'}}",
}


@pytest.mark.parametrize(("name", "text"), SECRETS_IN_WRONG_PLACES.items())
def test_no_refusal_shows_a_value(tmp_path: Path, name: str, text: str) -> None:
    """A key pasted into the wrong place does not appear in an error, chained or not."""
    error = refusal(written(tmp_path, text, name))

    assert SECRET not in f"{error}{error!r}{error.key}{error.problem}"
    assert error.__suppress_context__ or error.__context__ is None
    assert "\n" not in str(error)


def test_development_mode_ignores_the_address_of_a_listener_that_is_off() -> None:
    """A listener that is off exposes nothing."""
    environ = {"BRAIDMQ_VIBE__HOST": "0.0.0.0", "BRAIDMQ_VIBE__ENABLED": "false"}  # noqa: S104 - never bound

    assert not load(None, environ, DEV).vibe.enabled


def test_development_mode_reserves_the_name_dev(tmp_path: Path) -> None:
    """A configured principal called dev would own what dev-key owns."""
    path = written(tmp_path, f"[[auth.keys]]\nname = 'dev'\nhash = '{HASH}'")

    assert "under --dev the name 'dev' belongs to dev-key" in str(refusal(path))
    assert "dev" == load(path, {}, {}).auth.keys[0].name


def test_without_keys_and_without_development_mode_nothing_starts() -> None:
    """A broker without any key is a mistake, and the error says how to fix it."""
    assert "braidmq keys new" in str(refusal(flags={"dev": False}))
    assert not load(None, {}, {}, keys_needed=False).auth.keys


def test_qumbed_requires_authentication_unless_it_is_on_loopback(tmp_path: Path) -> None:
    """auth = "none" is for this machine only; it does not matter to a listener that is off."""
    keys = f"[[auth.keys]]\nname = 'a'\nhash = 'sha256:{64 * '0'}'\n"
    path = written(tmp_path, keys + "[qumbed]\nhost = '0.0.0.0'\nauth = 'none'\n")
    text = "qumbed.auth: none is for loopback only: must be key or mtls to listen on 0.0.0.0"

    assert text == str(refusal(path, flags={"dev": False}))
    allowed = {"BRAIDMQ_QUMBED__AUTH": "key"}, {"BRAIDMQ_QUMBED__ENABLED": "false"}
    for environ in allowed:
        assert "0.0.0.0" == load(path, environ, {}).qumbed.host  # noqa: S104 - never bound


def test_qumbed_asks_for_a_key_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    """Under --dev it asks for none by default; elsewhere `none` must be written."""
    keys = f"[[auth.keys]]\nname = 'a'\nhash = 'sha256:{64 * '0'}'\n"
    open_path = written(tmp_path, keys + "[qumbed]\nauth = 'none'\n")
    assert "none" == load(open_path, {}, {}).qumbed.auth
    path = written(tmp_path, keys + "[qumbed]\nport = 0\n")
    asked = [
        load(path, {}, {}).qumbed.auth,
        load(path, {}, DEV).qumbed.auth,
        load(path, {"BRAIDMQ_QUMBED__AUTH": "key"}, DEV).qumbed.auth,
        Config().qumbed.auth,
        Config(dev=True).qumbed.auth,
    ]

    assert ["key", "none", "key", "key", "none"] == asked


def test_qumbed_has_a_window_of_its_own() -> None:
    """[delivery] limits unacknowledged bytes; this, bytes that the peer has not received."""
    config = load(None, {"BRAIDMQ_DELIVERY__WINDOW_BYTES": "5"}, DEV)

    assert 256 * 1024 == config.qumbed.window_bytes


def test_tls_files_must_exist(tmp_path: Path) -> None:
    """A wrong path is found at startup, not at the first handshake."""
    there = written(tmp_path, "", "cert.pem")
    environ = {
        "BRAIDMQ_BLIP__TLS_CERT": str(there),
        "BRAIDMQ_BLIP__TLS_KEY": str(tmp_path / "nope"),
    }
    error = refusal(environ=environ)

    assert f"blip.tls_key: there is no file {tmp_path / 'nope'}" == str(error)
    assert (
        there == load(None, environ | {"BRAIDMQ_BLIP__TLS_KEY": str(there)}, DEV).blip.tls_cert
    )


def test_a_strand_may_override_delivery_for_itself() -> None:
    """Keys that it does not set come from [delivery]; a 0 of its own is a setting."""
    environ = {
        "BRAIDMQ_DELIVERY__WINDOW": "10",
        "BRAIDMQ_DELIVERY__MAX_RETRIES": "2",
        "BRAIDMQ_DELIVERY__MESSAGE_TTL_MS": "9",
        "BRAIDMQ_BLIP__WINDOW": "20",
        "BRAIDMQ_BLIP__MESSAGE_TTL_MS": "0",
    }
    config = load(None, environ, DEV)
    blip, vibe = delivery_for(config, "blip"), delivery_for(config, "vibe")

    assert (20, 2, 0) == (blip.window, blip.max_retries, blip.message_ttl_ms)
    assert config.delivery == vibe


def test_a_loaded_configuration_does_not_change() -> None:
    """Everything that runs was built from it, so it is frozen."""
    config = load(None, {}, DEV)

    with pytest.raises(ValueError, match="frozen"):
        setattr(config.blip, "port", 1)  # noqa: B010 - the type checker forbids the short form


def documented() -> dict[str, str]:
    """Return key and default of every row of the tables in docs/configuration.md."""
    section, rows, of_keys = "", {}, False
    for line in (ROOT / "docs" / "configuration.md").read_text("utf-8").splitlines():
        if line.startswith("#"):
            heading = re.fullmatch(r"#+ `\[+([a-z.]+)\]+`", line)
            section = heading[1] + "." if heading else ""
        of_keys = line.startswith("|") and (of_keys or line == "| key | default | meaning |")
        row = re.match(r"\| `([a-z0-9_]+)` \| ([^|]+) \|", line)
        if row and of_keys:
            rows[section + row[1]] = row[2].strip()
    return rows


def shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float) and default.is_integer():
        return f"{default:.0f}"
    if default is PydanticUndefined:
        return "required"
    return "not set" if default is None else str(default)


def test_the_documentation_names_every_key_with_its_default() -> None:
    """docs/configuration.md cannot fall behind the models, in either direction."""
    expected = {key: shown(default) for key, default in known_keys().items()}
    # A strand's overrides of [delivery] are one paragraph, not seven rows three times.
    for strand in ("blip", "vibe", "qumbed"):
        for key in type(Config().delivery).model_fields:
            if (strand, key) != ("qumbed", "window_bytes"):  # a key of its own
                assert "not set" == expected.pop(f"{strand}.{key}")
    # And a key's own quotas are one row.
    for quota in DEFAULTS:
        assert "not set" == expected.pop(f"auth.keys.quotas.{quota}")
    expected["auth.keys.quotas"] = "{}"

    assert expected == documented()
