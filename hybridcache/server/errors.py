"""Errors as clients get them: OpenAI's form, and Anthropic's below /v1/messages."""

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from hybridcache.worker import QueueFull, RequestTooLarge, WorkerClosed

log = logging.getLogger(__name__)

MOST_RETRY_SECONDS = 60
"""What a client is told to wait at most while the queue is full: how fast it empties is a guess."""

OPENAI_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    503: "service_unavailable_error",
}
ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}

CODES = (
    "context_length_exceeded", "queue_full", "invalid_body", "unsupported_field", "unsupported_content",
    "model_not_found", "invalid_api_key", "body_too_large", "engine_unavailable", "engine_error",
)  # fmt: skip
"""Words that programs can tell errors apart by."""
REASONS = (*CODES[:-2], "invalid_request_error", "not_found_error")
"""Those of requests that were not taken; by its type what has no code."""


class ApiError(Exception):
    """What a request is answered instead of a result."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``param`` is the field at fault; ``code`` one of CODES."""
        assert code is None or code in CODES, code
        super().__init__(message)
        self.status = status
        self.message = _encodable(message)
        self.param = None if param is None else _encodable(param)
        self.code = code
        self.headers = dict(headers or {})

    @property
    def reason(self) -> str:
        """The code, or the type where there is none."""
        return self.code or OPENAI_TYPES.get(self.status, "invalid_request_error")

    def body(self, *, anthropic: bool = False) -> dict[str, Any]:
        """The JSON object of the answer."""
        types = ANTHROPIC_TYPES if anthropic else OPENAI_TYPES
        kind = types.get(self.status, "invalid_request_error")
        if anthropic:
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def is_anthropic(path: str) -> bool:
    """Whether the answers of a path have Anthropic's form."""
    return path.startswith("/v1/messages")


def refused(error: Exception) -> ApiError:
    """Why the worker did not take a request."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestTooLarge):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, QueueFull):
        seconds = min(max(math.ceil(error.retry_after_seconds), 1), MOST_RETRY_SECONDS)
        return ApiError(429, str(error), code="queue_full", headers={"Retry-After": str(seconds)})
    if isinstance(error, ValueError):
        named = re.match(r"(\w+)(\[\w+\])?(=| has )", str(error))
        return ApiError(400, str(error), param=named and named[1])
    return failed(error)


def failed(error: Exception) -> ApiError:
    """Why a request that was taken has no result."""
    if isinstance(error, ApiError | RequestTooLarge):
        return refused(error)
    if isinstance(error, WorkerClosed):
        return ApiError(503, str(error), code="engine_unavailable")
    log.error("a request failed", exc_info=error)
    return ApiError(500, f"the request failed: {error!r}", code="engine_error")


def _encodable(text: str) -> str:
    """``text`` with lone surrogates, which JSON can name and UTF-8 cannot write, spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()
