"""The manifest: what all peers of a run agree on. Immutable; its SHA-256 over canonical JSON is the
run's fingerprint.

It says nothing about one machine; that is `local_config`. Reading TOML with good errors is
`config`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.mixture import mixture_parts
from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.protocol.split import BlockSplit, even_split

PAPERS_LEASES = 4
BYTES = 256
STALL_FACTOR = 1.5
INIT_DIGEST_DIGITS = 32
"""128 bits, so that those of a hundred stages fit a value."""
_INIT_DIGEST = re.compile(rf"[0-9a-f]{{{INIT_DIGEST_DIGITS}}}")
_STORE_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9][A-Za-z0-9._=-]*)*")

MICROBATCHES_MAX = (1 << 31) - 1
"""Of an iteration; an order has 32 bits for them."""
NUMBERS_MAX = 1 << 53
"""Microbatches of a run: each has a number, which is exact as a float, too."""


def _positive(section: str, record: object, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value <= 0:
            raise ConfigError(f"{section}.{name} = {value}: must be above 0")


@dataclass(frozen=True, slots=True)
class RunSection:
    """What the run is.

    Args:
        name: for people; part of the report folder's name.
        seed: of first weights and data order.
        iterations: optimizer steps to do.
        evaluate_every: held-out evaluation before every so many iterations; 0 = only after rebuilds
            and at the end.
        evaluate_windows: microbatches of held-out text per evaluation.
        access: who may take part: `open`, whoever has the invite; `ticket`, who has a ticket of the
            organiser's, as the invite carries one; `list`, who has one that names its peer id.
        audit_share: a member's work of an iteration is computed again by a sibling with this
            probability, and at the latest after 1 / audit_share iterations; 0 = never.
    """

    name: str = "run"
    seed: int = 0
    iterations: int = 100
    evaluate_every: int = 20
    evaluate_windows: int = 8
    access: Literal["open", "ticket", "list"] = "ticket"
    audit_share: float = 0.0

    def __post_init__(self) -> None:
        _positive("run", self, "iterations", "evaluate_windows")
        if not 0 <= self.audit_share <= 1:
            raise ConfigError(f"run.audit_share = {self.audit_share}: must lie between 0 (never) and 1")
        if self.evaluate_every < 0:
            raise ConfigError(f"run.evaluate_every = {self.evaluate_every}: must be 0 (off) or more")


@dataclass(frozen=True, slots=True)
class ModelSection:
    """A LLaMA. Shapes: width D, heads H, key-value heads K, head width E = D / H, MLP width F,
    vocabulary V, tokens per row T.

    Args:
        init_digests: of a run that begins with given weights, the first 32 hex digits of each
            stage's state digest, with commas between them; filled in by `bootstrap` from the folder
            that `init_from` names. Empty = first weights are drawn.
    """

    width: int = 128
    blocks: int = 6
    heads: int = 4
    kv_heads: int = 2
    mlp_width: int = 352
    tokens_per_row: int = 128
    vocabulary: int = 256
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    init_std: float = 0.02
    init_digests: str = ""

    def __post_init__(self) -> None:
        _positive("model", self, "width", "blocks", "heads", "kv_heads", "mlp_width", "tokens_per_row", "vocabulary")
        _positive("model", self, "rope_theta", "norm_eps", "init_std")
        if self.width % self.heads:
            raise ConfigError(f"model.heads = {self.heads}: must divide model.width = {self.width}")
        if self.heads % self.kv_heads:
            raise ConfigError(f"model.kv_heads = {self.kv_heads}: must divide model.heads = {self.heads}")
        if self.width // self.heads % 2:
            raise ConfigError(
                f"model.heads = {self.heads}: head width {self.width // self.heads} must be even (rotary embedding)"
            )


@dataclass(frozen=True, slots=True)
class StagesSection:
    """How the model is cut.

    Args:
        body: stages 1..body of whole blocks; stage 0 holds the ends.
        replicas_min: Open(0) waits until each stage has so many.
        replicas_max: no more are placed in one body stage; further peers are standbys.
        sources_max: the same for stage 0.
    """

    body: int = 3
    replicas_min: int = 1
    replicas_max: int = 2
    sources_max: int = 1

    def __post_init__(self) -> None:
        _positive("stages", self, "body", "replicas_min", "replicas_max", "sources_max")
        if self.replicas_max < self.replicas_min:
            raise ConfigError(
                f"stages.replicas_max = {self.replicas_max}: must be at least stages.replicas_min = {self.replicas_min}"
            )
        if self.replicas_max > 8 or self.sources_max > 8:
            raise ConfigError("stages.replicas_max and stages.sources_max: at most 8 replicas a stage average together")


@dataclass(frozen=True, slots=True)
class BatchSection:
    """Rows per microbatch B, and microbatches per iteration M.

    Args:
        rows: of a microbatch.
        microbatches: of an iteration, as the run begins.
        microbatches_max: to how many the organiser may set them during the run; 0 = no more than
            `microbatches`.
    """

    rows: int = 8
    microbatches: int = 8
    microbatches_max: int = 0

    def __post_init__(self) -> None:
        _positive("batch", self, "rows", "microbatches")
        if self.microbatches_max and self.microbatches_max < self.microbatches:
            raise ConfigError(
                f"batch.microbatches_max = {self.microbatches_max}: must be 0 or at least batch.microbatches = {self.microbatches}"
            )
        if self.most > MICROBATCHES_MAX:
            name = "microbatches" if self.most == self.microbatches else "microbatches_max"
            raise ConfigError(f"batch.{name} = {self.most}: must be at most {MICROBATCHES_MAX:,}")

    @property
    def most(self) -> int:
        """How many microbatches an iteration has at most: numbers of microbatches leave room for
        so many in each iteration.
        """
        return max(self.microbatches, self.microbatches_max)


@dataclass(frozen=True, slots=True)
class OptimizerSection:
    """AdamW and its schedule.

    Args:
        rate: peak learning rate.
        schedule: ``constant`` or ``cosine`` (to ``rate * final_fraction`` at the last iteration),
            both after a linear warm-up.
        clip: ``none``, ``stage`` (each stage by its own norm) or ``global`` (all stages by the norm
            of all).
        clip_norm: largest L2 norm kept.
    """

    rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_iterations: int = 10
    final_fraction: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: Literal["none", "stage", "global"] = "global"
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _positive("optimizer", self, "rate", "eps", "clip_norm")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"optimizer.{name} = {value}: must be at least 0 and below 1")
        if self.weight_decay < 0 or self.warmup_iterations < 0:
            raise ConfigError("optimizer.weight_decay and optimizer.warmup_iterations: must be 0 or more")
        if not 0 <= self.final_fraction <= 1:
            raise ConfigError(f"optimizer.final_fraction = {self.final_fraction}: must lie between 0 and 1")


@dataclass(frozen=True, slots=True)
class DataSection:
    """Which text. Filled in by `bootstrap` from the corpus it finds; only sources hold it.

    Args:
        name: for people, e.g. ``python-stdlib``.
        held_out_percent: share of the files that is never trained on, chosen by hash of the file.
        corpus_hash: SHA-256 of the corpus, hex; empty in a run config, where it is not known yet.
        train_tokens, held_out_tokens: sizes.
        vocabulary: symbols of its tokenizer; a byte is one of 256.
        tokenizer_hash: SHA-256 of its tokenizer.json, hex; empty where a token is a byte, and where
            nobody knows it.
        end_of_text: the token behind each document, as text; empty where there is none.
        bytes_per_token: mean bytes of held-out text for each token, by which a loss in nats per
            token becomes bits per byte.
        mixture: of a run that learns from several datasets, the hash, the training tokens and the
            weight of each; see `protocol.mixture`. Empty = it learns from one.
    """

    name: str = "python-stdlib"
    held_out_percent: int = 5
    corpus_hash: str = ""
    train_tokens: int = 0
    held_out_tokens: int = 0
    vocabulary: int = BYTES
    tokenizer_hash: str = ""
    end_of_text: str = ""
    bytes_per_token: float = 1.0
    mixture: str = ""

    def __post_init__(self) -> None:
        _positive("data", self, "vocabulary", "bytes_per_token")
        mixture_parts(self.mixture)
        if not 1 <= self.held_out_percent <= 50:
            raise ConfigError(f"data.held_out_percent = {self.held_out_percent}: must lie between 1 and 50")

    @property
    def is_bytes(self) -> bool:
        """Whether a token is a byte."""
        return not self.tokenizer_hash and self.vocabulary <= BYTES


@dataclass(frozen=True, slots=True)
class RingSection:
    """How microbatches travel.

    Args:
        credits: microbatches in flight per source; the only admission there is.
        wire_dtype: of activations and their gradients; averages are always float32.
        part_bytes: size of the parts in which state is copied, merged and averaged.
    """

    credits: int = 4
    wire_dtype: Literal["float32", "bfloat16"] = "float32"
    part_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        _positive("ring", self, "credits", "part_bytes")
        if self.part_bytes % 4096 or self.part_bytes > 1 << 24:
            raise ConfigError(f"ring.part_bytes = {self.part_bytes}: must be a multiple of 4096, at most 16 MiB")


RecoveryMode = Literal["checkfree", "checkfree+", "auto"]
SWAP_STAGES_MIN = 4
"""With fewer body stages the first two and the last two are not four."""
ShadowKind = Literal["auto", "plain", "full"]
RecoveryMethod = Literal["replay", "restore", "merge"]
LogDtype = Literal["wire", "bfloat16", "int8"]


@dataclass(frozen=True, slots=True)
class RecoverySection:
    """How a lost stage comes back.

    Args:
        merge: how neighbours are weighted, see `MergeMode`.
        weight_ratio_max: a neighbour's weight is at most so many times the other's, so that one
            liar cannot own the result.
        rate_factor: rate factor of a rebuilt stage; does not compound (CheckFree Algorithm 1 has
            1.1).
        ends_copies: members of the body that keep an exact copy of stage 0, so that it survives its
            last source; 0 = none.
        mode: `checkfree` has a lost stage of the body made from its neighbours alone; `checkfree+`
            as well, and every second microbatch goes through the first two and the last two body
            stages in swapped order (CheckFree+, four body stages at least); `auto` takes the best
            recovery method there is.
        shadow_every: both neighbours of a body stage renew their shadow of it after so many
            iterations; 0 = none are kept.
        shadow_kind: `plain`, int8 weights; `full`, float32 weights and both moments; `auto`, full
            where the links hardly notice.
        best: the best recovery method that is used: `replay`, `restore` (a shadow as it is) or
            `merge`; see `policy.recovery`.
        border_dtype: of the tensors in activation logs: `wire`, as they crossed it, without which
            no replay is exact; `bfloat16` or `int8`, a half or a quarter of float32.
        kept_mb_max: activation logs and shadows that a peer may keep for others, both together, MB;
            which goes first, `docs/protocol.md` says.
        kept_ram_mb_max: of the activation logs, how many MB stay in memory; the rest lies on disk.
            The newest iteration comes on top until it is packed.
        snapshot_every: each peer writes its stage to its own disk after so many iterations, and
            keeps the last two, so that the run goes on when all peers have died; 0 = none.
        snapshot_store: where the newest snapshot of each stage is copied to as well, so that the
            run outlives the disks: `s3://BUCKET` or `s3://BUCKET/PREFIX`; empty = nowhere. The
            endpoint and the credentials stand in each peer's own environment.
    """

    mode: RecoveryMode = "auto"
    merge: MergeMode = MergeMode.NORM2
    weight_ratio_max: float = 10.0
    rate_factor: float = 1.1
    ends_copies: int = 2
    shadow_every: int = 50
    shadow_kind: ShadowKind = "auto"
    best: RecoveryMethod = "replay"
    border_dtype: LogDtype = "wire"
    kept_mb_max: int = 4096
    kept_ram_mb_max: int = 512
    snapshot_every: int = 50
    snapshot_store: str = ""

    def __post_init__(self) -> None:
        _positive("recovery", self, "rate_factor")
        if self.snapshot_every < 0:
            raise ConfigError(f"recovery.snapshot_every = {self.snapshot_every}: must be 0 (none) or more")
        if self.snapshot_store and not _STORE_URL.fullmatch(self.snapshot_store):
            rule = "must be s3://BUCKET or s3://BUCKET/PREFIX, without endpoint or credentials: those stand in the environment"
            raise ConfigError(f"recovery.snapshot_store = {self.snapshot_store!r}: {rule}")
        if self.snapshot_store and not self.snapshot_every:
            raise ConfigError("recovery.snapshot_store: nothing is copied there with recovery.snapshot_every = 0")
        if self.weight_ratio_max < 1:
            raise ConfigError(f"recovery.weight_ratio_max = {self.weight_ratio_max}: must be at least 1")
        if self.shadow_every < 0:
            raise ConfigError(f"recovery.shadow_every = {self.shadow_every}: must be 0 (none) or more")
        if self.kept_mb_max < 1:
            raise ConfigError(f"recovery.kept_mb_max = {self.kept_mb_max}: must be 1 or more")
        if self.kept_ram_mb_max < 0:
            raise ConfigError(f"recovery.kept_ram_mb_max = {self.kept_ram_mb_max}: must be 0 (all on disk) or more")
        if not 0 <= self.ends_copies <= 8:
            raise ConfigError(f"recovery.ends_copies = {self.ends_copies}: must lie between 0 (none) and 8")

    @property
    def swaps(self) -> bool:
        """Whether every second microbatch takes the swapped route."""
        return self.mode == "checkfree+"

    @property
    def keeps_shadows(self) -> bool:
        """Whether neighbours keep shadows of body stages."""
        return self.mode == "auto" and self.shadow_every > 0 and self.best in {"replay", "restore"}


@dataclass(frozen=True, slots=True)
class TimingSection:
    """Limits on silence and waits, in seconds.

    Args:
        heartbeat_s: the coordinator hears from every member at least this often.
        silence_s: a peer that sends no frame for so long is taken for dead by its direct caller.
        coordinator_silence_s: a member without a heartbeat for so long takes the coordinator for
            gone, and may claim its place.
        join_wait_s: the others wait at most so long for a joiner that loads its state.
        hold_s: a call that is early is held so long before it is answered "not yet".
        split_wait_s: without a majority for so long the coordinator goes on, forced, and the record
            says so.
        remeet_s: the coordinator calls a peer outside its swarm this often, so that two lineages
            meet again.
        lease_s: how long an announcement is believed.
        leave_s: a peer that is told to leave waits at most so long until it is no longer needed.
        stuck_s: a peer ends when its device has worked on one thing for longer than this, and than
            what it has measured allows; see `policy.deadline`.
    """

    heartbeat_s: float = 1.0
    silence_s: float = 2.0
    coordinator_silence_s: float = 4.0
    join_wait_s: float = 60.0
    hold_s: float = 1.5
    split_wait_s: float = 30.0
    remeet_s: float = 20.0
    lease_s: float = 30.0
    leave_s: float = 15.0
    stuck_s: float = 15.0

    def __post_init__(self) -> None:
        _positive("timing", self, *self.__dataclass_fields__)

    @property
    def stall_s(self) -> float:
        """A coordinator that heartbeats, waits for nobody and gets nowhere for so long counts as
        gone; no replay takes as long.
        """
        return STALL_FACTOR * self.join_wait_s

    @property
    def papers_lease_s(self) -> float:
        """How long the manifest and the genesis record are believed, seconds: they never change,
        and publishing them costs searches.
        """
        return PAPERS_LEASES * self.lease_s


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything the peers of a run agree on.

    Args:
        organiser: peer id of who made it: the organiser's key, which signs tickets and ban lists.
            Empty in a run config.
        revision: of the protocol that its peers speak; nobody chooses it.
    """

    run: RunSection = field(default_factory=RunSection)
    model: ModelSection = field(default_factory=ModelSection)
    stages: StagesSection = field(default_factory=StagesSection)
    batch: BatchSection = field(default_factory=BatchSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    data: DataSection = field(default_factory=DataSection)
    ring: RingSection = field(default_factory=RingSection)
    recovery: RecoverySection = field(default_factory=RecoverySection)
    timing: TimingSection = field(default_factory=TimingSection)
    organiser: str = ""
    revision: int = PROTOCOL_REVISION

    def __post_init__(self) -> None:
        if self.stages.body > self.model.blocks:
            raise ConfigError(
                f"stages.body = {self.stages.body}: more stages than model.blocks = {self.model.blocks}; each needs a block"
            )
        if self.run.iterations * self.batch.most > NUMBERS_MAX:
            raise ConfigError(
                f"run.iterations = {self.run.iterations}, each of {self.batch.most} microbatches at most: more than {NUMBERS_MAX:,} "
                "microbatches in all have no numbers"
            )
        if self.recovery.swaps and self.stages.body < SWAP_STAGES_MIN:
            raise ConfigError(
                f"stages.body = {self.stages.body}: recovery.mode = checkfree+ swaps the first two and the last two body stages "
                f"and needs {SWAP_STAGES_MIN} of them; take checkfree, or more stages"
            )
        digests = self.model.init_digests.split(",") if self.model.init_digests else []
        if digests and not (len(digests) == self.stage_count and all(map(_INIT_DIGEST.fullmatch, digests))):
            raise ConfigError(
                f"model.init_digests: {len(digests)} digests; {INIT_DIGEST_DIGITS} hex digits for each of {self.stage_count} stages "
                "expected, as `swarmfree bootstrap --init-from` fills them in"
            )

    @property
    def stage_count(self) -> int:
        """All stages, the ends included."""
        return self.stages.body + 1

    def init_digest(self, stage: int) -> str:
        """How the digest of a stage's first state begins; empty where first weights are drawn."""
        return self.model.init_digests.split(",")[stage] if self.model.init_digests else ""

    @property
    def tokens_per_iteration(self) -> int:
        """Predicted tokens of one iteration: M * B * T."""
        return self.batch.microbatches * self.batch.rows * self.model.tokens_per_row

    @property
    def split(self) -> BlockSplit:
        """How many blocks each stage has."""
        return even_split(self.model.blocks, self.stages.body)

    def blocks_of(self, stage: int) -> range:
        """Global numbers of the blocks of a body stage; the first ``blocks % body`` stages have one
        more.
        """
        return self.split.blocks_of(stage)

    def replicas_max(self, stage: int) -> int:
        """How many replicas a stage takes."""
        return self.stages.sources_max if stage == 0 else self.stages.replicas_max

    @property
    def peers_min(self) -> int:
        """How many peers the first Open needs."""
        return sum(min(self.stages.replicas_min, self.replicas_max(stage)) for stage in range(self.stage_count))

    def canonical(self) -> bytes:
        """The bytes that are hashed and published: JSON, sorted keys, no spaces."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":")).encode()

    def fingerprint(self) -> str:
        """SHA-256 of `canonical`, 64 hex digits: the run's name on the wire."""
        return hashlib.sha256(self.canonical()).hexdigest()


SECTIONS: dict[str, type[Any]] = {
    "run": RunSection,
    "model": ModelSection,
    "stages": StagesSection,
    "batch": BatchSection,
    "optimizer": OptimizerSection,
    "data": DataSection,
    "ring": RingSection,
    "recovery": RecoverySection,
    "timing": TimingSection,
}
