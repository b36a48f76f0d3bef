"""Sections of the GPU check in processes of their own: one may lose the device, or never end."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RUNNING = "running"
"""What a file says of the section that its process is in."""
GRACE_S = 45.0
"""Seconds that the last section has beyond the budget."""
Found = dict[str, Any]
"""A run's JSON: `sections` by name, `rows`, and facts of the machine."""


def in_processes(command: Sequence[str], sections: Sequence[str], part: Path, budget_s: float) -> Found:
    """Runs `command --sections ... --out part --budget-s ...` until every section has a result.

    A section whose process ended in its midst gets that as its result, and a new process takes the rest. The
    ceilings are measured in each, without which there are no floors; the first figures stay. Never raises for
    what a process does.
    """
    started, left = time.monotonic(), list(sections)
    found: Found = {"sections": {}, "rows": []}
    while left:
        part.unlink(missing_ok=True)
        rest = max(0.0, budget_s - (time.monotonic() - started))
        asked = [*({"ceilings"} & set(sections) - set(left)), *left]
        words = [*command, "--sections", *asked, "--budget-s", str(rest), "--out", str(part)]
        try:
            run = subprocess.run(words, check=False, stdout=subprocess.DEVNULL, timeout=rest + GRACE_S)
            reason = f"its process ended with {run.returncode}"
        except subprocess.TimeoutExpired:
            reason = f"its process did not end in {rest + GRACE_S:.0f} s"
        made: Found = json.loads(part.read_text()) if part.is_file() else {"sections": {}, "rows": []}
        known = {(row["section"], row["name"]) for row in found["rows"]}
        rows = [r for r in made["rows"] if r["section"] != "aims" and (r["section"], r["name"]) not in known]
        ended = {name: status for name, status in made["sections"].items() if name in left}
        stuck = [name for name, status in ended.items() if status == RUNNING] or (left if not ended else [])
        ended |= dict.fromkeys(stuck, reason)
        found = {**found, **made, "rows": found["rows"] + rows, "sections": found["sections"] | ended}
        left = [name for name in left if name not in ended]
    part.unlink(missing_ok=True)
    return found
