"""How large a model is: parameters, memory and bytes on the wire, from the manifest alone.

Legend: B rows, T tokens per row, D width, F MLP width, V vocabulary.
"""

from __future__ import annotations

from swarmfree.protocol.manifest import Manifest, ModelSection
from swarmfree.protocol.names import ENDS_STAGE

FLOAT_BYTES = 4
BYTES_PER_PARAMETER = 28
"""float32 weights, gradient sum, average, two moments, and what is kept for others."""


def block_parameters(model: ModelSection) -> int:
    """Count the parameters of one block: attention (grouped keys and values), a gated MLP, two
    norms.
    """
    keys = model.width // model.heads * model.kv_heads
    return 2 * model.width * model.width + 2 * model.width * keys + 3 * model.width * model.mlp_width + 2 * model.width


def ends_parameters(model: ModelSection) -> int:
    """Count the parameters of stage 0: embedding, head and the last norm."""
    return 2 * model.vocabulary * model.width + model.width


def stage_parameters(model: ModelSection, stage: int, blocks: int) -> int:
    """Count the parameters of a stage that has so many blocks; stage 0 has the ends instead."""
    return ends_parameters(model) if stage == ENDS_STAGE else blocks * block_parameters(model)


def head_blocks(model: ModelSection) -> float:
    """How many blocks the head counts for, by multiplications: 2 V D a token against 2 a parameter
    and 4 T D for attention.
    """
    return 2 * model.vocabulary * model.width / (2 * block_parameters(model) + 4 * model.tokens_per_row * model.width)


def boundary_bytes(manifest: Manifest) -> int:
    """Bytes of the activations of one microbatch between two stages, and of their gradients: B T D
    numbers of the wire's type.
    """
    size = 2 if manifest.ring.wire_dtype == "bfloat16" else FLOAT_BYTES
    return manifest.batch.rows * manifest.model.tokens_per_row * manifest.model.width * size


def stage_activation_bytes(manifest: Manifest, stage: int, blocks: int) -> int:
    """Bytes that one microbatch leaves in a stage for its way back, in float32: for each token and
    block about eight widths and three of the MLP; in stage 0 the logits twice.
    """
    model = manifest.model
    floats = 2 * model.vocabulary if stage == ENDS_STAGE else blocks * (8 * model.width + 3 * model.mlp_width)
    return FLOAT_BYTES * manifest.batch.rows * model.tokens_per_row * floats


def block_flops(manifest: Manifest) -> float:
    """Floating point operations of the forward of one microbatch through one block: 2 a token and
    parameter, and 4 T D a token for attention. The way back takes twice as many.
    """
    model = manifest.model
    tokens = manifest.batch.rows * model.tokens_per_row
    return float(tokens * (2 * block_parameters(model) + 4 * model.tokens_per_row * model.width))
