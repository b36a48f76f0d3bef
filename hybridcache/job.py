"""One submission: a prompt, its `n` requests, and the stream that takes their answers."""

from collections.abc import Callable, Sequence

from hybridcache.answer import Answer
from hybridcache.engine import Engine, StepOutput
from hybridcache.request import Request
from hybridcache.request_output import RequestOutput
from hybridcache.stream import Stream


class Job:
    """Lives in the engine's thread from `start` on."""

    __slots__ = ("stream", "_answers", "_on_end")

    def __init__(self, answers: Sequence[Answer], stream: Stream, on_end: Callable[[], None]) -> None:
        """``on_end`` is called once, before the stream says that the job has ended."""
        self.stream = stream
        self._answers = answers
        self._on_end = on_end

    @property
    def requests(self) -> list[Request]:
        """The `n` requests, the first one first."""
        return [answer.request for answer in self._answers]

    def start(self, engine: Engine) -> None:
        """Queue the requests, all or none. Raises what Engine.submit raises."""
        for request in self.requests:
            engine.submit(request)

    def take(self, output: StepOutput) -> None:
        """Pass on what a step did for one of the requests."""
        answer = self._answers[output.request.sample]
        answer.take(output)
        self._give(answer)

    def abort(self, engine: Engine) -> None:
        """End the requests that have not ended, and so the job."""
        ended = [answer for answer in self._answers if engine.abort(answer.request.id)]
        for answer in ended:
            self._give(answer)

    def fail(self, engine: Engine | None, error: BaseException) -> None:
        """End what has not ended, with an error."""
        if self.stream.ended:
            return
        if engine is not None:
            for request in self.requests:
                engine.abort(request.id)
        self._on_end()
        self.stream.fail(error)

    def _give(self, answer: Answer) -> None:
        chunk = answer.chunk()
        if chunk is not None:
            self.stream.num_cached_tokens = self.requests[0].hit
            self.stream.put(chunk)
        # Several may finish in one step: the output waits until each has given its last chunk.
        if not self.stream.ended and all(each.ended for each in self._answers):
            output = self._output()
            self._on_end()
            self.stream.finish(output)

    def _output(self) -> RequestOutput:
        first = self._answers[0].request
        firsts = [r.first_token_at for r in self.requests if r.first_token_at is not None]
        judged = first.params.prompt_logprobs is not None
        return RequestOutput(
            self.stream.request_id,
            first.prompt,
            first.num_prompt,
            first.hit,
            dict(first.lost),
            min(firsts) - first.arrival if firsts else None,
            [None, *first.prompt_choices] if judged else None,
            [answer.sample() for answer in self._answers],
        )
