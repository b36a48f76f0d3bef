"""Usage blocks."""

from collections.abc import Sequence
from typing import Any

from hybridcache.worker import RequestOutput


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """OpenAI's: a prompt counts once, however many answers it has."""
    prompt = sum(output.num_prompt_tokens for output in outputs)
    cached = sum(output.num_cached_tokens for output in outputs)
    completion = sum(sample.num_generated_tokens for output in outputs for sample in output.samples)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
