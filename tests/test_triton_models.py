"""Whole models on the Triton backend, interpreted: logits, a worker's hits, and where tensors are put."""

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hybridcache.kernels.cuda.build import Kernels, Variant, variants
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.ops import Ops
from hybridcache.kernels.packed import PackedBatch
from hybridcache.models.load import load_model
from hybridcache.models.preset_configs import TINY_CONFIGS
from hybridcache.storage import Storage
from hybridcache.worker import SamplingParams, Worker
from tests.kernel_cases import Piece, conv, gated_delta, mamba1, mamba2
from tests.worker_setup import tokens

if TYPE_CHECKING:
    from hybridcache.models.load import LoadedModel

cuda_ops = pytest.importorskip("hybridcache.kernels.cuda.ops", reason="needs triton: pip install triton")
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


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """No operation inside reads tensors of two devices, unless it is a copy."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.dim()]
        assert len({x.device for x in read}) <= 1 or "copy" in str(func), func
        return func(*args, **(kwargs or {}))


class NoKernels(Kernels):
    """Keeps the names of what would be launched."""

    device_type = "meta"

    def __init__(self, launched: list[str]) -> None:
        super().__init__((), "")
        self.launched = launched

    def run(self, variant: Variant, device: torch.device, *arguments: ctypes.Structure) -> None:
        assert variant in variants() and device.type == "meta"
        self.launched.append(variant.source)


@pytest.mark.parametrize("family", TINY_CONFIGS)
@pytest.mark.parametrize(
    ("backend", "linear"), [("triton", "auto"), ("triton", "invariant"), ("cuda", "auto")]
)
def test_all_that_a_model_reads_is_on_its_device(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str, backend: str, linear: str
) -> None:
    """A device that has no numbers stands for a GPU: prefills, decoding and no token, in one batch."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    meta, launched = torch.device("meta"), list[str]()

    def launch(executor: Any, *arguments: object, **constants: object) -> None:
        assert {x.device for x in arguments if isinstance(x, Tensor)} == {meta}
        assert all(size >= 1 for size in executor.grid)
        launched.append(executor.fn.__name__)

    def experts(
        ops: Ops, x: Tensor, shares: Tensor, chosen: Tensor, parts: Any, act: Any, *, gated: bool
    ) -> Tensor:
        assert {x.device, shares.device, chosen.device} == {meta}  # how many rows each takes is not known
        into, out = parts[0]
        narrow: Tensor = out(ops.activate(into(x), act, gated=gated))
        return narrow

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)
    monkeypatch.setattr(triton_ops.TritonOps, "experts", experts)
    given = triton_ops.TritonOps(meta, linear)
    if backend == "cuda":
        given = cuda_ops.CudaOps(meta, linear, NoKernels(launched))
    loaded = load_model(checkpoint(family), ops=given, dtype="bfloat16")
    storage = Storage(loaded.spec, 1 << 21, 16, memory="split", device=meta)
    recurrent, attends = loaded.spec.checkpoint_bytes > 0, loaded.spec.kv_bytes_per_token > 0
    batch = PackedBatch.build(
        [20, 1, 1, 0, 3],
        slots=range(5) if recurrent else None,
        num_computed=[0, 5, 0, 3, 17],
        emits=[[(16, 5)], [], [(1, 6)], [], []] if recurrent else None,
        block_tables=[[0, 1], [2], [3], [4], [5, 6]] if attends else None,
    )
    with OneDevice():  # type: ignore[no-untyped-call]
        out = loaded.model(
            torch.zeros(25, dtype=torch.int64), batch, storage.states(), torch.tensor([19, 24])
        )
    assert out.device == meta and out.shape[0] == 2 and len(launched) > 10


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
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ValueError, match=r"capability 7\.5; the kernels need 8\.0: use .* backend=reference"):
        triton_ops.TritonOps(torch.device("cuda", 0))
    monkeypatch.setattr("hybridcache.kernels.triton.ops.interpreted", lambda: False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        build_ops("triton")
