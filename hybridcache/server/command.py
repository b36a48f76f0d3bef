"""The `hybridcache serve` command: what can be told it, and its errors as one line."""

import argparse
import logging
import os

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
KEY_VARIABLE = "HYBRIDCACHE_API_KEY"


def add_arguments(serve: argparse.ArgumentParser) -> None:
    """Declare them."""
    serve.description = (
        "Serve a model over HTTP: OpenAI's /v1/completions and /v1/chat/completions, Anthropic's "
        "/v1/messages, Prometheus metrics. Answers reuse what the prefix cache holds."
    )
    serve.epilog = (
        "KEY=VALUE are settings of conf/serve.yaml, as in: hybridcache serve tiny budget_gb=4 eviction=lru "
        "max_queue=100"
    )
    serve.add_argument("model", help="a folder with a Hugging Face checkpoint, or a preset such as tiny")
    serve.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of cache and queue")
    serve.add_argument(
        "--host", default=DEFAULT_HOST, help="address to listen on (default %(default)s: this machine alone)"
    )
    serve.add_argument("--port", type=int, default=DEFAULT_PORT, help="default %(default)s; 0: any free one")
    serve.add_argument("--dtype", default="float32", help="of weights and activations (default %(default)s)")
    serve.add_argument("--max-model-len", type=int, help="tokens of a prompt and its answer")
    serve.add_argument("--max-num-seqs", type=int, help="requests that run at a time (default 256)")
    serve.add_argument(
        "--max-num-batched-tokens", type=int, default=2048, help="tokens of one step (default %(default)s)"
    )
    serve.add_argument(
        "--served-model-name", nargs="+", metavar="NAME", help="what clients call the model (default: MODEL)"
    )
    serve.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"ask clients for it; may be repeated (default: the variable {KEY_VARIABLE}, if it is set)",
    )
    serve.add_argument("--quiet", action="store_true", help="no line for each request")


def run(options: argparse.Namespace) -> str:
    """Serve until a signal ends it. Raises ValueError or OSError for what the user can mend."""
    try:
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        from hybridcache.server.serve import serve
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'hybridcache[serve]'") from error
    if options.api_key is None and os.environ.get(KEY_VARIABLE):
        options.api_key = [os.environ[KEY_VARIABLE]]
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.INFO)
    try:
        serve(options)
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error).partition("Config search path:")[0]  # which says nothing to the user
        raise ValueError(" ".join(text.split())) from error
    return ""
