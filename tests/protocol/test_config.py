"""What people write: everything mistyped ends in one line that names place, key, value and rule;
everything right comes back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.config import (
    MANIFEST_SIZE_BYTES_MAX,
    RunConfig,
    limits_of,
    limits_to_toml,
    load_local,
    load_run,
    manifest_from_bytes,
    read_run,
    to_toml,
)
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import SECTIONS, Manifest
from swarmfree.protocol.names import PROTOCOL_REVISION
from swarmfree.protocol.peer_limits import PeerLimits

WRITTEN = b'"revision":%d' % PROTOCOL_REVISION
PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=40)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests in which every kind of value is drawn and all relations hold."""

    def numbers(low: float, high: float) -> st.SearchStrategy[float]:
        return st.floats(low, high, exclude_min=True)

    counts = st.integers(1, 10**6)
    heads, kv_heads, half = draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 64))
    blocks = draw(st.integers(1, 40))
    drawn: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    drawn["run"] = {
        "name": draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)),
        "seed": draw(st.integers(-(2**63) + 1, 2**63 - 1)),
        "iterations": draw(counts),
        "evaluate_every": draw(st.integers(0, 100)),
    }
    drawn["model"] = {
        "heads": heads * kv_heads,
        "kv_heads": kv_heads,
        "width": heads * kv_heads * half * 2,
        "blocks": blocks,
        "rope_theta": draw(numbers(0, 1e300)),
        "norm_eps": draw(numbers(0, 1)),
    }
    drawn["stages"] = {"body": draw(st.integers(1, blocks))}
    drawn["optimizer"] = {
        "rate": draw(numbers(0, 10)),
        "schedule": draw(st.sampled_from(["constant", "cosine"])),
        "clip": draw(st.sampled_from(["none", "stage", "global"])),
        "beta1": draw(st.floats(0, 1, exclude_max=True)),
    }
    drawn["data"] = {"name": draw(PRINTABLE), "corpus_hash": draw(PRINTABLE)}
    drawn["recovery"] = {"merge": draw(st.sampled_from(MergeMode))}
    return Manifest(**{name: SECTIONS[name](**values) for name, values in drawn.items()}, organiser=draw(PRINTABLE))


