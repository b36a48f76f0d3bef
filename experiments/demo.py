"""A first look: two built-in workloads under five eviction policies, and a worker with and without cache."""

import subprocess
import sys
from argparse import ArgumentParser
from datetime import datetime
from pathlib import Path

REPLAY = (
    "trace=chat,agent",
    "eviction=lru,marconi,age_density,hit_density,reuse_rate",
    "budget_gb=1,2,4,8,16",
)
"""What is replayed; each a setting of experiments/replay.py, swept over its values."""


def main() -> None:
    """Run the commands that it prints: a sweep of replays, the report of their results, the worker."""
    folder = Path("outputs") / "demo" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    _command("hybridcache.experiments.replay", "-m", *REPLAY, f"hydra.sweep.dir={folder}")
    _command("hybridcache.experiments.report", str(folder))
    print(f"figure: {(folder / 'report' / 'token_hit_rate.png').resolve()}")
    _command("hybridcache.experiments.worker_demo")


def _command(module: str, *arguments: str) -> None:
    print(f"\n$ python -m {module} {' '.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    ArgumentParser(prog="python -m hybridcache.experiments.demo", description=__doc__).parse_args()
    main()
