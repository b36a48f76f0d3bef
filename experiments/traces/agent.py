"""Tool-calling agents: a long shared prompt, then a context that only grows."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.shared_text import shared_text
from hybridcache.experiments.traces.workload import Call, WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings(WorkloadSettings):
    """About 15 agents at a time, of some 6,000 tokens each."""

    requests: int = 800
    sessions_per_second: float = 0.15
    tool_prompts: int = 2  # different agents
    tool_prompt_tokens: float = 2500.0
    popularity_exponent: float = 1.0  # Zipf, of the tool prompts
    task_tokens: float = 300.0
    steps: float = 12.0  # mean; geometric
    action_tokens: float = 100.0
    observation_tokens: float = 350.0
    tool_seconds: float = 6.0
    seconds_per_action_token: float = 0.02
    context_tokens: int = 24_000  # the loop ends before an input longer than this


class Agent:
    """See the module."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        """One task."""
        s = self.settings
        tools = sampler.popular(s.tool_prompts, s.popularity_exponent)
        history = [
            shared_text(seed, 0, tools, s.tool_prompt_tokens, s.vocab_size),
            sampler.message(s.task_tokens),
        ]
        wait = 0.0
        for _ in range(sampler.count(s.steps)):
            action = sampler.message(s.action_tokens)
            yield Call(wait, list(history), action)
            history += [action, sampler.message(s.observation_tokens)]
            if sum(map(len, history)) > s.context_tokens:
                return
            wait = s.seconds_per_action_token * len(action) + sampler.seconds(s.tool_seconds)
