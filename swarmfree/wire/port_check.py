"""Trying an address before anything is built on it: gRPC's and libp2p's own failures come late and
have no reason in them.
"""

from __future__ import annotations

import errno
import socket

from swarmfree.protocol.errors import SwarmfreeError


def require_listening(host: str, port: int) -> None:
    """Bind an address and let it go again.

    Args:
        host: IP address or name of this machine.
        port: TCP; 0 = any.

    Raises:
        SwarmfreeError: nobody can listen there, and why.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)
    except OSError as error:
        raise SwarmfreeError(_trouble(host, port, error)) from error


def is_taken(host: str, port: int) -> bool:
    """Whether nobody can listen there."""
    try:
        require_listening(host, port)
    except SwarmfreeError:
        return True
    return False


def free_port(host: str) -> int:
    """Find a TCP port of this machine that no process listens on now.

    Raises:
        SwarmfreeError: `host` is not this machine's.
    """
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            return int(trial.getsockname()[1])
    except OSError as error:
        raise SwarmfreeError(_trouble(host, 0, error)) from error


def _trouble(host: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"cannot listen on host {host}: no such host is known; an address of this machine was expected"
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} on {host} is taken by another process: stop it, choose another port, or 0 to let the system choose"
            )
        case errno.EADDRNOTAVAIL:
            return f"cannot listen on host {host}: it is no address of this machine"
        case errno.EACCES:
            return f"port {port} on {host} needs more rights than this process has: choose one above 1023, or 0"
        case _:
            return f"cannot listen on port {port} of {host}: {error.strerror}"
