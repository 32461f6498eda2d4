"""The health check of the container: exit 0 when the broker is ready, else 1.

    python ready.py 127.0.0.1:9100

Whether `[http]` has a certificate is a setting that can change, so this asks in the clear
first, and over TLS if that fails. The certificate is not verified: it names the broker as other
machines call it, the request stays on this machine, and no key is sent.
"""  # noqa: INP001 - copied into the image, and run there as a script

import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final

SECONDS_MAX: Final = 2
OK: Final = 200


def connections(address: str) -> tuple[HTTPConnection, HTTPConnection]:
    """Return the two ways to ask."""
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    return (
        HTTPConnection(address, timeout=SECONDS_MAX),
        HTTPSConnection(address, timeout=SECONDS_MAX, context=unverified),
    )


def is_ready(address: str) -> bool:
    """Tell whether the broker answers, and says that it takes work."""
    for connection in connections(address):
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == OK
        except (OSError, HTTPException):
            continue
        finally:
            connection.close()
    return False


if __name__ == "__main__":
    sys.exit(not is_ready(sys.argv[1]))
