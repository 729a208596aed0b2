"""Who was kept from hearing until when, as the check of the end of a run asks it (I7)."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.sim import breaks
from swarmfree.sim.cast import Cast
from swarmfree.sim.life import Life
from tests.sim.test_liveness import Scene


def test_a_break_that_ends_frees_nobody_whom_another_one_holds() -> None:
    """One peer is cut off by a partition and by a cut: it is hindered until both are over."""
    scene = Scene()
    stage, silent = SimpleNamespace(hub=scene.hub, loop=scene.loop), SimpleNamespace(tell=lambda who, what: None)
    troupe = Cast(cast("Any", stage), cast("Any", None), cast("Any", silent), random.Random)
    troupe.lives = cast("dict[Any, Life]", scene.troupe.lives)
    partition, cut = breaks.partition({"one"}), breaks.cut("one", "leader")
    troupe.begin_break(partition, "partition", None)
    troupe.begin_break(cut, "cut", None)
    troupe.end_break(cut)
    assert troupe.hindered_s["one"] == math.inf, "the partition lasts"
    assert troupe.hindered_s["leader"] == math.inf, "it does not reach the one"
    troupe.end_break(partition)
    assert set(troupe.hindered_s.values()) == {0.0}, "nothing lasts"
    scene.loop.close()
