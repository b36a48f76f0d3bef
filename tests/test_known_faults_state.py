"""Known faults of states: slot 0, no state at all, layers with any number of tensors."""

import pytest

from hybridcache.spec import ModelSpec
from tests.serving import KINDS, Serving, ToyLayer, joined, text, toy

RECURRENT = ["hybrid", "recurrent"]


@pytest.mark.parametrize("kind", RECURRENT)
def test_case_050_no_state_is_not_slot_zero(kind: str) -> None:
    """Slot 0 is a slot like any other; a request that restores nothing names none."""
    serving = Serving(KINDS[kind], admission="final_only")
    first = serving.begin(text(20))
    assert (first.slot, first.state_copy) == (0, None)
    assert serving.prefill(first)
    serving.end(first)
    cold = serving.begin(text(20, 1))
    warm = serving.begin(joined(text(20), text(3, 2)))
    assert cold.state_copy is None
    assert warm.state_copy == (0, warm.slot)
    assert len({0, cold.slot, warm.slot}) == 3
    for lease in (cold, warm):
        assert serving.prefill(lease)
        serving.check()
        serving.end(lease)
    serving.check_idle()


def test_case_050_a_model_without_recurrent_layers_has_no_slot() -> None:
    """No slot, no copy, no checkpoint."""
    serving = Serving(KINDS["attention"])
    serving.serve(text(20))
    lease = serving.begin(joined(text(20), text(3, 2)))
    assert (lease.slot, lease.state_copy, lease.planned) == (None, None, [])


@pytest.mark.parametrize("tensors", [(64,), (8, 56), (1, 2, 3, 58)])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("kv", [0, 1, 6])
def test_case_095_a_checkpoint_is_whatever_the_layers_declare(
    tensors: tuple[int, ...], dtype: str, kv: int
) -> None:
    """1, 2 and 4 tensors of different shapes and dtypes; with and without attention."""
    layers = (ToyLayer(kv=kv), ToyLayer(state=tensors, dtype=dtype), ToyLayer(state=(5,)))
    spec = ModelSpec("toy", layers, d_model=8, vocab_size=16)
    assert spec.checkpoint_bytes == 64 * (4 if dtype == "float32" else 1) + 5
    assert spec.kv_bytes_per_token == kv
    serving = Serving(spec)
    serving.serve(text(40), text(5, 1))
    assert serving.cache.usage().state.used == 2 * spec.checkpoint_bytes
    assert serving.serve(joined(text(40), text(5, 1))).hit == 44
    serving.check_idle()


def test_case_095_a_model_without_state() -> None:
    """Attention alone: no checkpoint is counted, any position resumes."""
    serving = Serving(toy(kv=3, state=0))
    serving.serve(text(40), text(5, 1))
    assert serving.cache.usage().state.used == 0
    assert serving.serve(joined(text(29), text(5, 2))).hit == 29
