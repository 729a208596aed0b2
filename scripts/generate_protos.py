"""Regenerate `swarmfree/wire/v1` from `proto/swarmfree/v1`: `python scripts/generate_protos.py`.

The compiler runs in a virtual environment of its own, at a fixed and rather old version, so that
the generated code loads on every protobuf runtime from 5.29 on, whatever is installed beside it.
Calls are made by the names in the service's descriptor, so there is no generated stub. The package
name on the wire is `swarmfree.v1`; in Python the modules live in `swarmfree.wire.v1`, so the
imports between generated modules are rewritten.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REQUIREMENTS = ("grpcio-tools==1.71.2", "mypy-protobuf==3.6.0", "setuptools<80")
ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "proto"
TARGET = ROOT / "swarmfree" / "wire" / "v1"
OPENING = '"""Generated from proto/swarmfree/v1 by scripts/generate_protos.py; not edited by hand."""\n'


def compiler(folder: Path) -> Path:
    """Make a virtual environment with the compiler in `folder` and return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return python


def rewritten(text: str) -> str:
    """Point imports of sibling modules at where they live in Python."""
    return re.sub(r"\bswarmfree\.v1(?=\.\w+_pb2\b| import\b)", "swarmfree.wire.v1", text)


def main() -> None:
    """Compile every proto file and replace the generated modules."""
    with tempfile.TemporaryDirectory() as scratch:
        python = compiler(Path(scratch) / "venv")
        out = Path(scratch) / "out"
        out.mkdir()
        sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
        plugin = f"--plugin=protoc-gen-mypy={python.parent / 'protoc-gen-mypy'}"
        outputs = [f"--python_out={out}", f"--mypy_out=quiet:{out}"]
        subprocess.run(
            [python, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}", plugin, *outputs, *sources],
            check=True,
        )
        TARGET.mkdir(parents=True, exist_ok=True)
        for old in TARGET.iterdir():
            if old.is_file():
                old.unlink()
        (TARGET / "__init__.py").write_text(OPENING, encoding="utf-8")
        for path in sorted((out / "swarmfree" / "v1").iterdir()):
            (TARGET / path.name).write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
