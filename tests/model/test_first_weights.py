"""A run that begins with a model of Hugging Face's: its engines hold that model's weights, to the
bit, and what they cannot hold is refused by name.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from swarmfree.model.first_weights import FirstWeightsOf
from swarmfree.model.sampling import llama_of
from swarmfree.protocol.errors import ConfigError, DataError, SwarmfreeError
from swarmfree.protocol.manifest import DataSection, Manifest, ModelSection, StagesSection
from swarmfree.protocol.weight_shapes import EMBEDDING, HEAD
from swarmfree.storage.llama_folder import open_llama, require_its_tokenizer, with_first_model
from swarmfree.storage.tokenizer import tokenizer_files
from tests.model.model_world import GROUPED, EngineRing, manifest_of

transformers = pytest.importorskip("transformers")


def write_llama(folder: Path, *, tied: bool = False, dtype: torch.dtype = torch.float32, shard: str = "1GB") -> ModelSection:
    """A drawn model as transformers write it, and its shapes."""
    model = GROUPED
    config = transformers.LlamaConfig(
        vocab_size=model.vocabulary,
        hidden_size=model.width,
        intermediate_size=model.mlp_width,
        num_hidden_layers=model.blocks,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=100,
        rms_norm_eps=model.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
    )
    torch.manual_seed(7)
    transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folder, max_shard_size=shard)
    return model


def held(manifest: Manifest, folder: Path) -> tuple[EngineRing, FirstWeightsOf]:
    """Engines that hold what lies in a folder, written part by part as a peer's builder does."""
    ring, first = EngineRing(manifest), FirstWeightsOf(manifest, open_llama(str(folder)).read)
    for stage, engine in enumerate(ring.engines):
        engine.blank(stage)
        data, digests = asyncio.run(first.read(stage, range(engine.part_count(stage))))
        for part, content in enumerate(data):
            engine.write_state(part, content, weights_only=True)
            assert engine.digest_part(part)[1:] == digests[2 * part : 2 * part + 2]
    return ring, first


@pytest.mark.parametrize(
    ("tied", "dtype", "shard", "head"),
    [
        (False, torch.float32, "60KB", False),
        (True, torch.bfloat16, "1GB", False),
        (True, torch.float32, "1GB", True),
        (False, torch.float16, "1GB", False),
    ],
    ids=["float32 in shards", "bfloat16 with a tied head", "a head of its own that is said to be tied", "float16"],
)
def test_engines_compute_what_transformers_compute(
    tmp_path: Path, *, tied: bool, dtype: torch.dtype, shard: str, head: bool
) -> None:
    """The same logits in float32, bit for bit; and the digests are those of the engines."""
    write_llama(tmp_path, tied=tied, dtype=dtype, shard=shard)
    if head:
        _weights(lambda tensors: tensors.update({HEAD: 2 * tensors[EMBEDDING]}))(tmp_path)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "60KB")
    manifest = with_first_model(manifest_of(), str(tmp_path))
    assert (manifest.model.rope_theta, manifest.model.tokens_per_row) == (500.0, GROUPED.tokens_per_row)
    ring, first = held(manifest, tmp_path)
    assert first.digests() == ",".join(engine.state_digest()[:32] for engine in ring.engines)
    exported = {name: tensor for engine in ring.engines for name, tensor in engine.export().items()}
    ours = llama_of(manifest.model, {n: np.frombuffer(d, "<f4").reshape(shape).copy() for n, (shape, d) in exported.items()})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="sdpa").eval()
    tokens = torch.randint(0, GROUPED.vocabulary, (3, GROUPED.tokens_per_row), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        assert torch.equal(theirs(tokens).logits, ours(tokens))


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def _weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        edit(tensors)
        save_file(tensors, file)

    return change


def _cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def _no_number(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + np.float32("nan").tobytes())


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _index(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))


