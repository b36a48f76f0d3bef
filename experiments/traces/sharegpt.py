"""Read ShareGPT JSON: conversations as text, given tokens and arrivals here.

One JSON array of objects with `conversations`, a list of turns with `from` (human or user, gpt or assistant,
system) and `value` (text). The format states no times: conversations start by a Poisson process, an answer
takes a time for each token, and the next question comes after it has been typed at 90 words a minute.
"""

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from hybridcache.experiments.traces.files import check_file
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.thinning import kept_requests
from hybridcache.models.chat_tokens import TOKENIZER_FOLDER
from hybridcache.tokens import TokenIds

_USERS = ("human", "user")
_MODELS = ("gpt", "assistant", "chatgpt", "bard", "bing")
_OTHERS = ("system", "tool", "function")
_ROLE_TOKENS = 1  # tokens put before each message, one for its role
_ARRIVALS = 3  # second name of the random stream, as in generated.py
_GZIP_MAGIC = b"\x1f\x8b"


class _Turn(NamedTuple):
    role: str
    text: str


class ShareGptTrace:
    """A request for each answer of each conversation; its input is all that was said before.

    A message is one token for its role and the tokens of its text. Texts are kept, tokens are not.
    """

    def __init__(
        self,
        path: str | None,
        every_kth_session: int = 1,
        limit: int | None = None,
        *,
        seed: int = 0,
        sessions_per_second: float = 1.0,
        words_per_minute: float = 90.0,
        seconds_per_answer_token: float = 0.02,
        tokenizer: str | None = None,
    ) -> None:
        """Reads, checks and orders the whole file.

        Args:
            path: the file, plain or gzip.
            every_kth_session: keep conversations 0, k, 2k, ... in order of their start.
            limit: then keep the first requests.
            seed: of the arrivals.
            sessions_per_second: Poisson rate at which conversations start.
            words_per_minute: typed by users.
            seconds_per_answer_token: time an answer takes.
            tokenizer: a tokenizer.json; None: the presets' own, which knows 4,096 tokens and so needs more
                of them for a text than those of large models.

        Raises:
            ValueError, OSError: `path` is no such file; the message names path, conversation and turn.
        """
        for name, value in (
            ("sessions_per_second", sessions_per_second),
            ("words_per_minute", words_per_minute),
            ("seconds_per_answer_token", seconds_per_answer_token),
        ):
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise ValueError(f"trace.{name} must be a positive number, got {value!r}")
        self._tokenizer = read_tokenizer(tokenizer)
        self._talks = _conversations(check_file(path))
        if not self._talks:
            raise ValueError(f"{path}: holds no conversation with an answer; fetch it again")
        gaps = Sampler(seed, _ARRIVALS, vocab_size=1)
        start = 0.0
        arrivals, sessions, places = array("d"), array("q"), array("q")
        for session, talk in enumerate(self._talks):
            at, answered = start, False
            for place, turn in enumerate(talk):
                if turn.role == "user" and answered:  # the first question is what starts a conversation
                    at += 60 * len(turn.text.split()) / words_per_minute
                elif turn.role == "assistant":
                    answered = True
                    arrivals.append(at)
                    sessions.append(session)
                    places.append(place)
                    at += seconds_per_answer_token * len(self._encode(turn))
            start += gaps.seconds(1 / sessions_per_second)
        order = np.argsort(np.frombuffer(arrivals), kind="stable")
        self._arrivals = np.frombuffer(arrivals)[order]
        self._arrivals -= self._arrivals[0]
        self._sessions = np.frombuffer(sessions, np.int64)[order]
        self._places = np.frombuffer(places, np.int64)[order]
        self._kept = kept_requests(self._sessions, every_kth_session, limit)
        self.name = Path(str(path)).name.removesuffix(".gz").removesuffix(".json")
        self.num_requests = len(self._kept)
        self.has_outputs = True

    def __iter__(self) -> Iterator[TraceRequest]:
        for row in self._kept.tolist():
            talk, place = self._talks[self._sessions[row]], int(self._places[row])
            parts = [self._encode(turn) for turn in talk[: place + 1]]
            ends = np.cumsum([len(part) for part in parts], dtype=np.int64)[:-1]
            # The role's token before the answer is part of the input, as in every chat template.
            num_prompt = int(ends[-1]) + _ROLE_TOKENS if len(ends) else _ROLE_TOKENS
            boundaries = np.append(ends, num_prompt)
            turn = sum(said.role == "assistant" for said in talk[:place])
            yield TraceRequest(
                float(self._arrivals[row]), int(self._sessions[row]), turn, np.concatenate(parts), num_prompt,
                boundaries,
            )  # fmt: skip

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids; those of roles have none."""
        known = self._tokenizer.get_vocab_size()
        text: str = self._tokenizer.decode([token for token in tokens if token < known])
        return text

    def _encode(self, turn: _Turn) -> TokenIds:
        """[1 + n] uint32, n of at least 1: ids beyond the tokenizer's for the roles, then the text."""
        role = self._tokenizer.get_vocab_size() + ("user", "assistant", "system").index(turn.role)
        ids: Sequence[int] = self._tokenizer.encode(turn.text, add_special_tokens=False).ids
        return np.array([role, *(ids or [role])], np.uint32)


def read_tokenizer(path: str | None) -> Tokenizer:
    """A tokenizer.json; None: the presets' own. Raises ValueError and OSError naming the file."""
    own = str(TOKENIZER_FOLDER / "tokenizer.json")
    name = own if path is None else check_file(path, "trace.tokenizer")
    try:
        return Tokenizer.from_file(name)
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"trace.tokenizer={name}: no tokenizer.json ({error})") from error


def _conversations(path: str) -> list[list[_Turn]]:
    """Those with an answer. ValueError for anything that is no list of conversations."""
    data = Path(path).read_bytes()
    try:
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        rows = json.loads(data)
    except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); a ShareGPT file is one array of objects") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path}: must be a JSON array of conversations, got {type(rows).__name__}")
    talks = []
    for number, row in enumerate(rows):
        said = row.get("conversations", row.get("items")) if isinstance(row, dict) else None
        if not isinstance(said, list):
            raise ValueError(f"{path}, conversation {number}: has no list 'conversations'; drop it")
        talk = [_turn(f"{path}, conversation {number}, turn {i}", turn) for i, turn in enumerate(said)]
        talk = [turn for turn in talk if turn.text]
        if any(turn.role == "assistant" for turn in talk):
            talks.append(talk)
    return talks


def _turn(where: str, turn: object) -> _Turn:
    if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
        raise ValueError(f"{where}: must be an object with 'from' and 'value', both texts; drop it")
    try:
        turn["value"].encode()
    except UnicodeEncodeError as error:  # JSON can name half a character
        raise ValueError(f"{where}: is no Unicode ({error.reason} at character {error.start})") from error
    role = turn.get("from")
    if role in _USERS:
        return _Turn("user", turn["value"])
    if role in _MODELS:
        return _Turn("assistant", turn["value"])
    if role in _OTHERS:
        return _Turn("system", turn["value"])
    known = ", ".join((*_USERS, *_MODELS, *_OTHERS))
    raise ValueError(f"{where}: 'from' is {role!r:.40}; the roles are {known}")
