"""A folder from which vLLM's Python imports QLM's scheduler, and nothing else of QLM's environment.

vLLM runs in an environment of its own. To put all of QLM's packages on its path would replace its numpy and
others by QLM's, so the folder has links to the parts of `qlm` that the scheduler needs. The planner has what
compiles a search.
"""

import os
from pathlib import Path
from typing import Final

import qlm.agents
import qlm.domain
import qlm.planner
import qlm.rct_estimator

_PARTS: Final = (qlm.agents, qlm.domain, qlm.planner, qlm.rct_estimator)


def scheduler_path(folder: Path) -> Path:
    """Make the links below a folder, if they are not there; return the entry for PYTHONPATH."""
    root = folder.resolve() / "vllm-scheduler"
    (root / "qlm").mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        source = Path(next(iter(part.__path__)))
        link = root / "qlm" / source.name
        if not link.is_symlink() or link.readlink() != source:
            # Several agents may share the folder: replaced in one step.
            fresh = link.with_name(f"{link.name}.{os.getpid()}")
            fresh.symlink_to(source)
            fresh.replace(link)
    return root
