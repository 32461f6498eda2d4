"""Contact the broker once before Spark starts, which takes ten seconds.

A broker that has answered once may restart, and `patience` waits for it. If an address has
never answered, the address itself is probably wrong, so the run fails at once.
"""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from braidmq.columnar.flight.failures import UnauthenticatedError, UnavailableError
from braidmq.spark.brokers import endpoint_of, patiently
from braidmq.spark.pipelines.runs.failures import QueryFailedError

ANSWER_S_MAX: Final = 5.0
"""Long enough for a broker that was started at the same moment."""

_LEAD: Final = re.compile(r"failed to connect to all addresses; last error: [A-Z_]+: ")
_SOCKET: Final = re.compile(r"ipv[46]:\S+: ")
_ADVICE: Final = "is the broker running, is [flight] enabled, and is this its port?"
_KEY_PLACE: Final = "the key is given in --api-key or BRAIDMQ_API_KEY"


@dataclass(frozen=True)
class Address:
    """Where a pipeline's options say that its broker is, with the key for it."""

    path: Path | None
    endpoint: str | None
    api_key: str | None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Return the address in the options of a source or a sink."""
        path = given.get("path")
        place = None if path is None else Path(path)
        return cls(place, given.get("endpoint"), given.get("apiKey"))


def meet(name: str, given: Mapping[str, str], *, needed: bool) -> None:
    """Check that the broker named by the options of a source or a sink answers.

    A broker that is named by its directory need not run while its files are read, unless it is
    *needed* for something else.

    Raises:
        QueryFailedError: It does not answer, or refuses the key.
        ConfigError: The address is malformed.
    """
    address = Address.of(given)
    if address.api_key is None or not (needed or address.endpoint):
        return  # the parser of the options reports the ones that are missing

    def ask() -> None:
        with closing(endpoint_of(address)) as endpoint:
            endpoint.offsets()

    try:
        patiently(ask, ANSWER_S_MAX)
    except UnauthenticatedError as error:
        raise QueryFailedError(name, f"{error}; {_KEY_PLACE}") from error
    except UnavailableError as error:
        said = _SOCKET.sub("", _LEAD.sub("", str(error)))
        problem = said if address.endpoint is None else f"{said}; {_ADVICE}"
        raise QueryFailedError(name, problem) from error
