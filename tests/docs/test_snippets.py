"""The documentation is correct: its examples run, and the names in it exist.

The label of a fenced block says what it is: `python` and `sh` run against a real broker, `toml`
is loaded as a configuration, and `text` is only shown; `test_told.py` says which test runs a
command in it. A `sh` block that starts with `# one terminal` runs in parallel to the next one.
A tutorial is followed from its first block to its last, in one directory with one broker.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from braidmq.server.config.loading import load
from braidmq.wire.blip import frames
from braidmq.wire.vibe import frames as vibe_frames
from braidmq.wire.vibe import messages as vibe_messages
from braidmq.wire.vibe import queue_options, session
from tests.integration.cli.brokers import BRAIDMQ, START_S_MAX, Broker, running

ROOT: Final = Path(__file__).resolve().parents[2]
BIN: Final = Path(sys.executable).parent

OURS: Final = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/coming-from/kafka.md",
    "docs/coming-from/nats.md",
    "docs/coming-from/rabbitmq.md",
    "docs/concepts.md",
    "docs/delivery.md",
    "docs/differences.md",
    "docs/encryption.md",
    "docs/guarantees.md",
    "docs/howto/arrow.md",
    "docs/howto/backup.md",
    "docs/howto/container.md",
    "docs/howto/dead-letters.md",
    "docs/howto/keys.md",
    "docs/howto/python.md",
    "docs/howto/retention.md",
    "docs/howto/systemd.md",
    "docs/howto/tls.md",
    "docs/howto/upgrade.md",
    "docs/howto/wheel.md",
    "docs/operations.md",
    "docs/pipelines.md",
    "docs/protocols/blip.md",
    "docs/protocols/flight.md",
    "docs/protocols/qumbed.md",
    "docs/protocols/vibe.md",
    "docs/reference/command-line.md",
    "docs/reference/http.md",
    "docs/spark.md",
    "docs/start.md",
    "docs/tables.md",
    "docs/tutorials/sensors.md",
    "docs/tutorials/service.md",
)
"""Documents in which every block must have a label."""

TUTORIALS: Final = ("docs/spark.md",)
PIPELINES: Final = ("docs/tables.md", "docs/pipelines.md")
"""Their commands build on each other's tables."""

PAGES: Final = ("docs/start.md", "docs/tutorials/", "docs/howto/")
"""Those that start a broker are followed from start to end in `test_pages.py`."""

LABELS: Final = frozenset({"python", "sh", "text", "toml"})
FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
PATH: Final = re.compile(r"`((?:tests|src|docs|bench)/[\w./-]+)`")
MODULE: Final = re.compile(r"`((?:\w+/)+\w+\.py)`")
VARIABLE: Final = re.compile(r"\bBRAIDMQ_[A-Z_]+\b")
BACKGROUND: Final = "# one terminal\n"
SECONDS_MAX: Final = 60


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    line: int
    label: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"


def documents() -> list[str]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def read(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def blocks(label: str | None = None) -> list[Block]:
    found = []
    for document in documents():
        text = read(document)
        for match in FENCED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(document, line, match[1], match[2]))
    return [block for block in found if label in {None, block.label}]


def named(found: list[Block]) -> dict[str, Block]:
    return {block.name: block for block in found}


def starts_a_broker(document: str) -> bool:
    return document.startswith(PAGES) and BACKGROUND in read(document)


def independent(label: str) -> dict[str, Block]:
    """Return the blocks that are independent of each other."""
    together = (*TUTORIALS, *PIPELINES)
    found = [block for block in blocks(label) if block.document not in together]
    return named([block for block in found if not starts_a_broker(block.document)])


PYTHON: Final = independent("python")
SHELL: Final = {
    name: block for name, block in independent("sh").items() if block.document in OURS
}
SPARK: Final = "braidmq pipeline "
"""Blocks with this start Spark; `tests/integration/spark/test_documents.py` runs them."""
TOML: Final = named(blocks("toml"))


@contextmanager
def serving(directory: Path, flight: str = "off") -> Iterator[Broker]:
    """Start a broker in development mode below *directory*, with every strand."""
    ready_file = directory / "ready.json"
    places = ["--data-dir", str(directory / "data"), "--ready-file", str(ready_file)]
    listeners = [f"--{name}=127.0.0.1:0" for name in ("blip", "vibe", "qumbed", "http")]
    listeners.append(f"--flight={flight}")
    with subprocess.Popen(
        [*BRAIDMQ, "serve", "--dev", *places, *listeners], stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            deadline = time.monotonic() + START_S_MAX
            while not ready_file.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline, "the broker did not become ready"
                time.sleep(0.01)  # another process writes it
            yield Broker(process, json.loads(ready_file.read_text("utf-8")), ready_file)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("broker"), "127.0.0.1:0") as broker:
        yield broker


