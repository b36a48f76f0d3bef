"""Bodies of requests: strict about types, frank about fields that change nothing."""

import logging
from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from hybridcache.server.errors import ApiError

log = logging.getLogger(__name__)

T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list in a body. One wrong item is told: a million of them would hold up the event loop for a minute."""

MOST_NAMED = 16
"""Fields that a header or a log line names at most."""


class Body(BaseModel):
    """Fields that are declared mean what they say; the others are told apart by `ignored`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Known fields that are not served, with the values that ask for nothing (null always does)."""
    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Known fields that are accepted and need nothing done."""

    def ignored(self) -> list[str]:
        """Names of unknown fields, which are ignored. Raises ApiError naming what is not supported."""
        extra = self.model_extra or {}
        for name, neutral in self.unsupported.items():
            if extra.get(name) is not None and extra[name] not in neutral:
                message = f"{name} is not supported: leave it out"
                raise ApiError(400, message, param=name, code="unsupported_field")
        names = sorted(extra.keys() - self.unsupported.keys() - self.without_effect)
        if names:
            log.warning("unknown fields are ignored: %s", told(names))
        return names


def told(names: list[str]) -> str:
    """Names from a client in one line of plain ASCII."""
    more = ", ..." if len(names) > MOST_NAMED else ""
    return ", ".join(ascii(name)[1:-1][:64] for name in names[:MOST_NAMED]) + more
