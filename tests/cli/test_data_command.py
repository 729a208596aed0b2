"""`swarmfree data`: text to shards and back on a command line, and models that write with a
dataset's tokenizer.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from swarmfree.cli.main import app
from swarmfree.cli.sample import written
from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage.corpus import Corpus, prepare_corpus
from swarmfree.storage.weights import FolderWeights

LINE = "the whale swam on and the ship came over the calm sea, day after day, "


def run(*arguments: str) -> Result:
    """What a command says."""
    return CliRunner().invoke(app, list(arguments), prog_name="swarmfree")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text, of two kinds."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("".join(f"{number} {LINE}\n" for number in range(900)))
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": f"{LINE} {number}"}) + "\n" for number in range(900)))
    return folder


@pytest.fixture(scope="module")
def dataset(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as tokens of a BPE of 300 symbols."""
    out = tmp_path_factory.mktemp("dataset") / "out"
    done = run("data", "prepare", str(text), "--tokenizer", "train:300", "--out", str(out), "--held-out-percent", "5")
    assert done.exit_code == 0, done.output
    assert "tokenizer " in done.stdout and ", 300 symbols" in done.stdout
    assert "writes tokens: 0.1 of 0.1 MB" in done.stderr
    return out


def test_a_dataset_says_what_is_in_it(dataset: Path) -> None:
    """`info` shows sizes, sources and the first tokens as text; `--check` reads all, `--json` is
    one object.
    """
    shown = run("data", "info", str(dataset))
    assert shown.exit_code == 0
    assert "from " in shown.stdout and "a.txt" in shown.stdout and "b.jsonl" in shown.stdout
    assert 'as text: "0 the whale swam on' in shown.stdout
    assert "not read; --check does" in shown.stdout
    told = json.loads(run("data", "info", str(dataset), "--json", "--check").stdout)
    assert told["is_checked"] and told["first_text"].startswith("0 the whale swam")
    assert told["bytes_per_token"] == told["val"]["text_bytes"] / told["val"]["tokens"] > 1.5
    shard = dataset / "val_000000.bin"
    content = shard.read_bytes()
    try:
        shard.write_bytes(content[:-4] + bytes(4))
        assert run("data", "info", str(dataset)).exit_code == 0
        damaged = run("data", "info", str(dataset), "--check")
    finally:
        shard.write_bytes(content)
    assert damaged.exit_code == 2
    assert damaged.stderr.startswith(f"swarmfree: {shard}: SHA-256 ") and damaged.stderr.count("\n") == 1
    no_dataset = run("data", "info", str(dataset.parent))
    assert no_dataset.stderr.endswith("`swarmfree data prepare` makes one\n") and no_dataset.stderr.count("\n") == 1


def test_a_dataset_needs_its_vocabulary(dataset: Path) -> None:
    """`local` and `bootstrap` say at once what to set where the model has too few symbols."""
    for command in (("local",), ("bootstrap", "--run", "stdlib-small")):
        refused = run(*command, "--data", str(dataset), "--set", "batch.microbatches=1")
        assert refused.exit_code == 2
        assert refused.stderr.endswith(
            "out: its tokens have 300 symbols, but model.vocabulary = 256; add --set model.vocabulary=300\n"
        )