K_PROJ = "model.layers.1.self_attn.k_proj"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_config(model_type="mistral", architectures=["MistralForCausalLM"]), "'mistral'"),
        (_config(architectures=["LlamaForSequenceClassification"]), "LlamaForSequenceClassification"),
        (_config(rope_parameters={"rope_type": "llama3", "factor": 8.0, "rope_theta": 1.0}), "rotary embedding of type 'llama3'"),
        (_config(rope_parameters=None, rope_scaling={"type": "linear", "factor": 2.0}), "rotary embedding of type 'linear'"),
        (_config(rope_parameters="x"), "rotary embedding 'x'"),
        (_config(attention_bias=True), "attention_bias True"),
        (_config(head_dim=8), "head_dim 8"),
        (_config(hidden_act="gelu"), "hidden_act 'gelu'"),
        (_config(quantization_config={"bits": 4}), "quantization_config"),
        (_config(rope_parameters={"full_attention": {"rope_type": "llama3"}}), "rotary embedding {'full"),
        (_config(rope_parameters={"rope_theta": 10**400}), "rope_theta = 1000"),
        (_config(rms_norm_eps=True), "rms_norm_eps = True"),
        (_config(tie_word_embeddings="true"), "tie_word_embeddings = 'true'"),
        (_config(num_hidden_layers="5"), "num_hidden_layers = '5'"),
        (_config(num_hidden_layers=2**31 - 1), "num_hidden_layers = 2147483647, but the files hold 48 weights"),
        (_config(num_attention_heads=5, head_dim=12), "model.heads = 5"),
        (_config(intermediate_size=97), "shape"),
        (_config(num_hidden_layers=6), "model.layers.5.input_layernorm.weight, and 8 more: missing"),
        (_weights(lambda tensors: tensors.pop("lm_head.weight")), "lm_head.weight: missing"),
        (_weights(lambda tensors: tensors.update({f"{K_PROJ}.bias": torch.zeros(32)})), f"{K_PROJ}.bias is there"),
        (_weights(lambda tensors: tensors.update({"adapter": torch.zeros(3)})), "adapter: no weight of a LLaMA"),
        (_weights(lambda tensors: tensors.update({"model.norm.weight": torch.zeros(64).double()})), "is F64"),
        (_weights(lambda tensors: tensors.update({"\n\x1b" + "a" * 9999 + ".bias": torch.zeros(3)})), "aaaa"),
        (_cut_off, "no whole safetensors file"),
        (_pickled, "pytorch_model.bin is not opened"),
        (_index("../elsewhere.safetensors"), "no ../elsewhere"),
        (_index("a" * 5000), "no aaaa"),
        (lambda folder: (folder / "config.json").write_text("[]"), "no JSON object"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    ],
)
def test_what_no_run_can_begin_with_is_refused_in_one_line(
    llama: Path, tmp_path: Path, change: Callable[[Path], object], word: str
) -> None:
    """It names the folder, and what was found there."""
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change(tmp_path)
    with pytest.raises(ConfigError) as refused:
        open_llama(str(tmp_path))
    line = str(refused.value)
    assert line.startswith(f"{tmp_path}: ") and word in line and line.isprintable() and len(line) < 600


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_no_number, "has infinite numbers, or"),
        (_cut_off, "ends within model.norm.weight"),
        (lambda folder: (folder / "model.safetensors").unlink(), "reading failed: No such file"),
    ],
    ids=["no number", "cut", "removed"],
)
def test_weights_that_no_run_learns_from_are_told_of_in_one_line(
    llama: Path, tmp_path: Path, change: Callable[[Path], object], word: str
) -> None:
    """What only shows as they are read, and what becomes of a file that others are given from."""
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    opened = open_llama(str(tmp_path))
    change(tmp_path)
    with pytest.raises(SwarmfreeError, match=word):
        opened.read("model.norm.weight", 0, GROUPED.width)


def test_what_an_older_config_leaves_out_is_as_transformers_have_it(llama: Path, tmp_path: Path) -> None:
    """As many heads of keys as of queries, 2048 positions, a rotary base beside; and a buffer that
    older files hold is passed over.
    """
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    left_out = {"num_key_value_heads", "max_position_embeddings", "rope_parameters", "head_dim", "tie_word_embeddings"}
    config = json.loads((tmp_path / "config.json").read_text())
    old = {key: value for key, value in config.items() if key not in left_out} | {"rope_theta": 77}
    (tmp_path / "config.json").write_text(json.dumps(old))

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        widened = {name: torch.cat([t, t]) for name, t in tensors.items() if "k_proj" in name or "v_proj" in name}
        tensors.update(widened | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})

    _weights(edit)(tmp_path)
    model = open_llama(str(tmp_path)).model
    assert (model.kv_heads, model.tokens_per_row, model.rope_theta) == (GROUPED.heads, 2048, 77.0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that nothing is wrong with."""
    folder = tmp_path_factory.mktemp("llama")
    write_llama(folder)
    return folder


def test_a_model_that_does_not_fit_the_run_is_refused_in_one_line(llama: Path, tmp_path: Path) -> None:
    """Rows longer than its positions, more stages than blocks, digests that are named without a
    folder, and data of another tokenizer.
    """
    long = manifest_of(ModelSection(tokens_per_row=101))
    with pytest.raises(ConfigError, match=r"model\.tokens_per_row = 101: the model in .* takes 100 positions at most"):
        with_first_model(long, str(llama))
    assert with_first_model(manifest_of(ModelSection(tokens_per_row=100)), str(llama)).model.tokens_per_row == 100
    with pytest.raises(ConfigError, match=r"stages\.body = 6: more stages than model\.blocks = 5"):
        with_first_model(Manifest(model=ModelSection(tokens_per_row=9), stages=StagesSection(body=6)), str(llama))
    with pytest.raises(ConfigError, match="name their folder with --init-from"):
        with_first_model(manifest_of(ModelSection(init_digests=",".join(["0" * 32] * 4))), "")
    with pytest.raises(ConfigError, match=r"model\.init_digests: 2 digests; 32 hex digits for each of 4 stages"):
        manifest_of(ModelSection(init_digests=f"{'0' * 32},{'1' * 32}"))
    found = open_llama(str(llama))
    require_its_tokenizer(DataSection(), found)  # nobody knows which it has
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    for data in (DataSection(), DataSection(vocabulary=400, tokenizer_hash="f" * 64)):
        with pytest.raises(DataError, match="swarmfree data prepare SOURCE --tokenizer"):
            require_its_tokenizer(data, open_llama(str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_files(9)["tokenizer.json"]))
    require_its_tokenizer(DataSection(), open_llama(str(tmp_path)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_named_pipe_among_its_files_holds_nobody_up(tmp_path: Path, name: str) -> None:
    """Nobody ever writes to it, and whoever opened it would wait for that."""
    write_llama(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(SwarmfreeError, match=r"it is no regular file|no model\.safetensors"):
        with_first_model(manifest_of(), str(tmp_path))