def refusal(text: str, *overrides: str) -> str:
    """The one line that a run config ends in."""
    with pytest.raises(ConfigError) as caught:
        read_run(text, "runs/x.toml", overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lines_told(text: str, *overrides: str) -> int:
    """How many lines a config is refused in; 0 where it is read."""
    try:
        read_run(text, "x", overrides)
    except ConfigError as error:
        return len(str(error).splitlines())
    return 0


# ---- what is right comes back --------------------------------------------------------------------


@given(manifest=manifests(), data_path=PRINTABLE, init_from=PRINTABLE)
def test_printed_config_can_be_fed_back(manifest: Manifest, data_path: str, init_from: str) -> None:
    """`to_toml` prints a run file that gives the very same manifest, fingerprint and paths."""
    config = read_run(to_toml(manifest, data_path, init_from), "printed")
    assert config == RunConfig(manifest, data_path, init_from)
    assert config.manifest.fingerprint() == manifest.fingerprint()


@given(manifest=manifests())
def test_canonical_bytes_come_back(manifest: Manifest) -> None:
    """`manifest_from_bytes` is the inverse of `canonical`, enums and floats included."""
    found = manifest_from_bytes(manifest.canonical())
    assert found == manifest
    assert isinstance(found.recovery.merge, MergeMode)


def test_an_empty_file_is_the_defaults() -> None:
    """Whatever is left out has its default."""
    assert read_run("", "x") == RunConfig(Manifest(), "")


def test_printed_config_explains_and_marks_what_is_not_default() -> None:
    """Each key stands under its explanation, and a value that differs from the default says the
    default.
    """
    text = to_toml(dataclasses.replace(Manifest(), run=dataclasses.replace(Manifest().run, iterations=7)))
    assert "# optimizer steps to do.\niterations = 7  # default 100\n" in text
    assert "seed = 0\n" in text


def test_whole_numbers_will_do_for_floats() -> None:
    """`rate = 1` is 1.0, so that it has the same fingerprint however it was written."""
    written = [read_run(f"[optimizer]\nrate = {text}", "x").manifest for text in ("1", "1.0", "10e-1")]
    assert {manifest.fingerprint() for manifest in written} == {written[0].fingerprint()}


def test_overrides_win_and_the_last_wins() -> None:
    """An override replaces what the file says, in the type that the key has, with or without
    quotes.
    """
    text = '[run]\nseed = 1\nname = "file"\n[optimizer]\nrate = 0.1\n'
    overrides = [
        "run.seed=2",
        "run.seed = 0x10",
        "optimizer.rate=1e-2",
        "run.name='flag'",
        "recovery.merge=uniform",
        "data.path=/some where",
    ]
    config = read_run(text, "x", overrides)
    assert (config.manifest.run.seed, config.manifest.run.name) == (16, "flag")
    assert (config.manifest.optimizer.rate, config.manifest.recovery.merge) == (0.01, MergeMode.UNIFORM)
    assert config.data_path == "/some where"


def test_paths_are_not_in_the_manifest(tmp_path: Path) -> None:
    """Where a machine keeps its text, and the model that it begins with, changes no fingerprint; in
    a file they are relative to that file, in an override they are as given.
    """
    file = tmp_path / "x.toml"
    file.write_text('[data]\npath = "texts/book.txt"\n[model]\ninit_from = "llama"\n')
    config = load_run(file)
    assert config.data_path == str(tmp_path / "texts" / "book.txt")
    assert config.init_from == str(tmp_path / "llama")
    assert config.manifest.fingerprint() == Manifest().fingerprint()
    changed = load_run(file, ["data.path=here.txt", "model.init_from="])
    assert (changed.data_path, changed.init_from) == ("here.txt", "")


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    """Some editors begin a UTF-8 file with a mark."""
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xef\xbb\xbf[run]\nseed = 3\n")
    assert load_run(file).manifest.run.seed == 3


# ---- what is wrong is told -----------------------------------------------------------------------

SECTION_LIST = "run, model, stages, batch, optimizer, data, ring, recovery, timing"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[model]\nwidht = 3", "runs/x.toml:2: model.widht = 3: unknown key; did you mean model.width?"),
        ("[model]\n\n  rows = 3", "runs/x.toml:3: model.rows = 3: unknown key; did you mean batch.rows?"),
        (
            "[run]\nzzz = 3",
            (
                "runs/x.toml:2: run.zzz = 3: unknown key; known: run.name, run.seed, run.iterations, run.evaluate_every, "
                "run.evaluate_windows, run.access, run.audit_share"
            ),
        ),
        ("[modle]\nwidth = 3", "runs/x.toml:1: [modle]: unknown section; did you mean [model]?"),
        ("zork = 3", f"runs/x.toml:1: zork = 3: unknown section; known: {SECTION_LIST}"),
        ("width = 3", "runs/x.toml:1: width = 3: unknown key; did you mean model.width?"),
        ("model = 3", "runs/x.toml:1: model = 3: must be a section, written [model]"),
        ("[[model]]\nwidth = 3", "runs/x.toml:1: model = [...]: must be a section, written [model]"),
        ('[model]\nwidth = "128"', 'runs/x.toml:2: model.width = "128" (text): must be a whole number'),
        ("[model]\nwidth = true", "runs/x.toml:2: model.width = true (true or false): must be a whole number"),
        ("[model]\nwidth = 128.0", "runs/x.toml:2: model.width = 128.0 (a number): must be a whole number"),
        ("[model]\nwidth = [1]", "runs/x.toml:2: model.width = [...] (a list): must be a whole number"),
        ("[model]\nwidth = {a = 1}", "runs/x.toml:2: model.width = {...} (a section): must be a whole number"),
        ("[model]\nwidth = 1979-05-27", "runs/x.toml:2: model.width = 1979-05-27 (a date or time): must be a whole number"),
        ("[model]\nrope_theta = false", "runs/x.toml:2: model.rope_theta = false (true or false): must be a number"),
        ("[optimizer]\nrate = nan", "runs/x.toml:2: optimizer.rate = nan: must be finite"),
        ("[optimizer]\nrate = inf", "runs/x.toml:2: optimizer.rate = inf: must be finite"),
        ("[run]\nseed = 9223372036854775808", "runs/x.toml:2: run.seed = 9223372036854775808: must fit 64 bits"),
        ("[run]\nname = 3", "runs/x.toml:2: run.name = 3 (a whole number): must be text"),
        ('[data]\nname = "a\\nb"', 'runs/x.toml:2: data.name = "a\\nb": must be at most 4096 printable characters on one line'),
        (
            '[recovery]\nmerge = "norm3"',
            'runs/x.toml:2: recovery.merge = "norm3": must be one of norm2, norm, clipped, uniform, copy, random; did you mean norm?',
        ),
        ("[optimizer]\nclip = 1", "runs/x.toml:2: optimizer.clip = 1: must be one of none, stage, global"),
        ("[model]\nheads = 3", "runs/x.toml:2: model.heads = 3: must divide model.width = 128"),
        ("[model]\nwidth = 130", "runs/x.toml: model.heads = 4: must divide model.width = 130"),
        ("[stages]\nbody = 9", "runs/x.toml:2: stages.body = 9: more stages than model.blocks = 6; each needs a block"),
        ("[batch]\nrows = 0", "runs/x.toml:2: batch.rows = 0: must be above 0"),
        ("a = " + "[" * 10_000, "runs/x.toml: not TOML: nested too deeply"),
        *(
            (text, "runs/x.toml:3: this sets or opens again what stands further up; keep one of the two")
            for text in ("[run]\nseed = 1\nseed = 2", "[run]\nseed = 1\n[run]", "[run]\nseed = 1\n[[run]]")
        ),
    ],
)
def test_a_mistake_in_a_run_file_is_one_line(text: str, line: str) -> None:
    """Each mistake is told with file, line, key, value, rule and what was meant."""
    assert refusal(text) == line


