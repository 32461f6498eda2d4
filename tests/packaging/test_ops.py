"""Files for operating a broker: container, compose, systemd, example configuration.

These tests use no container engine: they parse the Dockerfile and compose.yaml, and run the
container's scripts directly. `tests/docs/test_container.py` builds the images, and
`tests/docs/test_machine.py` starts the unit.
"""

import asyncio
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml

from braidmq.server.access.keys import hash_key
from braidmq.server.config.loading import load
from braidmq.testing.broker import running_broker

ROOT: Final = Path(__file__).resolve().parents[2]
OPS: Final = ROOT / "ops"
PORTS: Final = {"blip": 5555, "vibe": 2925, "qumbed": 6121, "http": 9100, "flight": 8815}


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions and their arguments, with continued lines joined."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    pairs = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(word, rest.strip()) for word, _, rest in pairs]


def arguments_of(word: str) -> list[str]:
    return [rest for name, rest in dockerfile() if name == word]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    return found


# The image.


def test_every_instruction_is_known() -> None:
    """A line that is continued wrongly would look like an unknown instruction."""
    known = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN"}
    known |= {"STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}

    assert set() == {word for word, _ in dockerfile()} - known


def test_the_image_is_built_in_one_stage_and_run_in_another() -> None:
    """Both use Python's slim image; the compiler and pip stay behind."""
    assert ["python:${PYTHON}-slim AS build", "python:${PYTHON}-slim"] == arguments_of("FROM")
    last = dockerfile()[max(n for n, (word, _) in enumerate(dockerfile()) if word == "FROM") :]
    assert [] == [rest for word, rest in last if word == "RUN" and "apt-get" in rest]
    assert ["--from=build /opt/braidmq /opt/braidmq"] == [
        rest for word, rest in last if word == "COPY" and "--from" in rest
    ]


def test_copied_files_exist_and_are_not_ignored() -> None:
    """Each source exists in the tree, and .dockerignore lets it through."""
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    for rest in arguments_of("COPY"):
        if "--from" in rest:
            continue
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in allowed, source


def test_the_image_has_its_own_user_and_a_health_check() -> None:
    """The user is set before the entry point; the check uses Python, as there is no curl."""
    words = [word for word, _ in dockerfile()]
    program, script, address = probe()

    assert ["braidmq"] == arguments_of("USER")
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert ("python", f"127.0.0.1:{PORTS['http']}") == (program, address)
    assert f"ops/ready.py {script}" in arguments_of("COPY")


def probe() -> list[str]:
    """Return the command line of the image's health check."""
    (health,) = arguments_of("HEALTHCHECK")
    words: list[str] = json.loads(health[health.index("CMD ") + 4 :])
    return words


async def probe_exit_code(address: str) -> int:
    """Run the health check on another address, with warnings as errors."""
    script = OPS / Path(probe()[1]).name
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-I", str(script), address
    )
    return await process.wait()


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("with_tls", [False, True])
async def test_the_health_check_works_with_and_without_a_certificate(
    with_tls: bool, tmp_path: Path
) -> None:
    """Even with an untrusted one; a draining broker is not healthy."""
    issued = trustme.CA().issue_cert("broker.example.com")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    async with running_broker(config={"http": files if with_tls else {}}) as broker:
        status = broker.daemon.status
        address = str(status.addresses["http"])
        ready = await probe_exit_code(address)
        assert status.engine is not None
        status.engine.drain()

        assert (0, 1) == (ready, await probe_exit_code(address))


