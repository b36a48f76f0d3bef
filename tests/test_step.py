"""What a scheduled sequence may be."""

import numpy as np
import pytest

from hybridcache.lease import StateEmit
from hybridcache.step import ScheduledSequence, StepResult

TOKENS = np.arange(5, dtype=np.uint32)


def test_state_and_end_follow_from_the_start() -> None:
    first = ScheduledSequence(TOKENS, slot=3)
    later = ScheduledSequence(TOKENS, 7, slot=3, emits=(StateEmit(8, 1), StateEmit(12, 2)), num_logits=5)
    assert (first.stop, first.has_state) == (5, False)
    assert (later.stop, later.has_state) == (12, True)
    assert not ScheduledSequence(TOKENS, 7).has_state, "a model without recurrent layers has none"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": TOKENS[:0]}, "0 tokens from 0"),
        ({"start": -1}, "5 tokens from -1"),
        ({"slot": -1}, "slot -1: slots count from 0"),
        ({"num_logits": 6}, "logits of 6 tokens; the step has 5"),
        ({"num_logits": -1}, "logits of -1 tokens"),
        ({"start": 3, "emits": (StateEmit(3, 0),)}, r"positions ascend within \(3, 8\]"),
        ({"start": 3, "emits": (StateEmit(9, 0),)}, r"positions ascend within \(3, 8\]"),
        ({"emits": (StateEmit(2, 0), StateEmit(2, 1))}, "ascend"),
        ({"slot": None, "emits": (StateEmit(2, 0),)}, "without a running slot"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"tokens": TOKENS, "slot": 1, **values}
    with pytest.raises(ValueError, match=message):
        ScheduledSequence(**settings)  # type: ignore[arg-type]


def test_logits_are_found_by_sequence() -> None:
    logits = np.arange(8, dtype=np.float32).reshape(4, 2)
    result = StepResult(np.array([1, -1, 1]), logits, np.array([0, 1, 1, 4]))
    assert [result.logits_of(i).tolist() for i in range(3)] == [[[0, 1]], [], [[2, 3], [4, 5], [6, 7]]]