@pytest.mark.parametrize("text", ["[run]\nseed = 1\n[model\nwidth = 3\n", "[run]\nseed = 1\nseed 2\n"])
def test_what_is_not_toml_is_told_with_its_line(text: str) -> None:
    """An open bracket, a missing equals sign: file, line and column."""
    assert re.fullmatch(r"runs/x\.toml:3: column \d+: [^;]*; this is not TOML", refusal(text))


def test_run_name_is_no_path() -> None:
    """The run's name becomes part of a folder's name on every machine, so it cannot lead
    elsewhere.
    """
    for name in ("../../etc", "/etc", "a/b", "", ".hidden", "a b"):
        assert f"run.name = {json.dumps(name)}: must be 1 to 64 of" in refusal(f"[run]\nname = {json.dumps(name)}")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model.width=abc", '--set model.width = "abc" (text): must be a whole number'),
        ("model.heads=3", "--set model.heads = 3: must divide model.width = 128"),
        ("model.widht=3", "--set model.widht = 3: unknown key; did you mean model.width?"),
        ("width=3", "--set width = 3: unknown key; did you mean model.width?"),
        ("MODEL.WIDTH=3", "--set MODEL.WIDTH = 3: unknown key; did you mean model.width?"),
        ("model.width", '--set "model.width": must be written section.key=value'),
        ("=3", '--set "=3": must be written section.key=value'),
        (
            "optimizer.schedule=cosin",
            '--set optimizer.schedule = "cosin": must be one of constant, cosine; did you mean cosine?',
        ),
        ("optimizer.rate=nan", "--set optimizer.rate = nan: must be finite"),
    ],
)
def test_a_mistake_in_an_override_is_one_line(override: str, line: str) -> None:
    """A flag's mistake is told as a flag's, with the option that the person typed, not as the
    file's.
    """
    assert refusal("", override) == line


def test_a_mistake_in_the_file_is_the_files_though_an_override_wins_over_it() -> None:
    """The option that sets the key rightly is not blamed."""
    assert refusal('[model]\nwidth = "abc"', "model.width=128").startswith('runs/x.toml:2: model.width = "abc" (text): must be')