@pytest.fixture(scope="module")
def old_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped broker with some messages."""
    directory = tmp_path_factory.mktemp("stopped")
    with running(directory) as broker:
        subprocess.run(
            [*BRAIDMQ, "publish", "orders", "x", "--count", "20", "--url", broker.url()],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        assert 0 == broker.stop()[0]
    return directory / "data"


def here(text: str, broker: Broker) -> str:
    """Return *text* with the addresses and the directories of this run."""
    usual_ports = {"blip": "5555", "vibe": "2925", "http": "9100", "flight": "8815"}
    for name, usual in usual_ports.items():
        address = str(broker.addresses[name])
        port = address.rpartition(":")[2]
        text = text.replace(f"127.0.0.1:{usual}", address)
        text = text.replace(f'("127.0.0.1", {usual})', f'("127.0.0.1", {port})')
    return text


def script_of(block: Block, broker: Broker) -> str:
    """Return the script of a block for this run."""
    lines = [line for line in block.text.splitlines() if not line.startswith("make ")]
    return here("\n".join(lines), broker).replace(".venv/bin/", "")


def environment_of(broker: Broker) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "BRAIDMQ_URL": broker.url(), "PATH": path}


def shell(block: Block, broker: Broker, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script_of(block, broker)],
        cwd=directory,
        env=environment_of(broker),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_subscribed(broker: Broker, reader: subprocess.Popen[str]) -> None:
    key = {"Authorization": "Bearer dev-key"}
    request = urllib.request.Request(
        f"http://{broker.addresses['http']}/api/topics", headers=key
    )
    while True:
        assert reader.poll() is None, reader.communicate()
        with urllib.request.urlopen(request) as answer:  # noqa: S310 - of our own broker
            topics = json.load(answer)["topics"]
        if any(topic["subscriptions"] for topic in topics):
            return
        time.sleep(0.01)  # another process subscribes


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHON)
def test_python_examples_run(name: str, broker: Broker, tmp_path: Path) -> None:
    """Unchanged except for the port; it ends by itself, successfully."""
    script = tmp_path / "snippet.py"
    script.write_text(here(PYTHON[name].text, broker), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        text=True,
        timeout=SECONDS_MAX,
    )

    assert (0, "Traceback" in done.stderr) == (done.returncode, False), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, block in SHELL.items() if SPARK not in block.text])
def test_shell_commands_run(name: str, broker: Broker, old_log: Path, tmp_path: Path) -> None:
    """Each block exits with 0 and an empty stderr; `data` is a stopped broker's log."""
    shutil.copytree(old_log, tmp_path / "data")
    block = SHELL[name]
    following = list(SHELL.values())
    processes = []
    if block.text.startswith(BACKGROUND):
        processes.append(shell(block, broker, tmp_path))
        until_subscribed(broker, processes[0])
        block = following[following.index(block) + 1]
    processes.append(shell(block, broker, tmp_path))
    try:
        ends = [(p.communicate(timeout=SECONDS_MAX)[1], p.returncode) for p in processes]
    finally:
        for process in processes:
            process.kill()

    assert [("", 0)] * len(processes) == ends


