"""The section of the GPU check that runs a whole model of Nemotron-H 8B's dimensions with random weights."""

import json
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from hybridcache.experiments.gpu_bench import BLOCK_SIZE, TINY, Bench, Row
from hybridcache.kernels.ops import Linear
from hybridcache.kernels.packed import PackedBatch
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.models.preset_configs import TINY_CONFIGS
from hybridcache.storage import Storage

PATTERN = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
"""Layers of Nemotron-H 8B: Mamba-2, MLP, attention."""
KINDS = {"M": "linear_attention", "-": "mlp", "*": "full_attention"}
SAFETENSORS_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}
WRITTEN_ELEMENTS = 1 << 18
"""Tensors up to this size are written as ones; larger ones are holes in the file, filled on the device."""


def model(bench: Bench) -> None:
    """Seconds to the first token: a cold prompt, a cached one with a few new tokens, and those alone."""
    s = bench.sizes
    with tempfile.TemporaryDirectory() as folder:
        write_hollow_checkpoint(Path(folder), tiny=s is TINY)
        loaded = load_random(Path(folder), bench)
    spec = loaded.spec
    need = spec.kv_bytes_per_token * (s.prompt + s.suffix + BLOCK_SIZE) + spec.checkpoint_bytes
    storage = Storage(spec, 2 * need, BLOCK_SIZE, device=bench.device, memory="split")
    table = list(range(-(-(s.prompt + s.suffix) // BLOCK_SIZE)))
    prompt = torch.randint(3, spec.vocab_size, (s.prompt + s.suffix,))

    def first_token(start: int, stop: int) -> Tensor:
        batch = PackedBatch.build(
            [stop - start], slots=[0], num_computed=[start], block_tables=[table], block_size=BLOCK_SIZE
        )
        last = torch.tensor([stop - start - 1])
        return loaded.model(prompt[start:stop], batch, storage.states(), last).argmax(-1).cpu()

    cold = bench.seconds(lambda: first_token(0, s.prompt))
    hit = bench.seconds(lambda: first_token(s.prompt, s.prompt + s.suffix))
    short = bench.seconds(lambda: first_token(0, s.suffix))
    step = bench.seconds(lambda: first_token(s.prompt, s.prompt + 1))
    for name, seconds in (
        (f"cold, {s.prompt} tokens", cold),
        (f"{s.prompt} cached + {s.suffix} new", hit),
        (f"cold, {s.suffix} tokens", short),
        (f"one token behind {s.prompt}", step),
    ):
        bench.rows.append(Row("model", name, seconds * 1e3, "ms"))
    bench.rows.append(Row("model", "hit against a cold prompt of its new tokens", hit / short, "times", 1.3))


def write_hollow_checkpoint(folder: Path, *, tiny: bool) -> None:
    """config.json, and a safetensors file of every weight's name and shape, most of which take no disk."""
    from transformers import AutoConfig, AutoModelForCausalLM

    layers = [KINDS[letter] for letter in ("M-*" if tiny else PATTERN)]
    # The class's own dimensions are those of the 8B model.
    fields = {**(TINY_CONFIGS["nemotron_h"] if tiny else {}), "layers_block_type": layers}
    config = AutoConfig.for_model("nemotron_h", **fields)
    (folder / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    with torch.device("meta"):
        empty: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    header: dict[str, object] = {}
    written: list[tuple[int, bytes]] = []
    end = 0
    for name, tensor in empty.state_dict().items():
        size = tensor.numel() * tensor.element_size()
        kind = SAFETENSORS_NAMES[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        if tensor.numel() <= WRITTEN_ELEMENTS:
            ones = torch.ones(tensor.numel(), dtype=tensor.dtype).view(torch.uint8)
            written.append((end, ones.numpy().tobytes()))
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        base = file.tell()
        for offset, data in written:
            file.seek(base + offset)
            file.write(data)
        file.truncate(base + end)


def load_random(folder: Path, bench: Bench) -> LoadedModel:
    """The checkpoint loaded as any other, its matrices and its embedding then drawn on the device."""
    ops, pack = bench.ops, bench.ops.linear

    def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
        drawn = torch.empty(weight.shape, dtype=weight.dtype, device=ops.device)
        return pack(drawn.normal_(0, weight.shape[1] ** -0.5), bias)

    ops.linear = linear  # type: ignore[method-assign]
    try:
        loaded = load_model(folder, ops=ops, dtype=str(bench.dtype).removeprefix("torch."))
    finally:
        ops.linear = pack  # type: ignore[method-assign]
    loaded.model.embedding.normal_(0, 1)
    return loaded
