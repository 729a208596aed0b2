"""What one library says of an exported model, compared with what swarmfree said: ``python
interop_side.py LIBRARY MODEL OURS``, in an environment that has the library.

`scripts/interop.py` starts it. Prints one JSON object as its last line: versions, figures, and
whether they agree. Knows nothing of swarmfree.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

BITS_MAX = 1e-4
"""By which bits per byte may differ."""


def of_transformers(model: Path, folder: Path, ours: dict[str, Any]) -> dict[str, Any]:
    """Logits to the bit, tokens of the text, greedy text."""
    import torch  # noqa: PLC0415 - of that library's environment
    import transformers  # noqa: PLC0415 - the same

    torch.set_num_threads(1)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    kept = np.load(folder / "logits.npz")
    with torch.inference_mode():
        logits = theirs(torch.from_numpy(kept["tokens"])).logits.numpy()
    text = Path(ours["text"]).read_bytes().decode()
    same_texts = 0
    for each in ours["greedy"]:
        asked = torch.tensor([each["begun"]])
        made = theirs.generate(
            asked, attention_mask=torch.ones_like(asked), do_sample=False, max_new_tokens=len(each["tokens"]), pad_token_id=0
        )[0, asked.shape[1] :].tolist()
        same_texts += made == each["tokens"][: len(made)]
    found = {
        "logits_differ_by": float(np.abs(logits - kept["logits"]).max()),
        "logits_bit_equal": bool(np.array_equal(logits.view(np.uint32), kept["logits"].view(np.uint32))),
        "tokens_equal": tokenizer(text)["input_ids"] == ours["tokens"],
        "decodes": tokenizer.decode(ours["tokens"]) == text,
        "same_texts": same_texts,
        "texts": len(ours["greedy"]),
    }
    agrees = found["logits_bit_equal"] and found["tokens_equal"] and found["decodes"] and same_texts == found["texts"]
    return found | {"agrees": agrees}


def of_ctranslate2(model: Path, _: Path, ours: dict[str, Any]) -> dict[str, Any]:
    """Greedy text after conversion."""
    import ctranslate2  # noqa: PLC0415 - of that library's environment
    import transformers  # noqa: PLC0415 - the same

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with tempfile.TemporaryDirectory(prefix="interop-") as place:
        ctranslate2.converters.TransformersConverter(str(model)).convert(place, force=True)
        # Special tokens that a tokenizer has not, as that of bytes, become null, which is not read
        config = Path(place) / "config.json"
        kept = {name: "" if value is None else value for name, value in json.loads(config.read_text()).items()}
        config.write_text(json.dumps(kept))
        theirs = ctranslate2.Generator(place, device="cpu", compute_type="float32", intra_threads=1)
        equal: list[int] = []
        lengths: list[int] = []
        for each in ours["greedy"]:
            asked = tokenizer.convert_ids_to_tokens(each["begun"])
            made = theirs.generate_batch(
                [asked], beam_size=1, sampling_topk=1, max_length=len(each["tokens"]), include_prompt_in_result=False
            )[0].sequences_ids[0]
            same = next((at for at, pair in enumerate(zip(made, each["tokens"], strict=False)) if pair[0] != pair[1]), len(made))
            equal.append(same)
            lengths.append(len(made))
    return {
        "tokens": lengths,
        "equal_tokens": equal,
        "agrees": equal == lengths == [len(each["tokens"]) for each in ours["greedy"]],
    }


def of_lm_eval(model: Path, _: Path, ours: dict[str, Any]) -> dict[str, Any]:
    """Bits per byte of `loglikelihood_rolling`, by its own defaults.

    Both predict a text behind the end of another one, in rows of the same tokens; of bytes, which
    have no such end, the first one stands before the others on both sides. What is left is the
    last row, which is shorter with us and begins earlier there.
    """
    import torch  # noqa: PLC0415 - of that library's environment
    from lm_eval.api.instance import Instance  # noqa: PLC0415 - the same
    from lm_eval.models.huggingface import HFLM  # noqa: PLC0415 - the same

    torch.set_num_threads(1)
    text, named = Path(ours["text"]).read_bytes().decode(), {}
    if json.loads((model / "config.json").read_text())["eos_token_id"] is None:
        text, named = text[1:], {"prefix_token_id": ours["tokens"][0]}
    lm = HFLM(pretrained=str(model), device="cpu", dtype="float32", max_length=ours["row"], batch_size=8, **named)
    asked = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)
    theirs = -float(lm.loglikelihood_rolling([asked], disable_tqdm=True)[0]) / math.log(2) / len(text.encode())
    differ = abs(theirs - ours["bits_per_byte"])
    return {"ours": ours["bits_per_byte"], "theirs": theirs, "differs_by": differ, "agrees": differ <= BITS_MAX}


SIDES = {
    "transformers": (of_transformers, ("transformers", "tokenizers", "torch")),
    "ctranslate2": (of_ctranslate2, ("ctranslate2", "transformers")),
    "lm-eval": (of_lm_eval, ("lm-eval", "transformers", "torch")),
}


def main() -> None:
    """Ask the library that the first argument names."""
    library, model, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    ask, packages = SIDES[library]
    found = ask(model, folder, json.loads((folder / "ours.json").read_text()))
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in packages}} | found))


if __name__ == "__main__":
    main()
