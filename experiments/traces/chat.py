"""Chats: a few shared system prompts, and turns that repeat all that was said before."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.shared_text import shared_text
from hybridcache.experiments.traces.workload import Call, WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings(WorkloadSettings):
    """About 60 chats at a time, of some 1,500 tokens each."""

    sessions_per_second: float = 0.5
    system_prompts: int = 4  # different ones; a few are used by most chats
    system_tokens: float = 400.0
    popularity_exponent: float = 1.0  # Zipf, of the system prompts
    turns: float = 5.0  # mean; geometric
    question_tokens: float = 60.0
    answer_tokens: float = 250.0
    think_seconds: float = 20.0  # reading and typing, before each further turn
    seconds_per_answer_token: float = 0.02


class Chat:
    """See the module."""

    def __init__(self, settings: ChatSettings) -> None:
        self.settings = settings

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        """One chat."""
        s = self.settings
        system = sampler.popular(s.system_prompts, s.popularity_exponent)
        history = [shared_text(seed, 0, system, s.system_tokens, s.vocab_size)]
        wait = 0.0
        for _ in range(sampler.count(s.turns)):
            history.append(sampler.message(s.question_tokens))
            answer = sampler.message(s.answer_tokens)
            yield Call(wait, list(history), answer)
            history.append(answer)
            wait = s.seconds_per_answer_token * len(answer) + sampler.seconds(s.think_seconds)
