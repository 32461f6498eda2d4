"""Command lines in blocks that are to be looked at: who follows a page takes them from here."""

from tests.docs.test_snippets import blocks


def told(document: str, label: str = "text") -> list[list[str]]:
    """Return the commands of a page, block by block, without what is said beside them."""
    texts = [block.text for block in blocks(label) if block.document == document]
    return [commands(text) for text in texts]


def commands(text: str) -> list[str]:
    """Return the lines of a block: continued ones as one, empty ones and comments left out."""
    lines = (
        line.partition(" #")[0].rstrip() for line in text.replace("\\\n", " ").splitlines()
    )
    return [line for line in lines if line]