@pytest.mark.asyncio
async def test_the_health_check_fails_without_a_listener() -> None:
    """Without a traceback in the engine's log of the checks."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))

        assert 1 == await probe_exit_code(f"127.0.0.1:{silent.getsockname()[1]}")


def test_the_image_exposes_the_brokers_ports() -> None:
    """The defaults of the configuration."""
    exposed = {int(port.partition("/")[0]) for port in arguments_of("EXPOSE")[0].split()}
    config = load(None, {}, {"dev": True})

    assert PORTS == {name: listener.port for name, listener in config.listeners()}
    assert set(PORTS.values()) == exposed


def test_the_image_uses_the_locked_versions(tmp_path: Path) -> None:
    """A line of the Dockerfile turns the lock into constraints for pip."""
    (line,) = [
        rest for rest in arguments_of("RUN") if "constraints.txt" in rest and "sed" in rest
    ]
    text = (ROOT / "Dockerfile").read_text("utf-8")
    (command,) = re.findall(r"^RUN (sed .*constraints\.txt)$", text, re.MULTILINE)
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    subprocess.run(["sh", "-euc", command], check=True, cwd=tmp_path)
    made = (tmp_path / "constraints.txt").read_text("utf-8").splitlines()
    locked = re.findall(
        r"^[A-Za-z0-9].*?==[^ \\]+",
        (ROOT / "requirements.lock").read_text("utf-8"),
        re.MULTILINE,
    )

    assert line
    assert locked == [re.split(r"[ ;]", entry)[0] for entry in made]
    assert not any("\\" in entry or "--hash" in entry for entry in made)


# The first start.


@pytest.fixture
def first_start(tmp_path: Path) -> Path:
    """A directory in which the container's script has created a configuration."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "braidmq"
    program.write_text(
        f"#!{sys.executable}\nfrom braidmq.cli.main import run\nrun()\n", "utf-8"
    )
    program.chmod(0o755)
    place = tmp_path / "etc"
    place.mkdir()
    run_first_start(place)
    return place


def run_first_start(place: Path) -> str:
    variables = {
        **os.environ,
        "PATH": f"{place.parent / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "BRAIDMQ_BASE": str(OPS / "container.toml"),
        "BRAIDMQ_CONFIG": str(place / "braidmq.toml"),
    }
    return subprocess.check_output(
        [OPS / "first-start.sh", str(place)], env=variables, text=True
    )


def test_the_first_start_writes_a_configuration_that_loads(first_start: Path) -> None:
    """It listens on all interfaces and has two keys, stored only as hashes."""
    text = (first_start / "braidmq.toml").read_text("utf-8")
    config = load(first_start / "braidmq.toml", {}, {}, keys_needed=True)
    keys = {key.name: key for key in config.auth.keys}

    assert {"0.0.0.0"} == {listener.host for _, listener in config.listeners()}  # noqa: S104 - it must listen on all interfaces
    for name, key in keys.items():
        secret = (first_start / f"{name}.key").read_text("utf-8")
        assert hash_key(secret) == key.hash
        assert secret not in text
    assert (True, False) == (keys["admin"].admin, keys["metrics"].admin)
    assert [] == [*keys["metrics"].publish, *keys["metrics"].subscribe]


def test_other_users_can_read_only_the_metrics_key(first_start: Path) -> None:
    """Prometheus runs as another user on the same volume."""
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in first_start.iterdir()}

    assert {"admin.key": 0o600, "braidmq.toml": 0o600, "metrics.key": 0o644} == modes


def test_the_second_start_changes_nothing(first_start: Path) -> None:
    """The keys in use stay valid."""
    before = {path.name: path.read_bytes() for path in first_start.iterdir()}
    assert "" == run_first_start(first_start)

    assert before == {path.name: path.read_bytes() for path in first_start.iterdir()}


# Compose.


def test_files_that_compose_mounts_exist() -> None:
    """A missing one would silently become an empty directory."""
    for name, service in compose()["services"].items():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), (name, source)
            else:
                assert source in compose()["volumes"], (name, source)


def test_every_published_port_is_on_loopback() -> None:
    """Without TLS, keys are sent in plain text."""
    ports = [p for service in compose()["services"].values() for p in service.get("ports", [])]

    assert len(ports) > 4
    assert [] == [port for port in ports if not port.startswith("127.0.0.1:")]


