"""A run's end, as one member or one coordinator sees it: what each of its rules is there for."""

from __future__ import annotations

from dataclasses import replace

from swarmfree.protocol.messages import Farewell
from swarmfree.trainer.run_end import RunEnd
from tests.mutants.alone import MANIFEST, OTHER_LINEAGE, Alone, play


class Disk:
    """Room for weights.

    Attributes:
        written: stages, in order.
    """

    def __init__(self) -> None:
        """Empty."""
        self.written: list[int] = []

    def write(self, stage: int, tensors: object) -> str:
        """Implements `Weights.write`."""
        del tensors
        self.written.append(stage)
        return "x"


def weights_of_a_lineage_that_was_left() -> object:
    """Told to write, that all is written, and after it has joined another lineage to write again: what is written, and that all was."""

    async def story(alone: Alone) -> tuple[list[int], list[bool]]:
        disk, said, state = Disk(), list[bool](), alone.replica_state
        context = replace(alone.context, ports=replace(alone.context.ports, weights=disk))
        ending = RunEnd(context, alone.stage_member, alone.tasks)
        state.iteration = MANIFEST.run.iterations
        await ending.write()
        ending.hear_all_written()
        for lineage in (state.lineage, OTHER_LINEAGE):
            state.lineage = lineage
            said.append((await ending.write()).expect(Farewell).all_written)
        return disk.written, said

    return play(story)
