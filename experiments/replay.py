"""Replay a trace through the prefix cache: ``python -m hybridcache.experiments.replay KEY=VALUE ...``."""

from hybridcache.experiments.command import run_command
from hybridcache.experiments.run import run


def main() -> None:
    """Run or sweep (``-m``) with Hydra; exit status 2 and one line on stderr for what the user can mend."""
    run_command("replay", run)


if __name__ == "__main__":
    main()
