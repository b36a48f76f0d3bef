"""The ASGI application over one worker."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hybridcache import __version__
from hybridcache.server.admin import admin_routes
from hybridcache.server.cache_view import cache_routes
from hybridcache.server.chats import chat_routes
from hybridcache.server.client import GONE_STATUS, ClientGone
from hybridcache.server.completions import completion_routes
from hybridcache.server.errors import ApiError, failed, is_anthropic
from hybridcache.server.gate import Gate
from hybridcache.server.messages import message_routes
from hybridcache.server.metrics import metric_routes
from hybridcache.server.models_list import ServedModels, model_routes
from hybridcache.server.settings import ServerSettings
from hybridcache.server.tokenizing import tokenizing_routes
from hybridcache.worker import Worker


def build_app(worker: Worker, settings: ServerSettings) -> FastAPI:
    """All endpoints. Raises ValueError for a worker without a tokenizer, which could not give texts."""
    assert worker.codec is not None
    models = ServedModels(settings.model_names, worker.max_model_len, worker.vocab_size)
    app = FastAPI(title="hybridcache", version=__version__)
    for router in (
        completion_routes(worker, models),
        chat_routes(worker, models),
        message_routes(worker, models),
        model_routes(models),
        tokenizing_routes(worker, models),
        admin_routes(worker),
        cache_routes(worker),
        metric_routes(worker, settings.model_names[0]),
    ):
        app.include_router(router)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_body)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(Exception, _on_mistake)
    app.add_middleware(Gate, settings=settings)
    return app


def _answer(request: Request, error: ApiError) -> Response:
    body = error.body(anthropic=is_anthropic(request.url.path))
    return JSONResponse(body, error.status, headers=error.headers)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _on_invalid_body(request: Request, error: Exception) -> Response:
    """The first thing that is wrong with a body, in one line."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        message, path = f"the body is no JSON text: {first['ctx']['error']} at character {path[0]}", []
    elif path:
        message = f"{'.'.join(path)}: {first['msg']}"
    else:
        message = "the body is no JSON object: send one, with Content-Type: application/json"
    return _answer(request, ApiError(400, message, param=path[0] if path else None, code="invalid_body"))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(request, ApiError(error.status_code, str(error.detail), headers=error.headers))


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=GONE_STATUS)


async def _on_mistake(request: Request, error: Exception) -> Response:
    return _answer(request, failed(error))
