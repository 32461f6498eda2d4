"""The pages of the reference that are made from the code: commands, settings, metrics.

    python docs/generate.py           write them; `make docs` does it first
    python docs/generate.py --check   say which are not what the code says, and fail

They are kept in the repository, so that they can be read without building the site; a test
compares them with the code. What they say beyond names and defaults is written elsewhere, once.
"""

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer

from braidmq.admin.http.exposition import MetricsPage
from braidmq.admin.metrics import MetricValues
from braidmq.cli.main import app
from braidmq.server.config.loading import known_keys

PLACE: Final = Path(__file__).resolve().parent / "reference"
NOTE: Final = "<!-- Made by docs/generate.py from the code; edits here are lost. -->"

_ABOUT_COMMANDS: Final = (
    "Look up any command with its arguments and options. Every command has `--help`, and "
    "ends with one line `error: …` on stderr and an exit "
    "code when it fails: 2 for a value that cannot be used, else 1, or what "
    "[operations](../operations.md#start-and-stop) says of the log's own codes. Tables "
    "are aligned on a terminal, tab-separated in a pipe, and JSON with `--json`. Colours "
    "and bars are for terminals; `NO_COLOR` leaves colours out. `braidmq "
    "--install-completion` sets up the shell that it is typed in, and `braidmq completion "
    "SHELL` prints what a package or an image would install; names of topics and queues "
    "are completed when a broker answers."
)
_ABOUT_PLACES: Final = """\
## Which broker a command talks to

The first of these that is given:

1. `--url`
2. the variable `BRAIDMQ_URL`
3. the variable `BRAIDMQ_CONTEXT`, the name of a context
4. the context in use, which `braidmq context use NAME` has chosen
5. the context `dev`: the broker of `braidmq serve --dev`, on its default ports

`bench` leaves out the last two, and starts a broker of its own: a benchmark floods a broker, so
it has to be asked for.

A context is a name for a broker. Its address and key are in a file of mode 0600 below
`$XDG_CONFIG_HOME/braidmq`, or else `~/.config/braidmq`; no command prints the key again.

```text
braidmq context add prod blips://broker.example.org:5555 --key-file prod.key
braidmq context use prod
braidmq context list
BRAIDMQ_CONTEXT=dev braidmq topics
```

One address serves every command, whatever its scheme. A command that needs HTTP, given
`blip://`, `vibe://` or `qumbed://`, takes the context's `--http` address; else, of a broker on
this machine, what `run.json` says, in `BRAIDMQ_DATA_DIR` or in `data`; else port 9100 of the
same host. A command that speaks a strand, given `http://`, asks the broker for the strand's
port. If no broker is found, the error says what was tried."""
_ABOUT_PIPES: Final = r"""## Messages in pipes

`braidmq publish TOPIC --lines` publishes each line of its input as it comes, without its line
break, and prints at the end how many messages are confirmed. The input ends it, or Ctrl-C: what
was sent by then is still waited for. A line that is refused ends it with an error that has its
number.

`braidmq subscribe TOPIC` prints payloads, in a pipe byte for byte. `--format` prints what its
template says, one message a line:

| in the template | is |
| --- | --- |
| `{topic}`, `{payload}`, `{qos}`, `{size}` | topic, payload as text, QoS, number of bytes |
| `{id}` | the message's id: on Vibe the one that its publisher chose |
| `{timestamp}` | when the broker accepted it, on Vibe and Qumbed |
| `{attempt}`, `{headers}`, `{header.NAME}` | Vibe: its delivery, headers as JSON, one of them |
| `{sender}`, `{schema}` | the public key that sealed it, the schema: on Qumbed |
| `{{`, `}}`, `\t`, `\n`, `\\` | a brace, a tab, a line break, a backslash |

A field that a message does not have is empty. What is not printable is escaped, as `\x1b`, so a
message is one line, whatever it holds. `--format json` is `--json`.

```text
tail -f access.log | braidmq publish access --lines
braidmq subscribe access --format '{timestamp} {payload}' --url vibe://dev-key@127.0.0.1:2925
```"""
_ABOUT_SETTINGS: Final = (
    "Find the name, the default and the environment variable of any setting. "
    "[configuration.md](../configuration.md) explains each of them, and the order in which "
    "file, environment and flags win. Keys of "
    "[`[delivery]`](../configuration.md#delivery) that a strand may override for itself "
    "are in its section, without a default."
)
_ABOUT_METRICS: Final = (
    "Find out what each metric counts. `GET /metrics` answers in Prometheus' text format; "
    "on loopback it is open, else it "
    "needs a key. Beside these there are `braidmq_process_…`, the process's own processor "
    "time, memory and file descriptors. The names without `braidmq_` are those of BlipMQ, "
    "for dashboards that were made for it. Which of them are worth an alert is in "
    "[operations](../operations.md#metrics)."
)
_LABEL: Final = re.compile(r"^(\w+)\{(\w+)=", re.MULTILINE)
_IN_FILE_ONLY: Final = "auth."
_STRANDS: Final = ("blip", "vibe", "qumbed")


