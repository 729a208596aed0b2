"""p2pd without its packing, for the tests: a file whose start takes a sixth of the processor.

hivemind ships p2pd packed by UPX, so each start unpacks 30 MB into memory of its own: 0.18 s of a
processor, some four hundred times in the tests of real processes. Here one start is stopped by
ptrace at the first call to the system that is p2pd's own, when all is unpacked and nothing has run
yet; what an ELF loader would load is written to a file. Machine code and data are those of the
packed file, which is what users start, and what each test starts that is not forked from the
nursery.

Source: elf(5), ptrace(2); the Go runtime's first call is ``arch_prctl`` (`runtime/asm_amd64.s`,
`settls`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
import warnings
from pathlib import Path

PTRACE_TRACEME, PTRACE_PEEKUSER, PTRACE_SYSCALL = 0, 3, 24
ORIG_RAX = 15 * 8
ARCH_PRCTL = 158
STOPS_MAX = 200
BEGINS_AT = 0x400000
"""Where Go's linker puts the first segment of a program that is not position-independent."""
HEADER, SECTIONS = struct.Struct("<16sHHIQQQIHHHHHH"), slice(0x28, 0x30)
SEGMENT = struct.Struct("<IIQQQQQQ")
LOADED = 1


def start_unpacked(folder: Path) -> None:
    """Have this process, and what is forked from it, start p2pd from `folder`, unpacked there."""
    from swarmfree.wire.hivemind_parts import P2P

    p2p_daemon = sys.modules[P2P.__module__]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # how hivemind finds it
        with p2p_daemon.path(p2p_daemon.cli, p2p_daemon.P2PD_FILENAME) as packed:
            is_unpacked = unpack(packed, folder / packed.name)
    if is_unpacked:
        p2p_daemon.path = lambda _, name: contextlib.nullcontext(folder / name)


def unpack(packed: Path, to: Path) -> bool:
    """Write what `packed` unpacks itself to; False where this system or that file is another one
    than this knows.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or b"UPX!" not in packed.read_bytes()[:1024]:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.ptrace.restype = ctypes.c_long
    process = subprocess.Popen(
        (str(packed), "-help"),
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: libc.ptrace(PTRACE_TRACEME, 0, 0, 0),  # noqa: PLW1509 - one call, which takes no lock
    )
    try:
        if not _goes_on_to_its_own(libc, process.pid):
            return False
        to.write_bytes(_loaded_file(process.pid))
    except PermissionError:  # of this system, on which nobody may look into another process
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, 0)
        process.returncode = -signal.SIGKILL
    to.chmod(0o755)
    return True


def _goes_on_to_its_own(libc: ctypes.CDLL, pid: int) -> bool:
    """Let it run until it calls the system for itself."""
    for _ in range(STOPS_MAX):
        if not os.WIFSTOPPED(os.waitpid(pid, 0)[1]):
            return False
        if libc.ptrace(PTRACE_PEEKUSER, pid, ORIG_RAX, 0) == ARCH_PRCTL:
            return True
        libc.ptrace(PTRACE_SYSCALL, pid, 0, 0)
    return False


def _loaded_file(pid: int) -> bytes:
    """The file that would load what is in this process's memory."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:

        def read(at: int, count: int) -> bytes:
            memory.seek(at)
            return memory.read(count)

        head = bytearray(read(BEGINS_AT, HEADER.size))
        assert head.startswith(b"\x7fELF"), "it is unpacked"
        *_, segments_at, _, _, _, _, count, _, _, _ = HEADER.unpack(head)
        table = read(BEGINS_AT + segments_at, SEGMENT.size * count)
        head[SECTIONS] = bytes(8)  # where sections were described, which nobody loads
        content = bytearray()
        for kind, _, offset, at, _, in_file, _, _ in SEGMENT.iter_unpack(table):
            if kind == LOADED:
                content.extend(bytes(max(0, offset + in_file - len(content))))
                content[offset : offset + in_file] = read(at, in_file)
        content[: HEADER.size] = head
        return bytes(content)
