"""Calls of the worker that would hold up the event loop, in a thread of their own."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from hybridcache.server.errors import refused

T = TypeVar("T")


async def off_loop(act: Callable[[], T]) -> T:
    """What ``act`` gives. Raises ApiError for whatever it raises."""
    try:
        return await asyncio.to_thread(act)
    except Exception as error:
        raise refused(error) from error
