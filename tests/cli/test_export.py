"""Taking a model out: of a live swarm while a peer dies, of a report, and what people get wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from typer.testing import CliRunner, Result

import swarmfree
from swarmfree.cli.main import app
from swarmfree.cli.sample_live import take_writer
from swarmfree.cli.writer import writer_in
from swarmfree.lab import local_order
from swarmfree.lab.runs import run_file
from swarmfree.lab.starter import Starter
from swarmfree.model.first_weights import FirstWeightsOf
from swarmfree.model.sampling import continue_text, llama_of
from swarmfree.protocol.config import load_run
from swarmfree.protocol.manifest import Manifest, RunSection
from swarmfree.storage.llama_folder import open_llama
from swarmfree.storage.weights import FolderWeights, read_weights
from swarmfree.wire.invite import decode_invite
from tests.lab.changed_processes import resting
from tests.model.model_world import MODELS, EngineRing, RandomTokens, manifest_of, scalars_of

transformers = pytest.importorskip("transformers")


def invoke(*arguments: str) -> Result:
    """A command of ours in this process."""
    return CliRunner().invoke(app, list(arguments), prog_name="swarmfree")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose model was trained for some steps."""
    folder = tmp_path_factory.mktemp("report")
    manifest = bytes_manifest()
    ring, corpus = EngineRing(manifest), RandomTokens(manifest)
    for step in range(3):
        ring.train(0, corpus.microbatch(step))
        ring.step(scalars_of())
    weights = FolderWeights(folder / "weights", manifest)
    for stage, engine in enumerate(ring.engines):
        weights.write(stage, engine.export())
    (folder / "summary.json").write_text(json.dumps({"name": "little", "iterations": 3}))
    return folder


def bytes_manifest() -> Manifest:
    """Of a small model of bytes."""
    return manifest_of(dataclasses.replace(next(iter(MODELS.values())), vocabulary=256, tokens_per_row=48))


@pytest.fixture(scope="module")
def exported(report: Path) -> Path:
    """What `export` makes of it."""
    out = report.parent / f"{report.name}-out"
    done = invoke("export", str(report), "--out", str(out))
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def theirs(exported: Path) -> object:
    """The folder as transformers load it."""
    return transformers.AutoModelForCausalLM.from_pretrained(exported, attn_implementation="sdpa").eval()


