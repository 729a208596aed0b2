"""The proto files and the generated code beside them say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from swarmfree.wire.v1 import messages_pb2, names_pb2, records_pb2, swarm_pb2

PROTOS = Path(__file__).parents[2] / "proto"
GENERATED = {module.DESCRIPTOR.name: module for module in (records_pb2, messages_pb2, names_pb2, swarm_pb2)}


def _without_json_names(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")
    return file


def test_generated_code_is_made_from_these_files(tmp_path: Path) -> None:
    """Compiled again, every proto file gives the descriptor that the generated module holds."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    out = tmp_path / "all"
    assert protoc.main(["protoc", f"--proto_path={PROTOS}", f"--descriptor_set_out={out}", *sources]) == 0
    compiled = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    assert {file.name for file in compiled.file} == set(GENERATED)
    for file in compiled.file:
        held = descriptor_pb2.FileDescriptorProto.FromString(GENERATED[file.name].DESCRIPTOR.serialized_pb)
        assert _without_json_names(file) == held, f"{file.name} differs: run scripts/generate_protos.py"


def test_enums_begin_unspecified() -> None:
    """Zero of every enum is UNSPECIFIED, so that forgetting a field is noticed."""
    enums = [enum for module in GENERATED.values() for enum in module.DESCRIPTOR.enum_types_by_name.values()]
    assert enums
    assert all(enum.values_by_number[0].name.endswith("_UNSPECIFIED") for enum in enums)