def test_keys_are_listed_with_their_sections() -> None:
    """Where nothing is near, all keys are listed behind the names of their sections, as they can be
    typed.
    """
    told = refusal("", "zork.zork=3")
    assert told.startswith("--set zork.zork = 3: unknown key; known: run.(name, seed, iterations, evaluate_every,")
    assert "optimizer.(rate, " in told and "data.(name, " in told and told.endswith(", organiser")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: file, r"x\.toml: cannot be read: No such file or directory"),
        (lambda file: file.mkdir(), r"x\.toml: cannot be read: Is a directory"),
        (lambda file: file.write_bytes(b"[run]\nname = '\xff'"), r"x\.toml: byte 14 is not UTF-8"),
        (lambda file: file.write_bytes(b"#" * 2_000_000), r"x\.toml: more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_cannot_be_a_config_is_one_line(tmp_path: Path, make: Any, message: str) -> None:
    """Missing, a folder, not text, or far too long."""
    file = tmp_path / "x.toml"
    make(file)
    with pytest.raises(ConfigError, match=message):
        load_run(file)


@given(text=st.text(max_size=60))
def test_no_text_makes_anything_but_a_config_or_one_line(text: str) -> None:
    """Whatever is in the file, it is read or refused in one line; nothing else comes out."""
    assert lines_told(text) <= 1


@given(
    key=st.sampled_from(["model.width", "optimizer.rate", "run.name", "recovery.merge", "data.path", "nobody.knows"]),
    text=st.text(max_size=30),
)
def test_no_override_makes_anything_but_a_config_or_one_line(key: str, text: str) -> None:
    """The same for overrides."""
    assert lines_told("", f"{key}={text}") <= 1


# ---- bytes from another peer ---------------------------------------------------------------------


def canonical_with(section: str, key: str, value: object) -> bytes:
    """The default manifest's bytes with one value changed."""
    content = json.loads(Manifest().canonical())
    content[section][key] = value
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "100,000 bytes; at most 65,536"),
        (b"[" * 60_000, "not JSON"),
        (b"{%s}" % WRITTEN, "must have exactly the sections"),
        (b"{}", f"of protocol revision before 11; this swarmfree speaks {PROTOCOL_REVISION}: update the older of the two"),
        (
            b'{"revision":%d}' % (PROTOCOL_REVISION + 1),
            f"of protocol revision {PROTOCOL_REVISION + 1}; this swarmfree speaks {PROTOCOL_REVISION}",
        ),
        (b"{%s.0}" % WRITTEN, "must have exactly the sections"),
        (b'{"revision":"%s"}' % (b"x" * 9999), "of protocol revision 'xxxxxxxxxxx; this"),
        (Manifest().canonical().replace(WRITTEN, WRITTEN + b".0"), "not in canonical form"),
        (b"[]", "must have exactly the sections"),
        (Manifest().canonical() + b" ", "not in canonical form"),
        (Manifest().canonical().replace(b'"heads":4', b'"heads":4,"heads":4'), "not in canonical form"),
        (canonical_with("model", "rope_theta", 10000), "not in canonical form"),
        (canonical_with("model", "width", 1.5), "model.width = 1.5"),
        (canonical_with("model", "width", None), "model.width = None"),
        (canonical_with("model", "width", 0).replace(b'"width":0', b'"width":' + b"9" * 5000), "not JSON"),
        (canonical_with("model", "more", 1), "model: must have exactly the keys"),
        (canonical_with("model", "rope_theta", float("nan")), "must be finite"),
        (canonical_with("stages", "body", 7), "more stages than model.blocks"),
        (canonical_with("recovery", "merge", "x"), "recovery.merge"),
        (canonical_with("recovery", "merge", ["norm"]), "recovery.merge"),
        (canonical_with("run", "name", "../../home"), "run.name"),
        (canonical_with("data", "name", "\ud800"), "printable"),
    ],
)
def test_garbage_from_a_peer_is_refused_in_one_line(content: bytes, message: str) -> None:
    """Bytes that are not exactly a manifest's canonical form are never believed."""
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        manifest_from_bytes(content)
    assert str(caught.value).startswith("manifest: ")
    assert "\n" not in str(caught.value)