def test_an_exported_folder_computes_what_the_engine_computed(exported: Path, theirs: torch.nn.Module) -> None:
    """Its logits under transformers are ours to the bit, and its card says where it comes from."""
    model, weights = read_weights(exported)
    tokens = torch.randint(0, 256, (3, 48), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        assert torch.equal(theirs(tokens).logits, llama_of(model, weights)(tokens))
    card = (exported / "README.md").read_text()
    assert bytes_manifest().fingerprint() in card and "| run | little |" in card and "| iteration | 3 |" in card


def test_greedy_text_is_that_of_transformers(exported: Path, theirs: object) -> None:
    """Token for token, with the tokenizer that lies in the folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    prompt, count = "def main(", 32
    asked = tokenizer(prompt, return_tensors="pt")
    found = theirs.generate(**asked, do_sample=False, max_new_tokens=count, pad_token_id=0)[0]  # type: ignore[attr-defined]
    assert found[: len(prompt)].tolist() == list(prompt.encode())
    ours = list(continue_text(llama_of(*read_weights(exported)), prompt.encode(), count=count, temperature=0.0, seed=1))
    assert found[len(prompt) :].tolist() == ours


@pytest.mark.parametrize("percent", [0, 20])
def test_eval_is_a_plain_loop_in_transformers(exported: Path, theirs: torch.nn.Module, tmp_path: Path, percent: int) -> None:
    """Rows of the model's length, and what is left as a shorter one; all of the text, or what a run
    would hold out of it.
    """
    content = bytes(torch.randint(32, 127, (1001,), generator=torch.Generator().manual_seed(5)).tolist())
    (tmp_path / "text").write_bytes(content)
    done = invoke("eval", str(exported), "--data", str(tmp_path / "text"), "--held-out-percent", str(percent), "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    text = np.frombuffer(content, np.uint8)[-200:] if percent else np.frombuffer(content, np.uint8)
    nats = 0.0
    with torch.inference_mode():
        for start in range(0, len(text) - 1, 48):
            row = torch.from_numpy(text[start : start + 49].astype(np.int64))[None]
            logits = theirs(row[:, :-1]).logits
            nats += F.cross_entropy(logits[0], row[0, 1:], reduction="none").double().sum().item()
    assert said["tokens"] == len(text) - 1
    assert said["loss"] == pytest.approx(nats / (len(text) - 1), abs=1e-5)
    assert said["perplexity"] == pytest.approx(math.exp(said["loss"]))
    assert said["bits_per_byte"] == pytest.approx(said["loss"] / math.log(2))


def test_what_cannot_be_taken_out_or_read_is_one_line(exported: Path, tmp_path: Path) -> None:
    """Each line names what was found, and nothing is left where nothing came of it."""
    (tmp_path / "short").write_text("too short")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    torn = tmp_path / "torn"
    torn.mkdir()
    for path in exported.iterdir():
        (torn / path.name).write_bytes(path.read_bytes())
    config = json.loads((torn / "config.json").read_text())
    (torn / "config.json").write_text(json.dumps({**config, "intermediate_size": config["intermediate_size"] + 1}))
    goes_on = tmp_path / "goes-on"
    goes_on.mkdir()
    (goes_on / "events.jsonl").write_text("{}\n")
    (goes_on / "invite").write_text("swarmfree1abc")
    for arguments, code, word in (
        (("sample", str(tmp_path / "nowhere")), 2, "no such folder; that of a report, or of a model, is expected"),
        (("sample", str(goes_on)), 2, "has not come to its end"),
        (("sample", str(goes_on)), 2, f"`swarmfree sample $(cat {goes_on / 'invite'})`"),
        (("export", "swarmfree1abc", "--out", str(out)), 2, "cut off"),
        (("export", str(tmp_path / "empty"), "--out", str(out)), 2, "no weights lie here"),
        (("export", str(tmp_path / "nowhere"), "--out", str(out)), 2, "no such folder"),
        (("export", str(exported), "--out", str(exported)), 2, "something lies there"),
        (("export", str(torn), "--out", str(out)), 1, "not the weights that"),
        (("eval", str(tmp_path / "empty"), "--data", str(tmp_path / "short")), 2, "no weights lie here"),
        (("eval", str(exported), "--data", str(tmp_path / "short")), 2, "one row of this model needs 49"),
        (("eval", str(exported), "--data", str(tmp_path / "nowhere")), 2, "no such file"),
    ):
        done = invoke(*arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (code, 1), (arguments, done.output)
        assert word in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"short", "empty", "torn", "goes-on"}


def test_eval_takes_bytes_that_are_no_text_only_where_it_is_told_to(exported: Path, tmp_path: Path) -> None:
    """A picture that was named by mistake is one line, not a loss of its bytes; one among texts is
    named.
    """
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("text " * 900)
    (folder / "b.gz").write_bytes(b"\x1f\x8b\x08\x00" * 900)
    for data, words in ((folder / "b.gz", "b.gz is no text in UTF-8; "), (folder, "1 of 2 files, ")):
        done = invoke("eval", str(exported), "--data", str(data))
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert words in done.stderr
        assert done.stderr.endswith("; to take its bytes as they are, add --data-is-bytes\n")
        taken = invoke("eval", str(exported), "--data", str(data), "--data-is-bytes", "--json")
        assert taken.exit_code == 0, taken.output
        assert json.loads(taken.stdout)["tokens"] >= 3599
    (folder / "c").touch()
    assert invoke("eval", str(exported), "--data", str(folder / "c")).stderr.endswith("text to learn from expected\n")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_named_pipe_in_a_models_folder_holds_nobody_up(exported: Path, tmp_path: Path, name: str) -> None:
    """It counts as a file that is not there."""
    copied = tmp_path / "copied"
    shutil.copytree(exported, copied)
    (copied / name).unlink()
    os.mkfifo(copied / name)
    (tmp_path / "text").write_text("text " * 100)
    assert invoke("eval", str(copied), "--data", str(tmp_path / "text")).exit_code == 0


def test_a_full_disk_is_one_line_and_leaves_nothing(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room, and where it ends in the middle of a file."""
    usage = shutil.disk_usage(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, change in (("disk_usage", lambda _: usage._replace(free=1 << 20)), ("copyfile", refuse)):
        with monkeypatch.context() as patched:
            patched.setattr(shutil, name, change)
            done = invoke("export", str(exported), "--out", str(tmp_path / "out"))
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.output
        assert "the disk is full" in done.stderr or "No space left on device" in done.stderr
        assert list(tmp_path.iterdir()) == []


def first_model(folder: Path) -> str:
    """A folder of a model of `stdlib-small`, drawn from another seed, and the digests of its stages
    in that run.
    """
    run = load_run(run_file(Path("stdlib-small"))).manifest
    ring = EngineRing(dataclasses.replace(run, run=RunSection(seed=5)))
    weights = FolderWeights(folder, run)
    for stage, engine in enumerate(ring.engines):
        weights.write(stage, engine.export())
    return FirstWeightsOf(run, open_llama(str(folder)).read).digests()


async def test_a_live_swarm_that_began_with_a_model_is_taken_out_while_a_peer_dies(
    tmp_path: Path, fork_server: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage begins with the model's weights, though one peer alone has them on its disk. What
    is taken out is of one committed iteration, with the digests that its record names; the swarm
    goes on meanwhile, and transformers load what came out: logits to the bit, and greedy text token
    for token, of the export and of what `sample` takes from the run.
    """
    digests = first_model(tmp_path / "first")
    resting_server = ("/usr/bin/env", f"TMPDIR={tmp_path / 'tmp'}", resting(0.25), *fork_server) if fork_server else ()
    if fork_server:
        monkeypatch.setattr(local_order, "FORK_SERVER_COMMAND", resting_server)
        (tmp_path / "tmp").mkdir()
    starter = Starter((sys.executable, "-m", "swarmfree"), resting_server, tmp_path / "fork-server.txt")
    async with swarmfree.Swarm(
        "stdlib-small",
        peers=5,
        standbys=0,
        changes=("run.evaluate_windows=2",),
        init_from=str(tmp_path / "first"),
        folder=tmp_path / "report",
        threads=1,
    ) as swarm:
        await swarm.wait(iteration=0)
        invite = (tmp_path / "report" / "invite").read_text().strip()
        out = tmp_path / "model"
        await starter.begin()
        stages = range(1, swarm.manifest.stage_count)
        while not (twice := [stage for stage in stages if len(swarm.state.replicas(stage)) > 1]):
            await asyncio.sleep(0.01)
        said = list[str]()
        export = await starter.start("export", ("export", invite, "--out", str(out)), tmp_path / "export.txt", said.append)
        while not export.words and export.code is None:
            await asyncio.sleep(0.01)
        swarm.kill(name=swarm.state.replicas(twice[0])[0].name)
        assert await export.wait() == 0, list(export.words)
        await starter.end()
        writer = await take_writer(decode_invite(invite), "", 60.0, 20.0, "")
        committed = swarm.state.committed_count
        await swarm.wait(iteration=committed + 1)
    events = map(json.loads, (tmp_path / "report" / "events.jsonl").read_text().splitlines())
    built = {e["stage"]: e["state_digest"][:32] for e in events if e["kind"] == "StageBuilt" and not e["iteration"]}
    assert ",".join(built[stage] for stage in range(len(built))) == digests
    assert "at iteration" in "".join(said)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, attn_implementation="sdpa")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    taken = llama_of(*read_weights(out))
    tokens = torch.randint(0, 256, (2, 128), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        assert torch.equal(model(tokens).logits, taken(tokens))
    asked, count = tokenizer("def ", return_tensors="pt"), 60
    torch.set_num_threads(1)  # as `sample` does: two wait for each other longer than they compute
    for llama in (taken, writer.llama):  # what was taken out, and what the run had an iteration or more later
        model.load_state_dict(llama.state_dict())
        generated = model.generate(**asked, do_sample=False, max_new_tokens=count, pad_token_id=0)[0, 4:].tolist()
        assert list(continue_text(llama, b"def ", count=count, temperature=0.0, seed=0)) == generated
    live = "".join(writer.write("def ", tokens=count, temperature=0.0, seed=0))
    assert live == bytes(generated).decode("utf-8", "replace")
    assert "".join(writer_in(out).write("def ", tokens=count, temperature=0.0, seed=0))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
