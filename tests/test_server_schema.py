"""Whatever the server's own description allows, and much that it does not, is answered without a mistake."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

from hybridcache.server.app import build_app
from hybridcache.server.settings import ServerSettings
from tests.worker_setup import MakeWorker, check_idle, make_worker

__all__ = ["make_worker"]


def statuses(operation: Any, mode: GenerationMode, examples: int) -> set[int]:
    """Of the answers to requests made up from a description."""
    seen = set()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 100,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(mode))
    def ask(case: Any) -> None:
        answer = case.call()
        seen.add(answer.status_code)
        case.validate_response(answer, checks=[not_a_server_error])

    ask()
    return seen


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=pytest.mark.full)])
def test_no_request_is_a_server_error(make_worker: MakeWorker, examples: int, mode: GenerationMode) -> None:
    # Short, so that an answer of any length that may be asked for ends soon.
    worker = make_worker(max_model_len=48)
    schema: Any = schemathesis.openapi.from_asgi("/openapi.json", build_app(worker, ServerSettings()))
    answered = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.POSITIVE or operation.method == "post":
            answered[operation.label] = statuses(operation, mode, examples)
    assert len(answered) >= (7 if mode is GenerationMode.NEGATIVE else 12), answered
    if mode is GenerationMode.NEGATIVE:
        assert all(400 in seen for seen in answered.values()), answered
    check_idle(worker)
