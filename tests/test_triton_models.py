"""Whole models on the Triton backend, interpreted: logits, a worker's hits, and where tensors are put."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.packed import PackedBatch
from hybridcache.storage import Storage
from hybridcache.worker import SamplingParams, Worker
from tests.kernel_cases import Piece, conv, gated_delta, mamba1, mamba2
from tests.worker_setup import tokens

if TYPE_CHECKING:
    from hybridcache.models.load import LoadedModel

triton_ops = pytest.importorskip("hybridcache.kernels.triton.ops", reason="needs triton: pip install triton")

Loaded = Callable[..., "LoadedModel"]


def logits(loaded: "LoadedModel", prompt: list[int], cuts: list[int]) -> Tensor:
    """Logits of the last token of each pass, the prompt computed from cut to cut."""
    storage = Storage(loaded.spec, 1 << 21, 16, memory="split", device=loaded.model.ops.device)
    table, rows = list(range(-(-len(prompt) // 16))), []
    for start, stop in zip([0, *cuts], [*cuts, len(prompt)], strict=True):
        batch = PackedBatch.build(
            [stop - start],
            slots=[0] if loaded.spec.checkpoint_bytes else None,
            num_computed=[start],
            block_tables=[table] if loaded.spec.kv_bytes_per_token else None,
            block_size=16,
        )
        ids = torch.from_numpy(np.array(prompt[start:stop], np.int64))
        rows.append(loaded.model(ids, batch, storage.states(), torch.tensor([stop - start - 1])))
    return torch.cat(rows)


FULL = [pytest.param(name, marks=pytest.mark.full) for name in ("jamba", "qwen3_next")]


@pytest.mark.parametrize("family", ["nemotron_h", *FULL])
def test_logits(loaded: Loaded, family: str) -> None:
    """A prefill of many tokens, a chunk, and a decoded token, against the exact backend of the CPU."""
    prompt, cuts = tokens(21), [13, 20]
    truth = logits(loaded(family), prompt, cuts)
    out = logits(loaded(family, "triton"), prompt, cuts)
    assert (out - truth).abs().max() <= 1e-4 * (1 + truth.abs().max())


def test_kernels_are_launched_on_the_device_of_their_tensors(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which need not be the current one, whether a model calls the operations or somebody else."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    model, current = loaded("nemotron_h", "triton"), ["another"]
    launched: list[tuple[str, str]] = []

    @contextmanager
    def device_of(x: Tensor) -> Iterator[None]:
        current.append(str(x.device))
        yield
        current.pop()

    run = interpreter.GridExecutor.__call__

    def spy(self: Any, *arguments: object, **constants: object) -> None:
        launched.append((self.fn.__name__, current[-1]))
        run(self, *arguments, **constants)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", spy)
    logits(model, tokens(3), [2])
    invariant = build_ops("triton", linear="invariant")
    for case in (conv(2, 3, 4), mamba1(2, 3, 4), mamba2(2, 1, 5, 9, 1), gated_delta(2, 1, 1, 7, 3)):
        for ops in (build_ops("triton"), invariant):
            case.run(ops, case.storage(1), (Piece(0, 2, 0),))
    invariant.linear(torch.ones(3, 4))(torch.ones(2, 4))
    names, devices = zip(*launched, strict=True)
    assert set(devices) == {"cpu"} and current == ["another"]
    device_code = [path.read_text() for path in (Path(triton_ops.__file__).parent / "device").glob("*.py")]
    kernels = {
        name for text in device_code for name in re.findall(r"^def (\w+)\([^)]*\) -> None:", text, re.M)
    }
    assert kernels - set(names) == {"rotate_heads"}  # which the attention of Nemotron-H does not have


def test_a_worker_answers_alike_cold_and_from_its_cache(checkpoint: Callable[[str], Path]) -> None:
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    folder, prompt = checkpoint("nemotron_h"), tokens(18)
    settings = {"budget_gb": 0.005, "backend": "triton", "memory": "split", "debug_poison": True}
    with Worker(folder, **settings) as worker:  # type: ignore[arg-type]
        cold, hit = (worker.generate([prompt], params)[0] for _ in range(2))
        assert (cold.num_cached_tokens, hit.num_cached_tokens) == (0, 17)
        assert hit.token_ids == cold.token_ids


def test_what_cannot_be(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="device is 'tpu'"):
        build_ops(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch sees no CUDA device"):
            build_ops(device="cuda")
    with pytest.raises(ValueError, match="use auto, torch, invariant"):
        build_ops("triton", linear="onednn")
    monkeypatch.setattr("hybridcache.kernels.triton.ops.interpreted", lambda: False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        build_ops("triton")
