"""Command lines in `text` blocks, for the tests that follow a page."""

from tests.docs.test_snippets import blocks


def commands_in(document: str, label: str = "text") -> list[list[str]]:
    """Return the commands of a page, block by block, without comments."""
    texts = [block.text for block in blocks(label) if block.document == document]
    return [commands(text) for text in texts]


def commands(text: str) -> list[str]:
    """Return the lines of a block, with continued lines joined, without comments."""
    lines = (
        line.partition(" #")[0].rstrip() for line in text.replace("\\\n", " ").splitlines()
    )
    return [line for line in lines if line]
