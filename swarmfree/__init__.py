"""swarmfree: train a language model on machines that may vanish at any minute.

What a researcher needs, loaded when it is first asked for:

- `Swarm`: a whole swarm of real processes on this machine, as an asynchronous context; `SwarmEnded`
  where it ends too soon.
- `Manifest`, `load_run`: what all peers of a run agree on, from a run file or a run's name.
- `rehearse`: a whole swarm in virtual time from a seed, with faults; all invariants checked.
- `merge_stages`: CheckFree's weighted mean of two neighbours, on plain state dicts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarmfree.lab.local import Swarm, SwarmEnded
    from swarmfree.lab.runs import load_run
    from swarmfree.model.state_dicts import merge_stages
    from swarmfree.protocol.manifest import Manifest
    from swarmfree.sim.rehearsal import rehearse

__version__ = "0.1.0"
__all__ = ["Manifest", "Swarm", "SwarmEnded", "__version__", "load_run", "merge_stages", "rehearse"]

_HOMES = {
    "Manifest": "protocol.manifest",
    "Swarm": "lab.local",
    "SwarmEnded": "lab.local",
    "load_run": "lab.runs",
    "merge_stages": "model.state_dicts",
    "rehearse": "sim.rehearsal",
}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives: none of them costs anything before it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'swarmfree' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"swarmfree.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
