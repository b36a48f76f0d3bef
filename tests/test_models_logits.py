"""The same logits as transformers' one-pass prefill, and the same greedy continuations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from hybridcache.models.families import FAMILIES
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.models.presets import write_checkpoint
from tests.hybrid_runs import BLOCK_SIZE, Memory, Part, greedy, prompt_of, quick_for, run

TOLERANCE = 1e-4
"""Of logits of size 3."""
LENGTHS = [1, 4, 65, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3, 63, 64, 200, 1_000))]
Loaded = Callable[..., LoadedModel]
Oracle = Callable[[str], Any]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def cold(model: Any, tokens: Tensor) -> Tensor:
    """Logits of transformers' one-pass prefill."""
    with torch.inference_mode():
        logits: Tensor = model(tokens[None], use_cache=False).logits[0].float()
    return logits


def prefill(loaded: LoadedModel, tokens: Tensor) -> Tensor:
    """Logits of ours, over storage full of NaN."""
    memory = Memory(loaded.spec, num_slots=2, num_blocks=64)
    (logits,) = run(loaded, memory, Part(tokens, slot=1, blocks=range(-(-len(tokens) // BLOCK_SIZE))))
    return logits


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, length: int, loaded: Loaded, oracle: Oracle) -> None:
    tokens = prompt_of(loaded(family).spec, length)
    wanted = cold(oracle(family), tokens)
    assert float(wanted.abs().max()) > 2
    for backend in ("cpu", "reference") if length == 65 else ("cpu",):
        got = prefill(loaded(family, backend), tokens)
        assert float((got - wanted).abs().max()) < TOLERANCE, backend


@quick_for("bamba", "nemotron_h")
def test_greedy_continuations_are_those_of_transformers(family: str, loaded: Loaded, oracle: Oracle) -> None:
    ours = loaded(family)
    prompt = prompt_of(ours.spec, 21)
    answer = greedy(ours, Memory(ours.spec), prompt, 64)
    # One cold pass over prompt and answer: by induction its choice at every position is what greedy decoding
    # with cold passes would have fed.
    choices = cold(oracle(family), torch.cat([prompt, answer[:-1]])).argmax(-1)
    assert torch.equal(answer, choices[len(prompt) - 1 :])
    assert len(set(answer.tolist())) > 16


@pytest.mark.parametrize("family", ["nemotron_h"])
def test_sharded_checkpoints_are_the_same_model(family: str, loaded: Loaded, tmp_path: Path) -> None:
    folder = write_checkpoint(family, tmp_path, seed=1, max_shard_bytes=300_000)
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    whole = loaded(family)
    parts = load_model(folder, ops=whole.model.ops, name=whole.spec.name)
    assert parts.spec.fingerprint == whole.spec.fingerprint
    tokens = prompt_of(whole.spec, 70)
    assert torch.equal(prefill(parts, tokens), prefill(whole, tokens))


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", {"head_dim": 32, "num_key_value_heads": 1}),
    "bamba with biases": ("bamba", {"mamba_proj_bias": True, "mamba_conv_bias": False, "mlp_bias": True}),
    "bamba with bounded steps": ("bamba", {"time_step_limit": [0.01, 0.1]}),
    "granite without experts": ("granitemoehybrid", {"num_local_experts": 0}),
    "granite without positions": ("granitemoehybrid", {"position_embedding_type": None}),
    "nemotron with groups of experts": (
        "nemotron_h",
        {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "norm_topk_prob": False},
    ),
    "nemotron with a latent width": ("nemotron_h", {"moe_latent_size": 32}),
    "mamba2 with biases": ("mamba2", {"use_bias": True, "use_conv_bias": False}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_options_of_a_family(variant: str, loaded: Loaded, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    folder = write_checkpoint(family, tmp_path, seed=2, **overrides)
    ours = load_model(folder, ops=loaded(family).model.ops)
    tokens = prompt_of(ours.spec, 50)
    wanted = cold(AutoModelForCausalLM.from_pretrained(folder).eval(), tokens)
    assert float((prefill(ours, tokens) - wanted).abs().max()) < TOLERANCE


@quick_for()
def test_bfloat16_is_as_close_to_float32_as_transformers_is(
    family: str, loaded: Loaded, oracle: Oracle, checkpoint: Callable[[str], Path]
) -> None:
    ours = load_model(checkpoint(family), ops=loaded(family).model.ops, dtype="bfloat16")
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint(family), dtype=torch.bfloat16).eval()
    tokens = prompt_of(ours.spec, 65)
    truth = cold(oracle(family), tokens)
    got = (prefill(ours, tokens) - truth).abs()
    known = (cold(theirs, tokens) - truth).abs()
    assert float(got.mean()) < 1.5 * float(known.mean())
