"""The `hybridcache` command."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from hybridcache.interrupt import say_interrupted

MODULES = {
    "explain": ("hybridcache.experiments.explain_command", "why prompts lose their prefixes, and the cost"),
    "trace": ("hybridcache.experiments.trace_command", "describe a request trace, or convert it to .npz"),
    "serve": ("hybridcache.server.command", "serve a model over HTTP, as OpenAI and Anthropic do"),
}
"""Commands with a module of their own: `add_arguments(parser)`, and `run(options)` -> what to print."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments` (default: the process's) and gives the exit status."""
    if arguments is None:
        say_interrupted()
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="hybridcache", description="Prefix cache for hybrid language models."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="print device, versions, kernels in use and their numerics")
    doctor.add_argument("--backend", help="auto (default), cpu, triton, cuda, mamba_ssm or reference")
    doctor.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    for name, (module, text) in MODULES.items():
        command = commands.add_parser(name, help=text, description=text)
        # A command that needs torch or pyarrow imports it, the others start without.
        if given[:1] == [name]:
            import_module(module).add_arguments(command)
    options, rest = parser.parse_known_args(given)
    # Of arguments of any number argparse takes those before the first option alone.
    late = [word for word in rest if hasattr(options, "overrides") and not word.startswith("-")]
    if unknown := [word for word in rest if word not in late]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if late:
        options.overrides += late
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        if options.command == "doctor":
            from hybridcache.kernels.doctor import report

            print(report(options.backend, options.device))
        elif said := import_module(MODULES[options.command][0]).run(options):
            print(said)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0
