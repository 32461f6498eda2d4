"""The dashboard's files, served as they are in the package: no build step, no external sources.

    GET /                  index.html
    GET /static/{file}     any other file

They are read once, and kept plain and compressed. They need no key: they hold no data.
"""

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import NO_KEY, Endpoint
from braidmq.admin.http.parameters import Name

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""What a page may load and do: its own files and this API, nothing inline or foreign.
Trusted types make the browser refuse any attempt to turn text into markup or script."""

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""Files of other kinds are not served."""

INDEX: Final = "index.html"


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, ready to be sent."""

    media_type: str
    etag: str
    data: bytes
    packed: bytes  # empty if compression gains nothing


@functools.cache
def load_pages() -> dict[str, PageFile]:
    """Return the files of the package's `static` directory by their names."""
    pages: dict[str, PageFile] = {}
    for entry in files("braidmq.admin").joinpath("static").iterdir():
        media_type = MEDIA_TYPES.get("." + entry.name.rpartition(".")[2])
        if media_type is not None and entry.is_file():
            data = entry.read_bytes()
            packed = gzip.compress(data, mtime=0)  # no time: one ETag stands for these bytes
            etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            is_worth_it = len(packed) < len(data)
            pages[entry.name] = PageFile(media_type, etag, data, packed if is_worth_it else b"")
    return pages


def page_endpoints(pages: dict[str, PageFile]) -> list[Endpoint]:
    """Return `/` and `/static/…`."""

    async def show_index(request: Request) -> Response:
        return _sent(request, pages.get(INDEX))

    async def show(request: Request) -> Response:
        return _sent(request, pages.get(request.path_params["file"]))

    return [
        Endpoint(
            method="GET",
            path="/",
            handler=show_index,
            summary="The dashboard.",
            tag="pages",
            media="text/html",
            key=NO_KEY,
            refusals=(404,),
        ),
        Endpoint(
            method="GET",
            path="/static/{file}",
            handler=show,
            summary="A file of the dashboard.",
            tag="pages",
            names=(Name("file", "The file's name."),),
            media="*/*",
            key=NO_KEY,
            refusals=(404,),
        ),
    ]


def _sent(request: Request, page: PageFile | None) -> Response:
    if page is None:
        raise HTTPException(404, "no such file")
    headers = {
        # Revalidated at every use, so that an upgraded broker shows its own page.
        "Cache-Control": "no-cache",
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "Content-Type": page.media_type,
        "ETag": page.etag,
        "Vary": "Accept-Encoding",
    }
    known = request.headers.get("if-none-match", "")
    if page.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    if page.packed and "gzip" in request.headers.get("accept-encoding", "").lower():
        return Response(page.packed, headers={**headers, "Content-Encoding": "gzip"})
    return Response(page.data, headers=headers)