def test_prometheus_has_the_brokers_name_and_key_from_compose() -> None:
    """Grafana has Prometheus as its source, and the directory of the dashboard."""
    services = compose()["services"]
    (job,) = yaml.safe_load((OPS / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    provisioning = OPS / "grafana" / "provisioning"
    (source,) = yaml.safe_load(
        (provisioning / "datasources/prometheus.yml").read_text("utf-8")
    )["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/braidmq.yml").read_text("utf-8"))[
        "providers"
    ]
    mounts = [mount.split(":")[1] for mount in services["grafana"]["volumes"]]

    assert ["braidmq:9100"] == job["static_configs"][0]["targets"]
    assert "braidmq" in services
    assert "/etc/braidmq/metrics.key" == job["authorization"]["credentials_file"]
    assert "config:/etc/braidmq:ro" in services["prometheus"]["volumes"]
    assert "http://prometheus:9090" == source["url"]
    assert f"{provider['options']['path']}/braidmq.json" in mounts


def test_the_commented_tls_settings_of_prometheus_are_valid() -> None:
    """Once uncommented, they fit into the job; the page names the same settings."""
    text = (OPS / "prometheus.yml").read_text("utf-8")
    added = "".join(f"{line}\n" for line in re.findall(r"^# (    .*)$", text, re.MULTILINE))
    (job,) = yaml.safe_load(text + added)["scrape_configs"]
    page = (ROOT / "docs/howto/container.md").read_text("utf-8")

    assert "https" == job["scheme"]
    assert {"ca_file", "server_name"} == set(job["tls_config"])
    assert [] == [word for word in ("scheme: https", *job["tls_config"]) if word not in page]


# systemd.


def unit() -> str:
    return (OPS / "braidmq.service").read_text("utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Without warnings, once its program is replaced by one that exists here."""
    place = tmp_path / "braidmq.service"
    place.write_text(unit().replace("/opt/braidmq/bin/braidmq", "/bin/true"), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(place)],
        capture_output=True,
        check=False,
        text=True,
    )

    assert (0, "") == (done.returncode, done.stderr)


def test_the_unit_uses_existing_options() -> None:
    """Of `serve`; it does not restart after exit codes that a restart cannot fix.

    `systemctl reload` sends the signal that has keys and files read again.
    """
    (start,) = re.findall(r"^ExecStart=(.*)$", unit(), re.MULTILINE)
    shown = subprocess.check_output(
        [sys.executable, "-c", "from braidmq.cli.main import run; run()", "serve", "--help"],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        text=True,
    )

    assert "RestartPreventExitStatus=2 65 75\n" in unit()
    assert "ExecReload=/bin/kill -HUP $MAINPID\n" in unit()
    assert [] == [flag for flag in re.findall(r"--[a-z-]+", start) if flag not in shown]


# The example configuration.


def test_the_example_configuration_loads() -> None:
    """With the program's own loader; only the keys are missing."""
    config = load(OPS / "braidmq.toml", {}, {}, keys_needed=False)
    assert Path("/var/lib/braidmq") == config.data_dir
    assert [] == config.auth.keys

    assert "StateDirectory=braidmq\n" in unit()


def test_the_commented_settings_load_too(tmp_path: Path) -> None:
    """Three lines for TLS, and a key."""
    text = (OPS / "braidmq.toml").read_text("utf-8")
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch()
    tls = re.findall(r"^#   ((?:host|tls_\w+) = .*)$", text, re.MULTILINE)
    assert 3 == len(tls)
    block = "\n".join(tls).replace("/etc/braidmq", str(tmp_path))
    text = text.replace('[blip]\nhost = "127.0.0.1"', f"[blip]\n{block}")
    key = text[text.index("# [[auth.keys]]") :].replace("# ", "")
    text = text[: text.index("# [[auth.keys]]")] + key.replace("...", 64 * "a")
    (tmp_path / "braidmq.toml").write_text(text, "utf-8")
    config = load(tmp_path / "braidmq.toml", {}, {}, keys_needed=True)

    assert ("0.0.0.0", ["billing"]) == (  # noqa: S104 - as above
        config.blip.host,
        [key.name for key in config.auth.keys],
    )
    assert tomllib.loads(text)["blip"]["tls_cert"] == str(config.blip.tls_cert)