@pytest.mark.parametrize("name", SHELL)
def test_make_targets_exist(name: str) -> None:
    """`make X` in a document is a rule of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    used = set(re.findall(r"^make ([a-z-]+)", SHELL[name].text, re.MULTILINE))

    assert set() == used - targets


@pytest.mark.parametrize("name", TOML)
def test_configuration_loads(name: str, tmp_path: Path) -> None:
    """A TOML block is a valid configuration, once the files that it names exist."""
    text = TOML[name].text
    for place in set(re.findall(r'"(/?[^"]+\.pem)"', text)):
        local = tmp_path / Path(place).name
        local.touch()
        text = text.replace(place, str(local))
    (tmp_path / "braidmq.toml").write_text(text, "utf-8")

    load(tmp_path / "braidmq.toml", {}, {}, keys_needed=False)


def test_every_block_of_ours_has_a_label() -> None:
    """So that it is clear whether it is meant to be run."""
    wrong = [b.name for b in blocks() if b.document in OURS and b.label not in LABELS]

    assert [] == wrong


def test_there_is_something_to_run() -> None:
    """If the pattern found no blocks, the tests would prove nothing."""
    runs = {block.document for block in [*PYTHON.values(), *SHELL.values()]}

    pages = {f"docs/protocols/{strand}.md" for strand in ("blip", "vibe")}

    assert {"README.md", "docs/operations.md", *pages} <= runs


@pytest.mark.parametrize("document", documents())
def test_links_work(document: str) -> None:
    """Every relative link leads to a file of the tree, its anchor to a heading in it."""
    for link in LINK.findall(read(document)):
        target, _, anchor = str(link).partition("#")
        if "://" in target:
            continue
        place = (ROOT / document).parent / target if target else ROOT / document
        assert place.exists(), link
        headings = re.findall(r"^#+ (.*)$", place.read_text("utf-8"), re.MULTILINE)
        anchors = {
            re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings
        }
        assert not anchor or anchor in anchors, link


@pytest.mark.parametrize("document", [*OURS, "CONTRIBUTING.md"])
def test_named_files_exist(document: str) -> None:
    """Tests and modules that a document mentions."""
    text = read(document)
    places = [ROOT / path for path in PATH.findall(text)]
    places += [
        ROOT / "src/braidmq" / path
        for path in MODULE.findall(text)
        if not path.startswith(("tests/", "src/", "docs/", "bench/"))
    ]

    assert [] == [str(path.relative_to(ROOT)) for path in places if not path.exists()]


def test_named_environment_variables_are_used() -> None:
    """The code reads every environment variable that a document mentions."""
    documented = {name for document in OURS for name in VARIABLE.findall(read(document))}
    code = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), ROOT / "setup.py"]
    known = {name for path in code for name in VARIABLE.findall(path.read_text("utf-8"))}

    assert {"BRAIDMQ_SIM_SEEDS", "BRAIDMQ_MODEL_EXAMPLES", "BRAIDMQ_HYPOTHESIS"} <= documented
    assert set() == documented - known


def test_the_frame_table_matches_the_codec() -> None:
    """Every frame type is in the table with its number."""
    row = re.compile(r"^\| (0x0\w) \| ([A-Z]+) \|", re.MULTILINE)
    documented = dict(row.findall(read("docs/protocols/blip.md")))
    known = {f"0x{frames.__dict__[name]:02X}": name for name in documented.values()}

    assert known == documented
    assert {f"0x{n:02X}" for n in range(frames.HELLO, frames.CREDIT + 1)} == documented.keys()


def test_every_refusal_of_the_broker_is_in_the_reply_table() -> None:
    """The table has every NACK text of the source."""
    paths = ("src/braidmq/wire/blip/session.py", "src/braidmq/server/strands/blip.py")
    source = "".join(map(read, paths))
    texts = set(
        re.findall(r'(?:BAD_REQUEST|UNAUTHORIZED|FORBIDDEN|REQUIRED), "([^"]+)"', source)
    )
    texts |= set(re.findall(r'frames\.\w+\): "([^"]+)"', source))
    texts |= set(re.findall(r'NOT_FOUND, "([^"]+)"', source.replace("\n", " ")))
    page = read("docs/protocols/blip.md")

    assert len(texts) > 8
    assert [] == [text for text in sorted(texts) if f"`{text}`" not in page]


VIBE: Final = "docs/protocols/vibe.md"


def test_the_command_table_matches_the_codec() -> None:
    """Every Vibe message type is in the table with its number and its name."""
    constant = re.compile(r"^([A-Z_]+): Final = (\d+)$", re.MULTILINE)
    source = read("src/braidmq/wire/vibe/messages.py")
    types = constant.findall(source[: source.index("VERSION: Final")])
    row = re.compile(r"^\| (\d+) \| (\w+) \| (?:client|broker|both) \|", re.MULTILINE)
    documented = [
        (re.sub("(?<=[a-z])(?=[A-Z])", "_", name).upper(), number)
        for number, name in row.findall(read(VIBE))
    ]

    assert ("ERROR", "99") in types
    assert types == documented


def test_the_drawn_frame_matches_the_codec() -> None:
    """Byte for byte, in dialect 1.1."""
    (drawn,) = re.findall(r"^((?:[0-9a-f]{2} +)+[0-9a-f]{2})\nlength", read(VIBE), re.MULTILINE)
    body = vibe_messages.write_body(
        vibe_messages.PUBLISH, "7", "demo", b'{"n":1}', with_errors=False
    )

    assert bytes.fromhex(drawn) == vibe_frames.encode(vibe_frames.DIALECT_1_1, body)


def test_every_error_code_is_on_the_page() -> None:
    """Exactly those that the session knows."""
    codes = {value for name, value in vars(session).items() if name == value}
    rows = re.findall(r"^\| (`[A-Z_`, ]+`) \|", read(VIBE), re.MULTILINE)

    assert "INVALID_MESSAGE" in codes
    assert codes == {code for row in rows for code in re.findall(r"[A-Z_]+", row)}


@pytest.mark.parametrize("names", [queue_options.MODES, queue_options.STRATEGIES])
def test_modes_and_strategies_have_their_numbers(names: tuple[str, ...]) -> None:
    """The numbers that clients send."""
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|", read(VIBE), re.MULTILINE)

    assert [(str(number), name) for number, name in enumerate(names)] == [
        row for row in rows if row[1] in names
    ]
