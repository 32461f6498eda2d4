"""The dashboard's files: served as they are, by strict rules."""

import gzip

import pytest
from starlette.testclient import TestClient

from braidmq.admin import pages
from braidmq.admin.pages import CONTENT_SECURITY_POLICY, INDEX, load_pages


def test_the_index_is_at_the_root(client: TestClient) -> None:
    """It needs no key, because it holds no data."""
    answer = client.get("/")

    assert 200 == answer.status_code
    assert "text/html; charset=utf-8" == answer.headers["content-type"]
    assert load_pages()[INDEX].data == answer.content


def test_every_file_is_served_with_its_type_and_policy(client: TestClient) -> None:
    """Nothing inline, nothing from elsewhere."""
    for name, page in load_pages().items():
        answer = client.get(f"/static/{name}")

        assert (200, page.data) == (answer.status_code, answer.content)
        assert page.media_type == answer.headers["content-type"]
        assert CONTENT_SECURITY_POLICY == answer.headers["content-security-policy"]
        assert "nosniff" == answer.headers["x-content-type-options"]


def test_the_policy_allows_nothing_but_our_own_files() -> None:
    """Word by word, so that loosening it means changing this test."""
    directives = [part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; ")]

    assert [
        ["default-src", "'none'"],
        ["script-src", "'self'"],
        ["style-src", "'self'"],
        ["img-src", "'self'"],
        ["font-src", "'self'"],
        ["connect-src", "'self'"],
        ["manifest-src", "'self'"],
        ["base-uri", "'none'"],
        ["form-action", "'none'"],
        ["frame-ancestors", "'none'"],
        ["require-trusted-types-for", "'script'"],
        ["trusted-types", "'none'"],
    ] == directives


def test_a_file_of_another_kind_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that an editor or a packager leaves beside them are not published."""
    monkeypatch.delitem(pages.MEDIA_TYPES, ".svg")
    load_again = load_pages.__wrapped__

    assert {"favicon.svg"} == load_pages().keys() - load_again().keys()


def test_a_cached_file_is_not_sent_again(client: TestClient) -> None:
    """By its ETag, which changes with its content."""
    first = client.get("/")
    tag = first.headers["etag"]
    again = client.get("/", headers={"If-None-Match": f'"other", W/{tag}'})
    changed = client.get("/", headers={"If-None-Match": '"other"'})

    assert (304, b"", tag) == (again.status_code, again.content, again.headers["etag"])
    assert 200 == changed.status_code
    assert "no-cache" == first.headers["cache-control"]


def test_a_client_that_accepts_gzip_gets_it_compressed(client: TestClient) -> None:
    """The first page is small on the wire; other clients get it as it is."""
    packed = client.get("/", headers={"Accept-Encoding": "gzip"})
    plain = client.get("/", headers={"Accept-Encoding": "identity"})

    assert packed.content == plain.content
    assert "content-encoding" not in plain.headers
    page = load_pages()[INDEX]
    if page.packed:
        assert "gzip" == packed.headers["content-encoding"]
        assert page.data == gzip.decompress(page.packed)


@pytest.mark.parametrize(
    "path", ["/static/", "/static/none.js", "/static/..%2Fapp.py", "/static/%2e%2e", "/app.py"]
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    """A name is looked up among those that were loaded, never in the file system."""
    assert 404 == client.get(path).status_code
