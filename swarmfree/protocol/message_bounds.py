"""Message bounds: how large, how many and how high what another peer says can be in one run.
Nothing here looks at a message.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.routes import Routes, routes_of

COUNTER_MAX = (1 << 31) - 1
"""Of attempts, revisions, steps and the like: one more still fits what carries them."""
TERM_MAX = 1 << 20
"""Redos and rounds are numbered from 4,096 times the term on, in 32 bits."""
NUMBER_MAX = (1 << 32) - 1
TALLY_MAX = 1 << 53
"""Of what only grows and is never added to here: news, pieces of work, bytes."""
SECONDS_MAX = 1e7
REPLICAS_MAX = 64
"""Of one stage in one message; a manifest allows fewer."""
PARTS_MAX = 1 << 20
ADMITTED_MAX = 256
"""Of those who stand by or build in one heartbeat."""
LINKS_MAX, BYTES_S_MIN, BYTES_S_MAX = 8, 1.0, 1e12
"""Of senders of whose links one peer tells, and how fast a link may be said to be."""
CONTRIBUTIONS_MAX = 1 << 16
"""Of parts and contributors in one account; a list is no longer."""
FINDINGS_MAX = 16
EXCLUDED_MAX = 1024
SIGNATURE_BYTES_MAX = 1024
"""Of a vote; ours have some 740."""
SNAPSHOTS_MAX = 16
NAME_LETTERS_MAX = 64
HASH_LETTERS_MAX = 128
TEXT_LETTERS_MAX = 8192
ADDRESSES_MAX, ADDRESS_LETTERS_MAX = 8, 400
PAST_MAX = 4096
MESSAGE_BYTES_LEAST = 1 << 18
MEMBER_BYTES = 2048
"""Of a member wherever it is named in one message: names, addresses, digests, its vote."""
NUMBER_BYTES = 5
REPLICAS_USUAL_MAX, FORCED_USUAL_MAX = 16, 1 << 16
PAYLOAD_BYTES_LEAST = 1 << 16
"""Small payloads are not told apart: engines for tests have tensors of their own size."""
STATE_FACTOR = 3
"""Weights and two moments."""
ANSWER_BYTES_MAX = 8 << 20
"""Of some parts at once, beside the last of them."""


@dataclass(frozen=True, slots=True)
class MessageBounds:
    """What nobody of this run goes beyond. Without a manifest it is what nobody of any run does.

    Args:
        stage_count: all stages, the ends included.
        is_exact: plans and records have exactly so many stages; else at most.
        blocks: of the model.
        microbatches: of one iteration.
        windows: of held-out text.
        iterations: of the run.
        hold_s: how long a heartbeat may be held, seconds.
        routes: of microbatches; None where the run is not known.
        tensor_bytes: of one microbatch's activations on the wire.
        part_bytes: of one part of a sum or of weights.
    """

    stage_count: int = 1 << 12
    is_exact: bool = False
    blocks: int = 1 << 16
    microbatches: int = 1 << 16
    windows: int = 1 << 16
    iterations: int = 1 << 40
    hold_s: float = 3600.0
    routes: Routes | None = None
    tensor_bytes: int = 1 << 30
    part_bytes: int = 1 << 24

    @classmethod
    def of(cls, manifest: Manifest) -> MessageBounds:
        """Of one run."""
        batch, model, timing = manifest.batch, manifest.model, manifest.timing
        number_bytes = 4 if manifest.ring.wire_dtype == "float32" else 2
        return cls(
            stage_count=manifest.stage_count,
            is_exact=True,
            blocks=manifest.model.blocks,
            microbatches=batch.most,
            windows=manifest.run.evaluate_windows,
            iterations=manifest.run.iterations,
            hold_s=max(timing.heartbeat_s, timing.silence_s),
            routes=routes_of(manifest),
            tensor_bytes=max(PAYLOAD_BYTES_LEAST, batch.rows * model.tokens_per_row * model.width * number_bytes),
            part_bytes=max(PAYLOAD_BYTES_LEAST, manifest.ring.part_bytes),
        )

    @property
    def members(self) -> int:
        """How many a plan or an electorate may name."""
        return self.stage_count * REPLICAS_MAX

    @property
    def message_bytes(self) -> int:
        """Of the largest message: a plan with the record before it, or all partial sums of a
        stage.
        """
        members = self.stage_count * REPLICAS_USUAL_MAX
        books = members * (MEMBER_BYTES + NUMBER_BYTES * self.microbatches) + NUMBER_BYTES * min(
            self.iterations, FORCED_USUAL_MAX
        )
        return MESSAGE_BYTES_LEAST + 2 * books

    @property
    def state_bytes(self) -> int:
        """Of the parts of a state that travel in one answer."""
        return ANSWER_BYTES_MAX + STATE_FACTOR * self.part_bytes
