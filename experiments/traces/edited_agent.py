"""Tool-calling agents that clear old observations from their context when it has grown long."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridcache.experiments.traces.agent import AgentSettings
from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.shared_text import shared_text, shared_texts
from hybridcache.experiments.traces.workload import Call

_TOOLS, _NOTICE = 0, 1  # shelves of shared texts


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedAgentSettings(AgentSettings):
    """About 15 agents at a time, of some 8,000 tokens each."""

    sessions_per_second: float = 0.05
    steps: float = 40.0
    edit_tokens: int = 10_000  # an input longer than this has its old observations cleared
    kept_observations: int = 8  # the last ones, which stay
    notice_tokens: int = 10  # exactly, in the place of each that was cleared


class EditedAgent:
    """See the module."""

    def __init__(self, settings: EditedAgentSettings) -> None:
        self.settings = settings

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        """One task. The input after observations were cleared leaves the path where the first was."""
        s = self.settings
        tools = sampler.popular(s.tool_prompts, s.popularity_exponent)
        notice = shared_texts(seed, _NOTICE, 0, s.vocab_size).text(s.notice_tokens)
        history = [
            shared_text(seed, _TOOLS, tools, s.tool_prompt_tokens, s.vocab_size),
            sampler.message(s.task_tokens),
        ]
        observations: list[int] = []  # places in the history, oldest first
        wait = 0.0
        for _ in range(sampler.count(s.steps)):
            action = sampler.message(s.action_tokens)
            yield Call(wait, list(history), action)
            history += [action, sampler.message(s.observation_tokens)]
            observations.append(len(history) - 1)
            if sum(map(len, history)) > s.edit_tokens:
                for place in observations[: -s.kept_observations]:
                    history[place] = notice
            if sum(map(len, history)) > s.context_tokens:
                return
            wait = s.seconds_per_action_token * len(action) + sampler.seconds(s.tool_seconds)
