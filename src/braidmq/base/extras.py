"""The extras of the package: what each brings, and what to type when it is missing.

    pip install braidmq              the client library, for Blip and Vibe, and the command line
    pip install 'braidmq[qumbed]'    and Qumbed: QUIC, sealed payloads, discovery
    pip install 'braidmq[server]'    and the broker, with Qumbed
    pip install 'braidmq[columnar]'  the log as Arrow tables, and Flight where there is a broker
    pip install 'braidmq[spark]'     and the pipelines
    pip install 'braidmq[all]'       everything

In a clone of the repository the commands of the Makefile install what they need.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from braidmq.base.errors import EXIT_USAGE, BraidError

PACKAGES: Final = {
    "qumbed": frozenset(
        {"OpenSSL", "aioquic", "cryptography", "ifaddr", "jsonschema_rs", "nacl", "zeroconf"}
    ),
    "server": frozenset(
        {
            "argon2",
            "h11",
            "prometheus_client",
            "pydantic",
            "pydantic_core",
            "starlette",
            "structlog",
            "uvicorn",
            "uvloop",
            "yaml",
        }
    ),
    "columnar": frozenset({"numpy", "pyarrow"}),
    "spark": frozenset({"deltalake", "py4j", "pyspark"}),
}
"""What is imported from the packages of each extra, without those of the extras it includes."""

_MAKE: Final = {
    "qumbed": "make run",
    "server": "make run",
    "columnar": "make demo",
    "spark": "make demo",
}


class MissingExtraError(BraidError, ModuleNotFoundError):
    """Something needs a package of an extra that is not installed."""

    exit_code = EXIT_USAGE

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: {how_to_get(extra)}")
        self.name = package
        self.extra = extra


def how_to_get(extra: str) -> str:
    """Return what to type for an extra: in a clone, or where a wheel is installed."""
    return f"{_MAKE[extra]}, or pip install 'braidmq[{extra}]'"


def extra_of(package: str | None) -> str | None:
    """Return the extra that brings a package, or None if none does."""
    name = (package or "").partition(".")[0]
    return next((extra for extra, names in PACKAGES.items() if name in names), None)


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Turn a failed import into the error that names *extra*; *what* begins its text.

    Raises:
        MissingExtraError: A package of it is not installed.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        if extra_of(error.name) is None:
            raise  # a mistake of ours, or a package that is broken
        raise MissingExtraError(what, str(error.name), extra) from None
