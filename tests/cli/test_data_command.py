"""`swarmfree data`: text to shards and back on a command line, and models that write with a
dataset's tokenizer.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from swarmfree.cli.checkup import Grade, corpus_finding
from swarmfree.cli.export_live import tokenizer_of
from swarmfree.cli.main import app
from swarmfree.cli.writer import written
from swarmfree.model.engine import TorchEngine
from swarmfree.model.evaluation import text_loss
from swarmfree.model.sampling import llama_of
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage import weights
from swarmfree.storage.corpus import Corpus, prepare_corpus
from swarmfree.storage.dataset_tokenizer import TextTokenizer, byte_tokenizer, train_tokenizer
from swarmfree.storage.tokens import held_out_text
from swarmfree.storage.weights import FolderWeights, read_weights
from tests.storage.range_server import RangeServer

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
    nowhere = run("data", "info", str(dataset / "nowhere"))
    assert nowhere.stderr == f"swarmfree: {dataset / 'nowhere'}: no such folder; that of a dataset expected\n"
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
        assert model.config.bos_token_id == model.generation_config.bos_token_id == tokenizer.bos_token_id == 0
        found = model.generate(**asked, do_sample=False, max_new_tokens=6, use_cache=False)
    ours = "".join(written(folder, "the", tokens=6, temperature=0, seed=0))
    assert "the" + ours == tokenizer.decode(found[0])


def test_peers_that_write_at_once_leave_the_end_of_text(
    dataset: Path, tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer without the tokenizer that has begun to write before it lay there, and ends after its
    peer, leaves config and generation config with the end of text.
    """
    corpus = prepare_corpus(str(dataset), tmp_path / "cache", 5)
    manifest = model_of(corpus, small_manifest)
    folder, write_json = tmp_path / "weights", weights._write_json

    def interrupted(path: Path, content: dict[str, object]) -> None:
        monkeypatch.setattr(weights, "_write_json", write_json)
        write_stages(folder, manifest, corpus, [0])
        write_json(path, content)

    monkeypatch.setattr(weights, "_write_json", interrupted)
    write_stages(folder, manifest, corpus, [1])
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_bytes())["eos_token_id"] == 0


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


def test_a_tokenizer_is_named_by_the_folder_of_its_dataset(text: Path, dataset: Path, tmp_path: Path) -> None:
    """The dataset that another one was made for has the tokenizer to make more with."""
    order = ["data", "prepare", str(text / "a.txt"), "--held-out-percent", "5", "--tokenizer"]
    for number, named in enumerate((dataset, dataset / "tokenizer.json")):
        assert run(*order, str(named), "--out", str(tmp_path / str(number))).exit_code == 0
    assert (tmp_path / "0" / "tokenizer.json").read_bytes() == (dataset / "tokenizer.json").read_bytes()
    assert (tmp_path / "0" / "index.json").read_bytes() == (tmp_path / "1" / "index.json").read_bytes()


