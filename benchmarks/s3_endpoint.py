"""An endpoint on this machine that speaks S3, with one bucket: moto's server, in a process of its
own that ends with whoever started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

BUCKET = "snapshots"
WITHIN_S = 30.0
SERVER = """\
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """Where it listens.

    Args:
        port: on the loopback interface.
        pid: of its process.
    """

    port: int
    pid: int

    def environment(self, port: int = 0) -> dict[str, str]:
        """What finds it; behind a proxy on another port, that one."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def pause(self) -> None:
        """Stop it where it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def s3_endpoint() -> Iterator[S3Endpoint]:
    """Start it, make the bucket, and end it afterwards."""
    command = (sys.executable, "-W", "ignore", "-c", SERVER)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None, "a pipe"
        port = int(process.stdout.readline())
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        try:
            urllib.request.urlopen(request, timeout=WITHIN_S).close()  # noqa: S310 - http, as it says
            yield S3Endpoint(port, process.pid)
        finally:
            process.kill()
