"""The answers to requests that get no result, each counted by its reason."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hybridcache.server.client import GONE_STATUS, ClientGone
from hybridcache.server.errors import REASONS, ApiError, failed, is_anthropic


class ErrorAnswers:
    """Makes them, for one server. An error inside a stream that has begun is not among them."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(REASONS, 0)
        """Answers by `ApiError.reason`, of the reasons that are the request's, or the full queue's."""

    def add_to(self, app: FastAPI) -> None:
        """Let what ``app``'s endpoints raise be answered here."""
        app.add_exception_handler(ApiError, self._on_api_error)
        app.add_exception_handler(RequestValidationError, self._on_invalid_body)
        app.add_exception_handler(HTTPException, self._on_http_error)
        app.add_exception_handler(ClientGone, self._on_client_gone)
        app.add_exception_handler(Exception, self._on_mistake)

    def answer(self, path: str, error: ApiError) -> Response:
        """The answer of an endpoint."""
        if error.reason in self.counts:
            self.counts[error.reason] += 1
        return JSONResponse(error.body(anthropic=is_anthropic(path)), error.status, headers=error.headers)

    async def _on_api_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return self.answer(request.url.path, error)

    async def _on_invalid_body(self, request: Request, error: Exception) -> Response:
        """The first thing that is wrong with a body, in one line."""
        assert isinstance(error, RequestValidationError)
        # Of a field that may be of several types, what is wrong with the one that it is most alike.
        first = max(error.errors(), key=lambda found: len(found["loc"]))
        path = [str(part) for part in first["loc"][1:]]
        if first["type"] == "json_invalid":
            message, path = f"the body is no JSON text: {first['ctx']['error']} at character {path[0]}", []
        elif path:
            message = f"{'.'.join(path)}: {first['msg']}"
        elif first["type"] == "string_unicode":
            message = "the body has a name that is no Unicode"
        else:
            message = "the body is no JSON object: send one, with Content-Type: application/json"
        found = ApiError(400, message, param=path[0] if path else None, code="invalid_body")
        return self.answer(request.url.path, found)

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {413: "body_too_large", 503: "engine_unavailable"}.get(error.status_code)
        message = str(error.detail)
        if error.status_code == 400 and isinstance(error.__cause__, ValueError | RecursionError):
            # Of the body, which is read before any endpoint: bytes that are no text, lists within lists
            # within lists, numbers of too many digits.
            code, message = "invalid_body", f"the body cannot be read as JSON: {error.__cause__}"
        found = ApiError(error.status_code, message, code=code, headers=error.headers)
        return self.answer(request.url.path, found)

    async def _on_client_gone(self, request: Request, error: Exception) -> Response:
        return Response(status_code=GONE_STATUS)

    async def _on_mistake(self, request: Request, error: Exception) -> Response:
        return self.answer(request.url.path, failed(error))
