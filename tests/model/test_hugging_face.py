"""What a stage exports is what Hugging Face's LLaMA computes with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_world import MODELS, EngineRing, RandomTokens, manifest_of, scalars_of

from swarmfree.lab.reference_training import Alone
from swarmfree.model.layout import layout_of
from swarmfree.model.stages import BodyStage, Ends, build_stage
from swarmfree.protocol.manifest import ModelSection

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_exported_weights_give_the_same_logits(model: ModelSection) -> None:
    """Weights trained for a step and exported give, in `LlamaForCausalLM` with sdpa, the composed
    stages' logits bit for bit.
    """
    manifest = manifest_of(model)
    corpus = RandomTokens(manifest)
    ring = EngineRing(manifest)
    ring.train(0, corpus.microbatch(0))
    ring.step(scalars_of())
    exported = {name: tensor for engine in ring.engines for name, tensor in engine.export().items()}

    config = transformers.LlamaConfig(
        vocab_size=model.vocabulary,
        hidden_size=model.width,
        intermediate_size=model.mlp_width,
        num_hidden_layers=model.blocks,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=model.tokens_per_row,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=False,
        # Older versions read the first and ignore the second, newer ones the other way round.
        rope_theta=model.rope_theta,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
        attn_implementation="sdpa",
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    state = {
        name: torch.from_numpy(np.frombuffer(data, dtype=np.float32).reshape(shape).copy())
        for name, (shape, data) in exported.items()
    }
    theirs.load_state_dict(state, strict=True)
    tokens = Alone(manifest, corpus).microbatch(1)[:, :-1]
    with torch.no_grad():
        x: torch.Tensor | None = None
        modules = [build_stage(manifest, layout_of(manifest, s), torch.zeros(10**6)) for s in range(manifest.stage_count)]
        for module in modules:
            module.load_state_dict({name: state[name] for name in module.state_dict()})
        ends = modules[0]
        assert isinstance(ends, Ends)
        x = ends.embed(tokens)
        for module in modules[1:]:
            assert isinstance(module, BodyStage)
            x = module(x)
        assert torch.equal(theirs(tokens).logits, ends.logits(x))
