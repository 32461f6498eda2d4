"""Loss: an error, or recorded and skipped."""

import pytest

from braidmq.columnar.loss import RETAINED, DataLossError, Loss, Losses


def test_loss_is_an_error_that_says_which_ids() -> None:
    """The error names the path, the ids and the reason."""
    with pytest.raises(
        DataLossError, match="data: the ids 3 to 9 are lost: retention"
    ) as caught:
        Losses("data", fail=True).note(3, 9, RETAINED)
    assert Loss(3, 9, RETAINED) == caught.value.loss


def test_loss_that_is_skipped_is_logged_and_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A skip is never silent."""
    noted: list[Loss] = []
    Losses("data", fail=False, noted=noted).note(3, 9, RETAINED)

    assert [Loss(3, 9, RETAINED)] == noted
    assert [f"data: skipped the lost ids 3 to 9: {RETAINED}"] == caplog.messages


def test_no_ids_are_no_loss() -> None:
    """An empty range is not lost."""
    losses = Losses("data", fail=True)
    losses.note(4, 3, RETAINED)

    assert [] == losses.noted
