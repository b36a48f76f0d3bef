"""One answer as it grows."""

from hybridcache.engine import StepOutput
from hybridcache.request import Choice, FinishReason, Request
from hybridcache.request_output import Chunk, Sample
from hybridcache.text_stream import TextStream


class Answer:
    """Follows one request; cuts what the engine gives into what the client is given."""

    __slots__ = ("request", "_text", "_choices", "_num_tokens", "_num_characters", "ended")

    def __init__(self, request: Request, text: TextStream | None) -> None:
        """``text`` is the request's reader; None without a tokenizer."""
        self.request = request
        self._text = text
        self._choices: list[Choice] = []
        self._num_tokens = 0
        """Given in chunks so far."""
        self._num_characters = 0
        self.ended = False
        """Whether the last chunk was made."""

    def take(self, output: StepOutput) -> None:
        """Take in what a step did for the request."""
        if output.token is not None and output.choice is not None:
            self._choices.append(output.choice)

    def chunk(self) -> Chunk | None:
        """What is new for the client; None when nothing is."""
        request, text = self.request, self._text
        if request.finished and text is not None and request.finish_reason is not FinishReason.ABORT:
            text.close()
        stop = self._num_given()
        reason = None if request.finish_reason is None else request.finish_reason.value
        new_text = "" if text is None else text.text(self._num_characters)
        if self.ended or (stop == self._num_tokens and not new_text and reason is None):
            return None
        start, self._num_tokens = self._num_tokens, stop
        self._num_characters += len(new_text)
        self.ended = reason is not None
        return Chunk(request.sample, request.output[start:stop], new_text, self._choices[start:stop], reason)

    def sample(self) -> Sample:
        """The whole answer, once it has ended."""
        request, text = self.request, self._text
        assert request.finish_reason is not None, request
        stop = self._num_given()
        return Sample(
            request.output[:stop],
            len(request.output),
            None if text is None else text.text(),
            request.finish_reason.value,
            None if text is None else text.stopped_at,
            None if request.params.logprobs is None else self._choices[:stop],
        )

    def _num_given(self) -> int:
        return len(self.request.output) if self._text is None else self._text.num_given
