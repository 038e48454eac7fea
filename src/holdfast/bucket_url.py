"""Addresses of buckets: `s3://bucket/prefix`, and the same of Google Cloud Storage and Azure."""

from __future__ import annotations

from urllib.parse import urlsplit

# The stores that a bucket may be of, as its address names them.
BUCKET_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


def is_bucket(text: str) -> bool:
    """Whether a text is the address of a bucket, and not a path."""
    scheme, colon, _ = text.partition("://")
    return bool(colon) and scheme.lower() in BUCKET_SCHEMES


def bucket_problem_of(url: str) -> str | None:
    """Say why an address cannot be that of a bucket; None if it can."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return f"{url!r} is no address: {error}"
    if not parts.netloc:
        return f"{url!r} names no bucket; write `{parts.scheme}://bucket/prefix`"
    # `abfss://container@account.dfs.core.windows.net/prefix` is how Azure writes it.
    if ":" in parts.netloc or ("@" in parts.netloc and not parts.scheme.startswith("abfs")):
        return (
            "an address of a bucket has no user, password or port: credentials come from the "
            "environment or `bucket: {options: …}`, a server of your own is `bucket: {endpoint: …}`"
        )
    if parts.query or parts.fragment:
        return f"{url!r} has more than a bucket and a prefix"
    if any(part in (".", "..") for part in parts.path.split("/")) or "//" in parts.path:
        return f"the prefix of {url!r} has parts that no object can have; write it without them"
    return None