def pages() -> dict[str, str]:
    """Return the text of each page, by the name of its file."""
    return {
        "command-line.md": _commands(),
        "metrics.md": _metrics(),
        "settings.md": _settings(),
    }


# Commands, as typer knows them.


def _commands() -> str:
    root: Any = typer.main.get_command(app)
    parts = [
        "# The command line",
        NOTE,
        _ABOUT_COMMANDS,
        _ABOUT_PLACES,
        _ABOUT_PIPES,
    ]
    for path, command in _leaves(root, "braidmq"):
        parts += [f"## `{path}`", _sentence(command.help), _usage(path, command)]
        rows = [
            _row(parameter)
            for parameter in command.params
            if parameter.name != "help" and not getattr(parameter, "hidden", False)
        ]
        if rows:
            parts.append("\n".join(["| | |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own click
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name in sorted(inner):
        yield from _leaves(inner[name], f"{path} {name}")


def _usage(path: str, command: Any) -> str:  # noqa: ANN401 - as above
    words = [_words(p) for p in command.params if p.param_type_name == "argument"]
    options = any(p.param_type_name == "option" for p in command.params)
    return f"```text\n{' '.join([path, *words, *(['[OPTIONS]'] if options else [])])}\n```"


def _words(argument: Any) -> str:  # noqa: ANN401 - as above
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _row(parameter: Any) -> str:  # noqa: ANN401 - as above
    if parameter.param_type_name == "argument":
        name = f"`{_words(parameter)}`"
    else:
        spelled = [*parameter.opts, *parameter.secondary_opts]
        value = "" if getattr(parameter, "is_flag", False) else f" {_value(parameter)}"
        name = ", ".join(f"`{word}{value}`" for word in spelled)
    text = _sentence(parameter.help) if parameter.help else ""
    default = parameter.default
    if (
        isinstance(default, str | int | float)
        and not isinstance(default, bool)
        and default != ""
    ):
        text = f"{text} Default: `{getattr(default, 'value', default)}`.".strip()
    if parameter.required and parameter.param_type_name == "option":
        text = f"{text} Required.".strip()
    return f"| {_cell(name)} | {_cell(text)} |"


def _value(option: Any) -> str:  # noqa: ANN401 - as above
    return str(option.metavar or option.name.upper())


def _sentence(text: str) -> str:
    words = " ".join(text.split())
    return words if words.endswith((".", "?", ")")) else f"{words}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# Settings, as the models of the configuration have them.


def _settings() -> str:
    parts = [
        "# All settings at a glance",
        NOTE,
        _ABOUT_SETTINGS,
        "| key | default | environment |",
    ]
    rows = ["| --- | --- | --- |"]
    for key, default in known_keys().items():
        variable = "BRAIDMQ_" + key.replace(".", "__").upper()
        shown = "" if key.startswith(_IN_FILE_ONLY) else f"`{variable}`"
        rows.append(f"| `{key}` | {_default(default)} | {shown} |")
    parts[-1] = "\n".join([parts[-1], *rows])
    return "\n\n".join(parts) + "\n"


def _default(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and value.is_integer():
        return f"`{value:.0f}`"
    if isinstance(value, int | float | str | Path):
        return f"`{value}`"
    return "" if isinstance(value, list | tuple) else "required"


# Metrics, as the page shows them.


def _everything() -> MetricValues:
    """Return numbers with at least one value for every label."""
    values = MetricValues()
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if isinstance(value, Mapping) and not value:
            setattr(values, field.name, {"some": 1})
    return values


def _metrics() -> str:
    text = MetricsPage(_everything).render().decode("utf-8")
    labels = dict(_LABEL.findall(text))
    parts = [
        "# Metrics",
        NOTE,
        _ABOUT_METRICS,
    ]
    rows = ["| name | type | meaning |", "| --- | --- | --- |"]
    for name, kind, meaning in _families(text):
        label = next((labels[n] for n in (name, f"{name}_count") if n in labels), "")
        shown = f"{name}{{{label}}}" if label and label != "le" else name
        rows.append(f"| `{shown}` | {kind} | {_cell(meaning)} |")
    return "\n\n".join([*parts, "\n".join(rows)]) + "\n"


def _families(text: str) -> Iterator[tuple[str, str, str]]:
    meanings = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        if not name.startswith("braidmq_process_"):
            yield name, kind, meanings.get(name, "")


def main(arguments: list[str]) -> int:
    """Write the pages, or say which are stale."""
    stale = []
    for name, text in pages().items():
        path = PLACE / name
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
    for name in stale:
        print(f"docs/reference/{name}: {'is stale' if '--check' in arguments else 'written'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
