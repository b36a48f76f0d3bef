"""The `hybridcache` command."""

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments` (default: the process's) and gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="hybridcache", description="Prefix cache for hybrid language models."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="print device, versions, kernels in use and their numerics")
    doctor.add_argument("--backend", help="auto (default), cpu or reference")
    options = parser.parse_args(arguments)
    # The command that needs torch imports it, the others start without.
    from hybridcache.kernels.doctor import report

    try:
        print(report(options.backend))
    except ValueError as error:
        parser.error(str(error))
    return 0
