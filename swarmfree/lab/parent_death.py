"""A process that cannot outlive its parent. Apart from `processes`, because a peer needs nothing
else of the lab's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel send SIGKILL to this process when its parent dies; end at once if that has
    already happened.

    Args:
        parent_pid: who started this process; where `os.getppid` says another one, the parent died
            before this call.

    Only Linux knows this request; elsewhere a child notices a dead parent when it next writes to
    it.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        result = libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        assert result == 0, f"prctl(PR_SET_PDEATHSIG) gave {result}"
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
