"""Names and shapes of a LLaMA's weights, as Hugging Face's `LlamaForCausalLM` has them and in the
order of its state dict.

Letters: ``D`` width, ``H`` heads, ``K`` key-value heads, ``F`` MLP width, ``V`` vocabulary.
"""

from __future__ import annotations

from swarmfree.protocol.manifest import ModelSection

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Shapes = dict[str, tuple[int, ...]]


def block_shapes(model: ModelSection, block: int) -> Shapes:
    """Weights of one block by its number in the whole model: attention (D, D), keys and values
    (D / H * K, D), MLP (F, D) and (D, F), gains (D,).
    """
    width, mlp_width = model.width, model.mlp_width
    kv_width = model.width // model.heads * model.kv_heads
    shapes: Shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (kv_width, width),
        "self_attn.v_proj": (kv_width, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (mlp_width, width),
        "mlp.up_proj": (mlp_width, width),
        "mlp.down_proj": (width, mlp_width),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    return {f"model.layers.{block}.{name}.weight": shape for name, shape in shapes.items()}


def ends_shapes(model: ModelSection) -> Shapes:
    """Embedding and head (V, D), and the gain before the head (D,)."""
    return {
        EMBEDDING: (model.vocabulary, model.width),
        "model.norm.weight": (model.width,),
        HEAD: (model.vocabulary, model.width),
    }


def weight_shapes(model: ModelSection) -> Shapes:
    """All of them."""
    blocks = (block_shapes(model, block).items() for block in range(model.blocks))
    return ends_shapes(model) | dict(weight for block in blocks for weight in block)
