"""Tutorials, how-tos and the five-minute start work, block by block."""

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.pages import FOLLOWED, WITH_SPARK, Reader, followed, typed
from tests.docs.test_snippets import ROOT, blocks, read


def test_a_page_may_wait_for_less_than_a_second() -> None:
    """A broken `sleep` might go unnoticed, as its wait is not always needed."""
    shell = typed("sleep 0.01", ("blip://nowhere", "http://nowhere"))
    done = subprocess.run(["bash", "-euc", shell], capture_output=True, check=False)

    assert (0, b"") == (done.returncode, done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", FOLLOWED)
def test_a_page_can_be_followed(document: str, tmp_path: Path) -> None:
    """Each block succeeds with the files that the earlier ones left."""
    if "openssl" in read(document) and shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    done = followed(document)
    with ExitStack() as stack:
        reader = Reader(tmp_path, stack)
        for block in done:
            reader.follow(block)

    assert len(done) >= 4


def test_every_page_that_starts_a_broker_is_followed() -> None:
    """A block that waits for a broker makes sense only within its page."""
    starting = {
        b.document
        for b in blocks("sh")
        if re.search(r"^(make run|braidmq serve)", b.text, re.MULTILINE)
    }

    assert starting - {"README.md", "docs/spark.md"} <= {*FOLLOWED, *WITH_SPARK}


def test_no_page_is_left_out_of_the_site() -> None:
    """Each is in a table of contents on the index page."""
    listed = set(re.findall(r"^([\w/-]+)$", read("docs/index.md"), re.MULTILINE))
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }

    assert pages - {"index"} == listed
