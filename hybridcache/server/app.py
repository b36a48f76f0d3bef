"""The ASGI application over one worker."""

import asyncio

from fastapi import FastAPI

from hybridcache import __version__
from hybridcache.server.admin import admin_routes
from hybridcache.server.cache_view import cache_routes
from hybridcache.server.chats import chat_routes
from hybridcache.server.completions import completion_routes
from hybridcache.server.error_answers import ErrorAnswers
from hybridcache.server.gate import Gate
from hybridcache.server.messages import message_routes
from hybridcache.server.metrics import metric_routes
from hybridcache.server.models_list import ServedModels, model_routes
from hybridcache.server.settings import ServerSettings
from hybridcache.server.tokenizing import tokenizing_routes
from hybridcache.worker import Worker


def build_app(worker: Worker, settings: ServerSettings, *, ended: asyncio.Event | None = None) -> FastAPI:
    """All endpoints; once ``ended`` is set, no body is waited for any longer.

    Raises ValueError for a worker without a tokenizer, which could not give texts.
    """
    assert worker.codec is not None
    models = ServedModels(settings.model_names, worker.max_model_len, worker.vocab_size)
    answers = ErrorAnswers()
    app = FastAPI(title="hybridcache", version=__version__)
    for router in (
        completion_routes(worker, models),
        chat_routes(worker, models),
        message_routes(worker, models),
        model_routes(models),
        tokenizing_routes(worker, models),
        admin_routes(worker),
        cache_routes(worker, models),
        metric_routes(worker, settings.model_names[0], answers.counts),
    ):
        app.include_router(router)
    answers.add_to(app)
    app.add_middleware(Gate, settings=settings, answers=answers, ended=ended or asyncio.Event())
    return app
