"""A folder that lies behind a URL: its files are read whole or by ranges, over HTTP or from a
bucket, by way of obstore.

Every call is one request that waits for its answer, for threads that may wait; trying again is left
to `remote_shards`. Credentials and endpoints of buckets stand in the environment, where obstore
reads them as other clients do: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket.
"""

from __future__ import annotations

import re
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from swarmfree.protocol.errors import DataError, SwarmfreeError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("http", "https", "s3", "gs", "az")
CONNECTED_WITHIN, ANSWERED_WITHIN = timedelta(seconds=5), timedelta(seconds=30)
_PIECE_BYTES = 1 << 16
_INSTANCE_METADATA = "169.254.169.254"
"""Where obstore looks for credentials last."""


class RemoteError(DataError):
    """What a request came to: no answer, a refusal, or not what was asked for."""


class RemoteFolder:
    """The files below a URL.

    Attributes:
        url: without a slash at its end.
    """

    def __init__(self, url: str, answered_within: timedelta = ANSWERED_WITHIN) -> None:
        """Nobody is asked yet.

        Args:
            url: ``https://HOST/PATH``, ``s3://BUCKET/PREFIX`` or alike.
            answered_within: a request that takes longer has failed.

        Raises:
            DataError: it is no such URL.
            SwarmfreeError: obstore is not installed.
        """
        self.url = url.rstrip("/")
        self._store = _opened(self.url, answered_within)

    @property
    def name(self) -> str:
        """For people: the last part of the URL."""
        return self.url.rpartition("/")[2]

    def read(self, file: str, size_bytes_max: int) -> bytes:
        """All of a file.

        Raises:
            RemoteError: it cannot be read, or it is larger.
        """
        import obstore  # noqa: PLC0415 - only where data lies elsewhere

        with _StoreWords(f"{self.url}/{file}"):
            answer = obstore.get(self._store, file)
            size_bytes = answer.meta["size"]
            content = bytes(answer.bytes()) if size_bytes <= size_bytes_max else b""
        if max(size_bytes, len(content)) > size_bytes_max:
            raise RemoteError(f"{self.url}/{file}: {max(size_bytes, len(content)):,} bytes; at most {size_bytes_max:,} expected")
        return content

    def read_range(self, file: str, start: int, length: int) -> bytes:
        """`length` bytes of a file, from `start` on.

        Raises:
            RemoteError: they cannot be read, or others came.
        """
        import obstore  # noqa: PLC0415 - only where data lies elsewhere

        content = bytearray()
        with _StoreWords(f"{self.url}/{file}"):
            # In pieces, so that a server that goes on and on is not listened to
            for piece in obstore.get(self._store, file, options={"range": (start, start + length)}).stream(_PIECE_BYTES):
                content += piece
                if len(content) > length:
                    break
        if len(content) != length:
            came = f"{len(content):,}" if len(content) < length else "more"
            raise RemoteError(
                f"{self.url}/{file}: {length:,} bytes from {start:,} on were asked for, and {came} came; "
                "a server that compresses or cuts what it sends is of no use"
            )
        return bytes(content)


class _StoreWords:
    """Raises what obstore says about the block as one `RemoteError`; a setting that it cannot use
    makes it panic, which has a class of its own that no module gives.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - only where data lies elsewhere

        if isinstance(error, BaseError | OSError) or type(error).__name__ == "RustPanic":
            assert isinstance(error, BaseException), "a panic is none that the type says"
            raise RemoteError(f"{self._where}: {_reason(error)}") from error


def _opened(url: str, answered_within: timedelta) -> ObjectStore:
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - only where data lies elsewhere
        from obstore.store import from_url  # noqa: PLC0415 - as above
    except ImportError:
        why = "data behind a URL needs obstore; it comes with: pip install '.[s3]' in a clone of swarmfree"
        raise SwarmfreeError(f"{url}: {why}") from None
    try:
        parts = urlsplit(url)
        is_known = parts.scheme.lower() in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise DataError(f"{url!r:.200}: no URL: {error}") from error
    if not is_known or not url.isprintable():
        raise DataError(f"{url!r:.200}: {', '.join(f'{scheme}://' for scheme in SCHEMES)} with a host or a bucket expected")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise DataError(
            f"{parts.scheme}://{parts.hostname}...: no user, password, ? or # in the URL of a dataset; those of a bucket stand in the environment"
        )
    options: Any = {"timeout": answered_within, "connect_timeout": min(CONNECTED_WITHIN, answered_within), "allow_http": True}
    try:
        return from_url(url, client_options=options, retry_config={"max_retries": 0, "retry_timeout": answered_within})
    except (BaseError, ValueError) as error:
        raise DataError(f"{url}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """What obstore says, without its innards and what comes after the first line."""
    said = str(error).strip().partition("\n")[0]
    if type(error).__name__ == "RustPanic":
        return "a setting in the environment (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ...) is no such thing"
    if isinstance(error, FileNotFoundError):
        return "not there (404)"
    if _INSTANCE_METADATA in said:
        return "no credentials in the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true"
    if type(error).__name__ == "NotSupportedError":
        return "its server gives no ranges of files; take one that does, or copy the dataset here"
    if re.search(r" 40[13] ", said) or type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"}:
        return "refused (401 or 403)"
    if found := re.search(r"status code: (\d+[^:]*)", said):
        return f"answers {found[1][:60]}"
    if "kind: Timeout" in str(error):
        return "no answer in time"
    if "error sending request" in said:
        return "nobody answers there"
    return re.sub(r"^Generic \w+ error: |Error performing [A-Z]+ \S+ in \S+ - |\?\S*", "", said)[:200] or type(error).__name__
