"""An endpoint on this machine that speaks S3, with one bucket: moto's server, in a process of its
own.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

BUCKET = "snapshots"
UP_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """Where it listens.

    Args:
        port: on the loopback interface.
    """

    port: int

    def environment(self, port: int = 0) -> dict[str, str]:
        """What finds it; behind a proxy on another port, that one."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }


@contextlib.contextmanager
def s3_endpoint() -> Iterator[S3Endpoint]:
    """Start it, make the bucket, and end it afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = (sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        give_up_s = time.monotonic() + UP_WITHIN_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=UP_WITHIN_S):  # noqa: S310 - as above
                    break
            except urllib.error.URLError:
                if process.poll() is not None or time.monotonic() > give_up_s:
                    raise
                time.sleep(0.05)
        yield S3Endpoint(port)
    finally:
        process.kill()
        process.wait()