def test_ctrl_c_ends_a_preparation_that_goes_on_later(text: Path, dataset: Path, tmp_path: Path) -> None:
    """Ctrl-C ends with one line that says how to go on and code 130; the same command then makes
    the same bytes.
    """
    out = str(tmp_path / "out")
    order = ["data", "prepare", str(text), "--tokenizer", "train:300", "--out", out, "--held-out-percent", "5"]
    # The signal comes while the first batch is written
    program = (
        "import os, signal, sys; from swarmfree.cli.main import main; from swarmfree.storage import dataset_writer\n"
        "dataset_writer._write = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.argv[0] = 'swarmfree'; main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, *order], capture_output=True, text=True, check=False)
    assert ended.returncode in {130, -signal.SIGINT}, ended.stderr
    assert ended.stderr.splitlines()[-2:] == [f"{out} is not whole; the same command goes on with it", "swarmfree: interrupted"]
    assert run(*order).exit_code == 0
    assert {p.name: p.read_bytes() for p in dataset.iterdir()} == {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}


def model_of(corpus: Corpus, manifest: Manifest) -> Manifest:
    """A run over a dataset."""
    model = dataclasses.replace(manifest.model, vocabulary=300)
    return dataclasses.replace(manifest, model=model, data=corpus.section(manifest.data))


def write_stages(folder: Path, manifest: Manifest, corpus: Corpus, stages: list[int]) -> None:
    """First weights: stage 0 by a peer that has the corpus, the others by peers that have not."""
    for stage in stages:
        engine = TorchEngine(manifest, 1)
        engine.draw(stage, 0)
        FolderWeights(
            folder, manifest, corpus.tokenizer_file.read_bytes() if stage == 0 and corpus.tokenizer_file else b""
        ).write(stage, engine.export())


@pytest.mark.parametrize("stages", [[0, 1, 2, 3], [3, 2, 1, 0]])
def test_weights_have_the_tokenizer_of_the_dataset(
    dataset: Path, tmp_path: Path, small_manifest: Manifest, stages: list[int]
) -> None:
    """Whoever completes the folder, `AutoTokenizer` reads the dataset's tokenizer from it with its
    end of text, and `sample` writes greedily what transformers generate.
    """
    corpus = prepare_corpus(str(dataset), tmp_path / "cache", 5)
    manifest = model_of(corpus, small_manifest)
    folder = tmp_path / "weights"
    write_stages(folder, manifest, corpus, stages)
    assert (folder / "tokenizer.json").read_bytes() == (dataset / "tokenizer.json").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
        asked = tokenizer("the", return_tensors="pt")
        assert tokenizer.eos_token == "<|endoftext|>"  # noqa: S105 - a token of another kind
        assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id == 0
        found = model.generate(**asked, do_sample=False, max_new_tokens=6, use_cache=False)
    ours = "".join(written(folder, "the", tokens=6, temperature=0, seed=0))
    assert "the" + ours == tokenizer.decode(found[0])


def test_weights_without_their_tokenizer_get_no_other(dataset: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """Where no peer with the corpus wrote into the folder, there is no tokenizer.json, one of
    another run is removed, and `sample` says what to copy.
    """
    corpus = prepare_corpus(str(dataset), tmp_path / "cache", 5)
    manifest = model_of(corpus, small_manifest)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "tokenizer.json").write_text("{}")
    write_stages(tmp_path / "weights", manifest, dataclasses.replace(corpus, dataset=None), [0, 1, 2, 3])
    assert (tmp_path / "weights" / "config.json").exists()
    said = run("sample", str(tmp_path / "weights"), "the")
    assert said.exit_code == 2
    assert said.stderr == (
        f"swarmfree: {tmp_path / 'weights'}: no tokenizer.json; copy that of the dataset that the run learned from here\n"
    )


def test_losses_are_bits_per_byte_of_text() -> None:
    """A loss in nats per token is divided by ln 2 and by the bytes per token, in the state that all
    views show, and in the line about it; nats stay those of a token.
    """
    from swarmfree.cockpit.fold import fold_all
    from swarmfree.cockpit.lines import describe
    from swarmfree.cockpit.observed_events import PeerEvent, RunDescribed
    from swarmfree.cockpit.state import bits_per_byte
    from swarmfree.lab.summary import summarise
    from swarmfree.protocol.events import Evaluated

    held_out = Evaluated(3, 4.0)
    state = fold_all([RunDescribed(1.0, "x", 9, 4, 64, 2.5, 4096), PeerEvent(2.0, "peer-1", held_out)])
    assert bits_per_byte(state.evaluations[0].loss) == pytest.approx(4.0 / math.log(2) / 2.5)
    assert "2.308 bits per byte" in describe(held_out, bytes_per_token=2.5)
    summary = summarise(state, 0, "")
    assert (summary["held_out_final"], summary["held_out_final_bits_per_byte"]) == (4.0, pytest.approx(2.3083, rel=1e-4))


def test_rows_without_a_symbol_are_told_by_the_tokenizer(dataset: Path) -> None:
    """What a run needs counts the rows that its tokenizer leaves unused; of shards that do not say
    how many bytes a token has, it says so.
    """
    from swarmfree.lab.estimate import needs
    from swarmfree.storage.corpus import with_tokenizer

    manifest = with_tokenizer(
        dataclasses.replace(Manifest(), model=dataclasses.replace(Manifest().model, vocabulary=512)), str(dataset)
    )
    assert needs(manifest, 4)[1:] == ["model.vocabulary = 512: the tokenizer has 300 symbols, so 212 of its rows are never used"]
    unknown = dataclasses.replace(manifest, data=dataclasses.replace(manifest.data, bytes_per_token=1.0, vocabulary=512))
    (told,) = needs(unknown, 4)[1:]
    assert "bits per token; --set data.bytes_per_token=N says it" in told