@given(position=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_is_another_manifest(position: int, byte: int) -> None:
    """No change of a byte passes unseen: what is read back has exactly the bytes that came."""
    content = bytearray(Manifest().canonical())
    content[position % len(content)] = byte
    with contextlib.suppress(ConfigError):
        assert manifest_from_bytes(bytes(content)).canonical() == bytes(content)


def test_a_manifest_fits_its_limit() -> None:
    """The limit leaves room for every text at its longest."""
    assert len(Manifest().canonical()) * 10 < MANIFEST_SIZE_BYTES_MAX


# ---- one machine ---------------------------------------------------------------------------------


def test_local_config_is_file_then_flags(tmp_path: Path) -> None:
    """Flags win over the file, None is no flag, and the file's paths are relative to the file."""
    file = tmp_path / "peer.toml"
    file.write_text('folder = "state"\nport = 4001\nstandby = true\ndata_path = "/data"\n')
    config = load_local(file, {"port": "5001", "dht_port": 7, "threads": None, "weights_folder": "out", "can_feed": "false"})
    assert config == LocalConfig(
        folder=str(tmp_path / "state"),
        port=5001,
        dht_port=7,
        standby=True,
        data_path="/data",
        weights_folder="out",
        can_feed=False,
    )


def test_printed_limits_can_be_fed_back(tmp_path: Path) -> None:
    """`limits_to_toml` prints a section that gives the same limits."""
    limits = PeerLimits(calls_max=7, write_s=2.5)
    (tmp_path / "peer.toml").write_text("\n".join(limits_to_toml(limits)) + "\n")
    assert load_local(tmp_path / "peer.toml", {"folder": "x"}) == LocalConfig(folder="x", limits=limits)


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("", {}, r"peer\.toml: folder: missing"),
        ("folder = 3", {}, r"peer\.toml:1: folder = 3 \(a whole number\): must be text"),
        ('folder = "x"\nprot = 3', {}, r"peer\.toml:2: prot = 3: unknown key; did you mean port\?"),
        ('folder = "x"\nport = 65536', {}, r"peer\.toml:2: port = 65536: a port lies between 0 and 65535"),
        (
            'folder = "x"\n[limits]\ncalls = 3',
            {},
            r"peer\.toml:3: limits\.calls = 3: unknown key; did you mean limits\.calls_max\?",
        ),
        ('folder = "x"\n[limits]\ncalls_max = 0', {}, r"peer\.toml:3: limits\.calls_max = 0: must be more than 0"),
        ('folder = "x"\nlimits = 3', {}, r"peer\.toml:2: limits = 3: unknown key"),
        ('folder = "x"', {"limits.write_s": "soon"}, r'--limit write_s = "soon" \(text\): must be a number'),
        ('folder = "x"', {"port": "70000"}, r"--port = 70000: a port lies between"),
        ('folder = "x"', {"standby": "yes"}, r'--standby = "yes" \(text\): must be true or false'),
        ('folder = "x"', {"threads": True}, r"--threads = true \(true or false\): must be a whole number"),
    ],
)
def test_a_mistake_in_a_local_config_is_one_line(tmp_path: Path, text: str, flags: dict[str, object], message: str) -> None:
    """As for run files: place, key, value, rule."""
    file = tmp_path / "peer.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_local(file, flags)
    assert "\n" not in str(caught.value)


def test_limits_are_set_as_they_stand_on_a_command_line() -> None:
    """`key=value` each; what nobody knows is an error that names what was meant."""
    config = load_local(None, {"folder": "x", **limits_of(["calls_max=9", "refusal_s=0.5"])})
    assert config.limits == PeerLimits(calls_max=9, refusal_s=0.5)
    with pytest.raises(ConfigError, match=r"^--limit calls = 9: unknown key; did you mean calls_max"):
        limits_of(["calls=9"])
    with pytest.raises(ConfigError, match=r'^--limit "calls": must be written key=value'):
        limits_of(["calls"])


def test_a_mistake_of_the_command_line_names_the_option() -> None:
    """Also where the option is not called after the key."""
    with pytest.raises(ConfigError, match=r"^--libp2p-port = 70000: a port lies between"):
        load_local(None, {"folder": "x", "dht_port": 70000}, {"dht_port": "--libp2p-port"})
    with pytest.raises(ConfigError, match=r"^--limit calls_max = 0: must be more than 0"):
        load_local(None, {"folder": "x", **limits_of(["calls_max=0"])})


def test_an_unknown_flag_is_a_programmer_error() -> None:
    """The command line offers known flags only."""
    with pytest.raises(AssertionError, match="no such key"):
        load_local(None, {"folder": "x", "nobody_knows": 1})
