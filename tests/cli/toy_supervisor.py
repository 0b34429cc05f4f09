"""The supervisor with toy roles: `python toy_supervisor.py RUN`. The file `toys` in the run folder says what they do."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from slime_hpc.control.context import RoleContext
from slime_hpc.launch import supervisor


def role(context: RoleContext) -> None:
    """Controller and trainer end at once when the file says "work"; all else serves until it is told to end."""
    print(f"toy {context.role.name} {context.rank}", flush=True)
    if (context.run.path / "toys").read_text() == "work" and context.role.kind in ("controller", "trainer"):
        return
    time.sleep(120)


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = f"{here}:{os.environ.get('PYTHONPATH', '')}"
    supervisor.ROLES.update(dict.fromkeys(supervisor.ROLES, "toy_supervisor:role"))
    sys.exit(supervisor.main(sys.argv[1]))
