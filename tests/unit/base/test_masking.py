"""Text from a peer as one short, safe line."""

from braidmq.base.masking import MASK, TEXT_CHARS_MAX, escaped


def test_text_is_masked_cut_and_printable() -> None:
    """A key at the cut is not recognised afterwards, so it is masked first."""
    key = "bk_" + 43 * "k"

    assert f"{MASK} \\n" == escaped(f"{key} \n")
    assert 10 * "a" + "…" == escaped(11 * "a", chars_max=10)
    assert "bk_" not in escaped((TEXT_CHARS_MAX - 10) * "." + key)
