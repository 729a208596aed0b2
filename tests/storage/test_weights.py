"""The weights port: files that Hugging Face's loader reads, whole or not there."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Weights
from swarmfree.storage.weights import INDEX_NAME, FolderWeights, llama_config, read_weights, stage_file_name

Tensors = dict[str, tuple[tuple[int, ...], bytes]]

LimitedRun = Callable[[str, int], "subprocess.CompletedProcess[str]"]


def stage_tensors(manifest: Manifest, stage: int) -> Tensors:
    """Weights of a stage under the names and shapes of `LlamaForCausalLM`, drawn from a fixed
    seed.
    """
    model = manifest.model
    width, key_width = model.width, model.width // model.heads * model.kv_heads
    if stage == 0:
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (model.vocabulary, width),
            "model.norm.weight": (width,),
            "lm_head.weight": (model.vocabulary, width),
        }
    else:
        block: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (key_width, width),
            "self_attn.v_proj": (key_width, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (model.mlp_width, width),
            "mlp.up_proj": (model.mlp_width, width),
            "mlp.down_proj": (width, model.mlp_width),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        shapes = {f"model.layers.{b}.{name}.weight": shape for b in manifest.blocks_of(stage) for name, shape in block.items()}
    draw = np.random.default_rng(stage)
    return {name: (shape, draw.standard_normal(math.prod(shape), np.float32).tobytes()) for name, shape in shapes.items()}


def test_stages_load_as_one_model_in_transformers(tmp_path: Path, small_manifest: Manifest) -> None:
    """Four files written one by one in any order are a folder from which `AutoModelForCausalLM`
    takes every weight byte for byte.
    """
    manifest = dataclasses.replace(small_manifest, model=dataclasses.replace(small_manifest.model, rope_theta=5000.0))
    weights: Weights = FolderWeights(tmp_path, manifest)
    for stage in (2, 0, 3, 1):
        assert not (tmp_path / INDEX_NAME).exists()
        assert weights.write(stage, stage_tensors(manifest, stage)) == str(
            tmp_path / f"model-0000{stage + 1}-of-00004.safetensors"
        )
    with warnings.catch_warnings():
        # Whatever a release of transformers or torch deprecates at import is not our affair
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM

        loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa", output_loading_info=True)
    model, report = loaded
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = {name: data for stage in range(4) for name, (_, data) in stage_tensors(manifest, stage).items()}
    found = {name: value.detach().numpy().tobytes() for name, value in model.state_dict().items()}
    assert found == expected
    assert model.dtype == torch.float32
    assert model.config.rope_parameters["rope_theta"] == 5000.0
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, None)
    with torch.no_grad():
        assert model(torch.arange(8)[None]).logits.shape == (1, 8, 256)


def test_config_says_the_rotary_base_for_old_and_new_loaders(small_manifest: Manifest) -> None:
    """Both spellings stand in config.json; a loader that knows only one would else take 10000
    without a word.
    """
    config = llama_config(dataclasses.replace(small_manifest, model=dataclasses.replace(small_manifest.model, rope_theta=123.0)))
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 123.0


def test_index_names_every_tensor_and_its_size(tmp_path: Path, small_manifest: Manifest) -> None:
    """The index maps each name to the file that has it, and says the bytes of all."""
    weights = FolderWeights(tmp_path, small_manifest)
    for stage in range(4):
        weights.write(stage, stage_tensors(small_manifest, stage))
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / file)
    sizes = [len(data) for stage in range(4) for _, data in stage_tensors(small_manifest, stage).values()]
    assert (len(index["weight_map"]), index["metadata"]["total_size"]) == (len(sizes), sum(sizes))


def test_finish_may_be_called_at_any_time(tmp_path: Path, small_manifest: Manifest) -> None:
    """It answers no while a stage is missing, and yes with the same index however often."""
    weights = FolderWeights(tmp_path, small_manifest)
    assert not weights.finish()
    for stage in range(4):
        weights.write(stage, stage_tensors(small_manifest, stage))
    first = (tmp_path / INDEX_NAME).read_bytes()
    assert weights.finish()
    assert (tmp_path / INDEX_NAME).read_bytes() == first


def test_runs_are_never_mixed(tmp_path: Path, small_manifest: Manifest) -> None:
    """A second run into the same folder takes the index away with its first file and gives it back
    with its last.
    """
    for stage in range(4):
        FolderWeights(tmp_path, small_manifest).write(stage, stage_tensors(small_manifest, stage))
    second = FolderWeights(tmp_path, dataclasses.replace(small_manifest, run=dataclasses.replace(small_manifest.run, seed=8)))
    for stage in range(4):
        second.write(stage, stage_tensors(small_manifest, stage))
        assert (tmp_path / INDEX_NAME).exists() == (stage == 3)


def test_full_disk_is_told_in_one_line_and_leaves_no_torn_file(tmp_path: Path, limited_run: LimitedRun) -> None:
    """A stage that does not fit is named with its file; what was there before stays whole."""
    old = tmp_path / stage_file_name(0, 4)
    old.write_bytes(b"old")
    code = (
        "from pathlib import Path; from swarmfree.storage.weights import FolderWeights; from swarmfree.protocol.manifest import Manifest\n"
        "from swarmfree.protocol.errors import SwarmfreeError\n"
        f"try: FolderWeights(Path({str(tmp_path)!r}), Manifest()).write(0, {{'a': ((1000, 100), bytes(400_000))}})\n"
        "except SwarmfreeError as error: print(error)\n"
    )
    done = limited_run(code, 50_000)
    assert done.stdout == f"{old}: writing failed: File too large\n"
    assert not done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [old.name]
    assert old.read_bytes() == b"old"


def test_a_damaged_file_of_another_stage_is_named(tmp_path: Path, small_manifest: Manifest) -> None:
    """What is no safetensors file under the name of one is told, not indexed."""
    damaged = tmp_path / stage_file_name(0, 4)
    damaged.write_bytes(b"1234")
    with pytest.raises(SwarmfreeError, match=r"model-00001-of-00004.safetensors: not a safetensors file"):
        FolderWeights(tmp_path, small_manifest).finish()


def test_weights_are_read_back_as_they_were_written(tmp_path: Path, small_manifest: Manifest) -> None:
    """A whole folder gives the model's shapes and every weight; one that is not whole says which
    stages are missing.
    """
    weights = FolderWeights(tmp_path, small_manifest)
    with pytest.raises(ConfigError, match="no weights lie here"):
        read_weights(tmp_path)
    for stage in (0, 2):
        weights.write(stage, stage_tensors(small_manifest, stage))
    with pytest.raises(ConfigError, match="those of stage 1, 3 are missing"):
        read_weights(tmp_path)
    for stage in (1, 3):
        weights.write(stage, stage_tensors(small_manifest, stage))
    model, found = read_weights(tmp_path)
    assert model == dataclasses.replace(small_manifest.model, init_std=model.init_std)
    for stage in range(4):
        for name, (shape, data) in stage_tensors(small_manifest, stage).items():
            assert (found[name].shape, found[name].tobytes()) == (shape, data)
    (tmp_path / INDEX_NAME).write_text("{}")
    with pytest.raises(SwarmfreeError, match="not the weights of a swarmfree run"):
        read_weights(tmp_path)


@pytest.mark.timeout(60)
def test_a_named_pipe_among_the_stages_holds_nobody_up(tmp_path: Path, small_manifest: Manifest) -> None:
    """Nobody ever writes to it; with the index there, and without."""
    weights = FolderWeights(tmp_path, small_manifest)
    for stage in range(4):
        weights.write(stage, stage_tensors(small_manifest, stage))
    place = tmp_path / stage_file_name(1, 4)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(SwarmfreeError, match="it is no regular file"):
        read_weights(tmp_path)
    (tmp_path / INDEX_NAME).unlink()
    with pytest.raises(SwarmfreeError, match="it is no regular file"):
        read_weights(tmp_path)


def test_all_files_are_readable_alike(tmp_path: Path, small_manifest: Manifest) -> None:
    """Whoever may read the config may read the weights: safetensors alone would make them the
    owner's.
    """
    weights = FolderWeights(tmp_path, small_manifest)
    for stage in range(4):
        weights.write(stage, stage_tensors(small_manifest, stage))
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_stages_of_several_machines_are_one_model_once_they_lie_together(tmp_path: Path, small_manifest: Manifest) -> None:
    """Folders that hold one stage each, copied together; what is missing or of another run is
    named.
    """
    other = dataclasses.replace(small_manifest, run=dataclasses.replace(small_manifest.run, seed=8))
    together = tmp_path / "together"
    for stage, manifest in ((3, small_manifest), (1, small_manifest), (0, other), (2, small_manifest)):
        weights = FolderWeights(tmp_path / str(stage), manifest)
        weights.write(stage, stage_tensors(manifest, stage))
        shutil.copytree(tmp_path / str(stage), together, dirs_exist_ok=True)
        with pytest.raises(ConfigError, match="not of one run" if stage == 2 else "those of stage .* are missing"):
            read_weights(together)
    FolderWeights(tmp_path / "0", small_manifest).write(0, stage_tensors(small_manifest, 0))
    shutil.copytree(tmp_path / "0", together, dirs_exist_ok=True)
    (together / "config.json").rename(tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        read_weights(together)
    (tmp_path / "config.json").rename(together / "config.json")
    found = read_weights(together)[1]
    for stage in range(4):
        FolderWeights(tmp_path / "one", small_manifest).write(stage, stage_tensors(small_manifest, stage))
    expected = read_weights(tmp_path / "one")[1]
    assert {name: array.tobytes() for name, array in found.items()} == {name: array.tobytes() for name, array in expected.items()}
    assert {path.name: path.read_text() for path in together.glob("*.json")} == {
        path.name: path.read_text() for path in (tmp_path / "one").glob("*.json")
    }
