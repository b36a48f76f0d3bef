"""Modelled seconds: what they depend on, and published measurements beside them."""

import numpy as np
import pytest

from hybridcache.hardware import HardwareProfile
from hybridcache.latency import LatencyModel
from hybridcache.lease import BlockCopy, StateCopy, StateEmit
from hybridcache.spec import ModelSpec
from hybridcache.step import ScheduledSequence, StepBatch
from hybridcache.weight_counts import WeightCounts
from tests.simulated import config_group, profile

HYBRID = ModelSpec.from_config(config_group("model", "nemotron_h_8b"))
LLAMA_7B = ModelSpec.from_hf(
    {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "torch_dtype": "float16",
    }
)  # fmt: skip


def part(count: int, start: int = 0, *, logits: int = 1, spec: ModelSpec = HYBRID) -> ScheduledSequence:
    blocks = np.arange(-(-(start + count) // 16)) if spec.kv_bytes_per_token else np.arange(0)
    slot = 0 if spec.checkpoint_bytes else None
    return ScheduledSequence(np.ones(count, dtype=np.uint32), start, slot, blocks, num_logits=logits)


def seconds(*parts: ScheduledSequence, hardware: str = "h100", **changes: float) -> float:
    return LatencyModel(HYBRID, profile(hardware, **changes)).seconds(StepBatch(parts))


def test_more_tokens_take_longer() -> None:
    prompts = [seconds(part(n)) for n in (1, 64, 256, 512, 1_024, 4_096, 16_384)]
    assert prompts == sorted(prompts)
    assert prompts[-1] > 10 * prompts[-3] > 10 * prompts[0] / 10
    batches = [seconds(*[part(1, 1_000)] * n) for n in (1, 8, 64, 256)]
    assert batches == sorted(batches)
    assert batches[3] < 20 * batches[0], "the weights are read once for all"


def test_cached_tokens_cost_less() -> None:
    whole = seconds(part(8_192))
    hits = [seconds(part(8_192 - hit, hit)) for hit in (0, 2_048, 4_096, 8_000, 8_191)]
    assert hits[0] == whole
    assert hits == sorted(hits, reverse=True)
    assert hits[3] < whole / 5
    # The past is not free: its KV is read, and attended to.
    assert hits[3] > seconds(part(192))


@pytest.mark.parametrize("count", [1, 8_192])
def test_faster_hardware_is_faster(count: int) -> None:
    a100, h100, h200 = (seconds(part(count, 4_096), hardware=name) for name in ("a100", "h100", "h200"))
    assert a100 > h100 >= h200 > 0
    assert (h100 > h200) == (count == 1), "the H200 has the same FLOP/s and faster memory"
    assert seconds(part(count), hardware="none") == 0
    assert seconds(part(count), hardware="this_cpu") > a100


def test_overhead_is_paid_once_a_step() -> None:
    bare = seconds(part(100), step_overhead_seconds=0.0)
    assert seconds(part(100), step_overhead_seconds=0.25) == pytest.approx(0.25 + bare)
    assert seconds(step_overhead_seconds=0.25) == 0.25


def test_the_cost_is_the_sum_of_what_is_documented() -> None:
    model = LatencyModel(HYBRID, profile("h100"))
    sequence = ScheduledSequence(
        np.ones(40, dtype=np.uint32), 100, 3, np.arange(9), 120, [StateEmit(110, 4), StateEmit(140, 5)], 2
    )
    step = StepBatch([sequence], [StateCopy(1, 2)], [BlockCopy(1, 2, 7)])
    cost = model.cost(step)
    assert cost.flops == HYBRID.flops(100, 140) + 2 * HYBRID.head_flops
    weights = WeightCounts.of(HYBRID)
    kv = HYBRID.kv_bytes_per_token * (140 + 20 + 2 * 7)
    state = HYBRID.checkpoint_bytes * (1 + 1 + 2 + 2)
    assert cost.num_bytes == 2 * (weights.dense + weights.head) + kv + state
    assert model.copy_seconds(3) == pytest.approx(6 * HYBRID.checkpoint_bytes / (3.35e12 * 0.7))


def test_windows_bound_what_is_read() -> None:
    mapping = {
        "name": "windowed", "d_model": 64, "vocab_size": 100, "kv_dtype": "bfloat16", "ssm_dtype": "float32",
        "conv_dtype": "bfloat16", "conv_width_stored": 3,
        "layers": {
            "near": {"kind": "attention", "num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "window": 50}
        },
        "pattern": ["near"],
    }  # fmt: skip
    spec = ModelSpec.from_config(mapping)
    model = LatencyModel(spec, profile("h100"))
    costs = [model.cost(StepBatch([part(1, start, spec=spec)])).num_bytes for start in (10, 49, 60, 5_000)]
    assert costs[0] < costs[1] == costs[2] == costs[3]


@pytest.mark.parametrize(
    ("name", "weights"),
    # In 1e9, as the models' cards say.
    [
        ("bamba_9b", 9.78), ("falcon_h1_7b", 7.59), ("jamba_1_5_mini", 51.6), ("nemotron_h_8b", 8.10),
        ("qwen3_next_80b", 79.7),
    ],
)  # fmt: skip
def test_weights_are_those_of_the_published_models(name: str, weights: float) -> None:
    spec = ModelSpec.from_config(config_group("model", name))
    assert WeightCounts.of(spec).total / 1e9 == pytest.approx(weights, rel=0.01)


def test_experts_are_read_as_they_are_needed() -> None:
    counts = WeightCounts.of(ModelSpec.from_config(config_group("model", "qwen3_next_80b")))
    one, few, many = (counts.read(tokens, 0) for tokens in (1, 16, 2_048))
    (experts,) = counts.experts
    assert one - counts.dense == pytest.approx(48 * 10 * experts.weights)
    assert few - counts.dense < 16 * (one - counts.dense)
    assert many == pytest.approx(counts.total - 2 * counts.head, rel=1e-3)
    assert counts.read(1, 1) == one + counts.head


# Llama 7B in 16 bits on one A100. First tokens and throughputs: TensorRT-LLM, docs/source/performance.md of
# versions 0.5 and 0.6.1; decoding alone: README of gpt-fast. The model overlaps reading and arithmetic wholly
# and knows nothing of small products, so a prompt of 128 tokens comes out a third too fast.
A100 = LatencyModel(LLAMA_7B, profile("a100"))


def llama(count: int, start: int = 0, batch: int = 1) -> float:
    """Seconds of a step in which ``batch`` sequences compute so many tokens each."""
    return A100.seconds(StepBatch([part(count, start, spec=LLAMA_7B)] * batch))


def test_published_first_tokens() -> None:
    assert llama(2_048) == pytest.approx(0.133, rel=0.1)
    assert 0.6 * 0.016 < llama(128) < 0.016


def test_published_decoding() -> None:
    assert 1 / llama(1, 100) == pytest.approx(104.9, rel=0.1)


@pytest.mark.parametrize(
    ("batch", "prompt", "answer", "tokens_per_second"),
    [(384, 128, 128, 5_586), (60, 128, 2_048, 1_928), (52, 2_048, 128, 591)],
)
def test_published_throughput(batch: int, prompt: int, answer: int, tokens_per_second: float) -> None:
    total = llama(prompt, 0, batch) + (answer - 1) * llama(1, prompt + answer // 2, batch)
    assert batch * answer / total == pytest.approx(tokens_per_second, rel=0.2)


def test_profiles_are_checked() -> None:
    good = config_group("hardware", "h100")
    for key, value, says in [
        ("dtype", "float64", "no peak_flops"),
        ("dtype", "float7", "unknown"),
        ("bytes_per_second", 0, "above 0"),
        ("bytes_per_second", "fast", "not a number"),
        ("compute_fraction", 1.5, "outside"),
        ("memory_fraction", 0, "outside"),
        ("step_overhead_seconds", -1, "at least 0"),
        ("peak_flops", 3, "by dtype"),
        ("peak_flops", {"bfloat16": -1.0}, "above 0"),
        ("cores", 3, "unknown keys"),
        ("source", None, "missing keys"),
    ]:
        with pytest.raises(ValueError, match=says):
            HardwareProfile.from_config(good | {key: value})