def test_eval_takes_the_tokenizer_beside_the_weights(dataset: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """Loss and bits per byte are those of a plain loop in transformers with its own tokenizer, over
    a text that begins behind the end of another one.
    """
    corpus = prepare_corpus(str(dataset), tmp_path / "cache", 5)
    folder = tmp_path / "weights"
    write_stages(folder, model_of(corpus, small_manifest), corpus, [0, 1, 2, 3])
    content = "the whale, caf\N{LATIN SMALL LETTER E WITH ACUTE}, and the calm sea"
    (tmp_path / "text").write_text(content)
    done = run("eval", str(folder), "--data", str(tmp_path / "text"), "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.tensor([tokenizer.bos_token_id, *tokenizer(content)["input_ids"]])
    length, nats = small_manifest.model.tokens_per_row, 0.0
    with torch.inference_mode():
        for start in range(0, len(tokens) - 1, length):
            row = tokens[start : start + length + 1]
            logits = model(row[None, :-1]).logits[0]
            nats += torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum").item()
    assert len(tokens) < len(content)
    assert said["tokens"] == len(tokens) - 1
    assert said["loss"] == pytest.approx(nats / (len(tokens) - 1), abs=1e-5)
    assert said["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(content.encode()), abs=1e-5)


def test_eval_of_a_dataset_is_that_of_its_held_out_half(dataset: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """As one text that these tokens decode to, but for the ends of documents; a damaged shard is
    named.
    """
    corpus = prepare_corpus(str(dataset), tmp_path / "cache", 5)
    folder = tmp_path / "weights"
    write_stages(folder, model_of(corpus, small_manifest), corpus, [0, 1, 2, 3])
    done = run("eval", str(folder), "--data", str(dataset), "--json")
    assert done.exit_code == 0, done.output
    said, half = json.loads(done.stdout), json.loads((dataset / "index.json").read_text())["val"]
    tokens = held_out_text(corpus).read(0, half["tokens"])
    first = len(TextTokenizer((dataset / "tokenizer.json").read_bytes(), "").decode(tokens[:1].tolist()).encode())
    heard: list[int] = []
    found = text_loss(llama_of(*read_weights(folder)), tokens, half["text_bytes"] - first, heard.append)
    assert heard == sorted(set(heard)) and heard[-1] == found.tokens
    assert (said["loss"], said["bits_per_byte"]) == (found.loss, found.bits_per_byte)
    assert said["tokens"] == half["tokens"] - 1
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    shard = copy / half["shards"][0]["file"]
    shard.write_bytes(shard.read_bytes()[:-2] + b"\x01\x00")
    refused = run("eval", str(folder), "--data", str(copy))
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1) and f"{shard}: SHA-256" in refused.stderr
    refused = run("eval", str(folder), "--data", str(dataset), "--held-out-percent", "5")
    assert refused.exit_code == 2 and "has a held-out half of its own" in refused.stderr


def test_eval_cuts_no_letter_in_two(dataset: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """Of two bytes a letter, the held-out end begins with a whole one, and of a folder each file is
    read to its end before the next.
    """
    corpus = prepare_corpus(str(dataset), tmp_path / "cache", 5)
    folder = tmp_path / "weights"
    write_stages(folder, model_of(corpus, small_manifest), corpus, [0, 1, 2, 3])
    (tmp_path / "texts").mkdir()
    for name, begin in (("a", "x"), ("b", "yz")):
        (tmp_path / "texts" / name).write_text(begin + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 101)
    (tmp_path / "all").write_bytes(b"".join((tmp_path / "texts" / name).read_bytes() for name in "ab"))
    for percent in ("10", "35", "45"):  # the last two begin within a letter
        held_out = run("eval", str(folder), "--data", str(tmp_path / "texts" / "a"), "--held-out-percent", percent)
        assert held_out.exit_code == 0, held_out.output
    whole, joined = (json.loads(run("eval", str(folder), "--data", str(tmp_path / n), "--json").stdout) for n in ("texts", "all"))
    assert {key: whole[key] for key in ("loss", "tokens")} == {key: joined[key] for key in ("loss", "tokens")}


def test_eval_refuses_what_does_not_go_with_the_tokenizer(
    text: Path, dataset: Path, tmp_path: Path, small_manifest: Manifest
) -> None:
    """Text that is none, a dataset of another tokenizer, a tokenizer of bytes, and one with more
    symbols than the model.
    """
    corpus = prepare_corpus(str(dataset), tmp_path / "cache", 5)
    folder = tmp_path / "weights"
    write_stages(folder, model_of(corpus, small_manifest), corpus, [0, 1, 2, 3])
    (tmp_path / "text").write_bytes(b"the calm sea \xe8 and on" * 9)

    def refusal(data: Path) -> str:
        refused = run("eval", str(folder), "--data", str(data))
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
        return refused.stderr

    assert "no text in UTF-8 (byte 13)" in refusal(tmp_path / "text")
    other = tmp_path / "bytes"
    assert run("data", "prepare", str(text / "a.txt"), "--tokenizer", "bytes", "--out", str(other)).exit_code == 0
    assert "made with the tokenizer bytes, and the model reads that of" in refusal(other)
    (folder / "tokenizer.json").write_bytes(byte_tokenizer())
    assert "a tokenizer of bytes, but the model ends texts with <|endoftext|>" in refusal(tmp_path / "text")
    (folder / "tokenizer.json").write_bytes(train_tokenizer(iter([LINE, "another sea of quick words, quite so"]), 310))
    assert "its tokenizer has 310 tokens, and its model 300; they do not belong together" in refusal(tmp_path / "text")


def test_a_live_export_takes_the_tokenizer_of_the_run_alone(dataset: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """By its file or its folder; another one, or none there, is one line. A run of bytes and a
    report have their own.
    """
    manifest = model_of(prepare_corpus(str(dataset), tmp_path / "cache", 5), small_manifest)
    content = (dataset / "tokenizer.json").read_bytes()
    assert tokenizer_of(manifest, str(dataset)) == tokenizer_of(manifest, str(dataset / "tokenizer.json")) == content
    assert tokenizer_of(manifest, "") == tokenizer_of(small_manifest, str(dataset)) == b""
    with pytest.raises(ConfigError, match=r"--tokenizer .*: no tokenizer there"):
        tokenizer_of(manifest, str(tmp_path))
    (tmp_path / "tokenizer.json").write_bytes(content + b"\n")
    with pytest.raises(ConfigError, match=f"but the run's tokenizer has {manifest.data.tokenizer_hash[:12]}"):
        tokenizer_of(manifest, str(tmp_path))
    refused = run("export", str(tmp_path), "--tokenizer", str(dataset), "--out", str(tmp_path / "out"))
    assert refused.exit_code == 2 and refused.stderr.startswith("swarmfree: --tokenizer goes with an invite;")


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


@pytest.fixture(scope="module")
def mixture(text: Path, dataset: Path) -> Path:
    """The dataset three times as often as another one of the same tokenizer."""
    out = str(dataset.parent / "other")
    order = ["data", "prepare", str(text / "b.jsonl"), "--tokenizer", str(dataset), "--out", out, "--pack", "best-fit:16"]
    assert run(*order, "--held-out-percent", "5").exit_code == 0
    path = dataset.parent / "both.mixture.toml"
    path.write_text('[[dataset]]\npath = "other"\nweight = 3\n[[dataset]]\npath = "out"\nweight = 1\n')
    return path


def test_a_mixture_says_what_is_in_it(mixture: Path, dataset: Path) -> None:
    """Which part of what is drawn comes from where, how much of it an epoch shows, and what each
    dataset is; `--json` is one object; a damaged shard of any is named.
    """
    shown = run("data", "info", str(mixture), "--check")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith(f"{mixture}: a mixture of 2 datasets, hash ")
    assert f"75.0% of what is drawn: {dataset.parent / 'other'}; an epoch shows 100.0% of it" in shown.stdout
    assert f"25.0% of what is drawn: {dataset}; an epoch shows " in shown.stdout
    assert "an epoch is about " in shown.stdout and "packed for rows of 16 tokens" in shown.stdout
    told = json.loads(run("data", "info", str(mixture), "--json").stdout)
    assert sorted((each["weight"], each["share"]) for each in told["datasets"]) == [(1.0, 0.25), (3.0, 0.75)]
    shard = dataset / "train_000000.bin"
    content = shard.read_bytes()
    try:
        shard.write_bytes(content[:-4] + bytes(4))
        damaged = run("data", "info", str(mixture), "--check")
    finally:
        shard.write_bytes(content)
    assert damaged.exit_code == 2
    assert damaged.stderr.startswith(f"swarmfree: {shard}: SHA-256 ") and damaged.stderr.count("\n") == 1
    nowhere = run("data", "info", "no.mixture.toml")
    assert nowhere.stderr == "swarmfree: no.mixture.toml: no such file of a mixture\n"
    scored = run("eval", str(dataset), "--data", str(mixture))
    assert f"--data {mixture}: a mixture; name one of its datasets: " in scored.stderr


def test_a_run_file_that_names_a_mixture_is_shown_with_it(mixture: Path, tmp_path: Path) -> None:
    """`config show` says in comments what an epoch draws; what it prints can be fed back."""
    file = tmp_path / "run.toml"
    file.write_text(f'[model]\nvocabulary = 300\n[data]\npath = "{mixture}"\n')
    shown = run("config", "show", "--run", str(file))
    assert shown.exit_code == 0, shown.output
    assert f"# The mixture {mixture}:\n# " in shown.stdout and "% of what is drawn: " in shown.stdout
    again = tmp_path / "again.toml"
    again.write_text(shown.stdout)
    assert run("config", "show", "--run", str(again)).stdout == shown.stdout
    file.write_text('[data]\npath = "https://127.0.0.1:1/books"\n')
    assert run("config", "show", "--run", str(file)).stderr == (
        "swarmfree: https://127.0.0.1:1/books/index.json: nobody answers there\n"
    )


def test_a_dataset_behind_a_url_says_what_is_in_it(dataset: Path) -> None:
    """Its index and first block are read, with --check all of it; what is damaged is named, and
    what does not answer is not asked again.
    """
    with RangeServer(dataset) as server:
        shown = run("data", "info", server.url)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.startswith(f"{server.url}: tokenizer ") and 'as text: "0 the whale swam on' in shown.stdout
        assert len(server.asked) == 4 + 1
        assert "every shard has the hash of the index" in run("data", "info", server.url, "--check").stdout
        for fault, words in (
            ("flips", "the shard is damaged or another one"),
            ("fails", "answers 500"),
            ("no ranges", "no ranges"),
        ):
            server.fault, server.only = fault, ".bin"  # type: ignore[assignment]
            told = run("data", "info", server.url)
            assert told.exit_code == 2
            assert told.stderr.startswith(f"swarmfree: {server.url}/train_000000.bin: ") and words in told.stderr
            assert told.stderr.count("\n") == 1


def test_doctor_compares_a_mixture_with_the_run_s(mixture: Path, dataset: Path, tmp_path: Path, small_manifest: Manifest) -> None:
    """The same one is the run's own; of another one it says in what it differs."""
    corpus = prepare_corpus(str(mixture), tmp_path / "cache", 5)
    manifest = model_of(corpus, small_manifest)
    for data, grade in ((mixture, Grade.GOOD), (dataset, Grade.BAD)):
        local = LocalConfig(str(tmp_path / "peer"), data_path=str(data))
        assert corpus_finding(manifest, local).grade is grade
    heavier = tmp_path / "mixture.toml"
    heavier.write_text(
        f'[[dataset]]\npath = "{dataset}"\nweight = 9\n[[dataset]]\npath = "{dataset.parent / "other"}"\nweight = 3\n'
    )
    finding = corpus_finding(manifest, LocalConfig(str(tmp_path / "peer"), data_path=str(heavier)))
    assert f"{dataset} has the weight 9, in the run 1)" in finding.text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf:owner/name", "need the library datasets; install it with: pip install"),
        (
            "owner/name",
            "no such file or folder; text, .jsonl or .parquet files expected; for a dataset of the Hugging Face hub write hf:",
        ),
        ("hf:", "hf:OWNER/NAME expected, with :CONFIG, :CONFIG:SPLIT or @REVISION behind it"),
        ("hf:owner/name@", "hf:OWNER/NAME expected"),
        ("hf:owner/name::train", "hf:OWNER/NAME expected"),
        ("hf:a/b:c:d:e", "hf:OWNER/NAME expected"),
    ],
)
def test_a_source_of_the_hub_is_named_and_needs_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    """A path that is not there is never taken for one, so nothing is downloaded by mistake."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    told = run("data", "prepare", source, "--tokenizer", "bytes", "--out", str(tmp_path / "out"))
    assert told.exit_code in {1, 2}
    assert words in told.stderr and told.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
