"""`holdfast send`: post the events of files to a gateway, in their order, each until it is taken.

    NDJSON      a document in each line: OpenLineage events, or requests of OTLP in JSON
    JSON        one document, or an array of them
    Parquet     what the exporter `files` writes: the column `payload`, with `slot` and `headers`

What a file holds is told by its content. The way in is the same as every client's, so events are
checked as theirs are, and a success means that they are on disk. An event that is refused for what
it is (4xx) is counted and named, and the next one follows; one that is refused for now (429, 503,
no connection) is sent again, for as long as `--timeout` says.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click
import orjson

from holdfast.errors import BadInput, NotAllowed, Overloaded
from holdfast.operate.cli.base.output import counted, json_option, print_json, printable
from holdfast.signals.otlp.kinds import OtlpKind

LINEAGE_URL, OTLP_URL = "http://127.0.0.1:5000", "http://127.0.0.1:4318"
LINEAGE_PATH = "/api/v1/lineage"
TIMEOUT_S = 60.0
REQUEST_S = 30.0
PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
# Of a file that is one JSON document, which has to be read at once.
DOCUMENT_BYTES_MAX = 256 * 1024 * 1024
PROBLEMS_SHOWN = 20
_LATER = (429, 502, 503, 504)
_DENIED = (401, 403)


class FileRequest(NamedTuple):
    """One request that is to be posted, and where it stands."""

    where: str
    path: str
    body: bytes
    content_type: str = "application/json"

    @property
    def is_lineage(self) -> bool:
        """Whether it goes to the receiver of OpenLineage."""
        return self.path == LINEAGE_PATH


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--to",
    "url",
    help=f"The receiver's address. By default {LINEAGE_URL} for lineage, {OTLP_URL} for OTLP.",
)
@click.option(
    "--token-env",
    metavar="NAME",
    help="The environment variable that holds the token, if the receiver wants one.",
)
@click.option(
    "--timeout",
    "timeout_s",
    default=TIMEOUT_S,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Give up after so many seconds without success.",
)
@json_option
def command(
    paths: tuple[Path, ...],
    url: str | None,
    token_env: str | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Post the events in PATHS (NDJSON, JSON, OTLP in JSON, Parquet) to a gateway.

    Exits with 1 if the gateway rejected some as invalid; the others are on its disk.
    """
    accepted, refused = 0, []
    with closing(_FilePoster(url, _token(token_env), timeout_s)) as sender:
        for item in (item for path in paths for item in items_of(path)):
            problem = sender.post(item)
            if problem is None:
                accepted += 1
            else:
                refused.append({"where": item.where, "problem": problem})
    if as_json:
        print_json({"accepted": accepted, "refused": refused})
    else:
        for one in refused[:PROBLEMS_SHOWN]:
            click.echo(f"{one['where']}: {printable(one['problem'])}", err=True)
        click.echo(f"{counted(accepted, 'request')} accepted, {len(refused):,} refused")
    return 1 if refused else 0


def _token(name: str | None) -> str | None:
    if name is None:
        return None
    if not os.environ.get(name):
        raise BadInput(f"the variable {name} is not set", hint=f"export {name}=…")
    return os.environ[name]


# ------------------------------------------------------------------------ reading


def items_of(path: Path) -> Iterator[FileRequest]:
    """Yield the requests that a file holds, in their order."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet_items(path)
        else:
            yield from _json_items(path)
    except OSError as error:
        message = f"the file cannot be read: {error.strerror or error}"
        raise BadInput(message, hint="name files that are there", path=str(path)) from error


def _json_items(path: Path) -> Iterator[FileRequest]:
    with path.open("rb") as file:
        first = next((line for line in file if line.strip()), b"")
        if not _is_document(first):
            yield from _whole_document(path)
            return
        file.seek(0)
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _item(f"{path}:{number}", line.strip())


def _is_document(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _whole_document(path: Path) -> Iterator[FileRequest]:
    if path.stat().st_size > DOCUMENT_BYTES_MAX:
        hint = "write one document in each line (NDJSON)"
        raise BadInput("the document is too large", hint=hint, path=str(path))
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        hint = "write JSON, one document in each line, or name a Parquet file"
        raise BadInput(f"the file is not JSON: {error}", hint=hint, path=str(path)) from None
    for number, one in enumerate(found if isinstance(found, list) else [found], start=1):
        yield _item(f"{path}#{number}", orjson.dumps(one))


def _item(where: str, body: bytes) -> FileRequest:
    """Return a document as a request; what is no JSON is sent all the same, and refused there."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    keys = document.keys() if isinstance(document, dict) else ()
    kind = next((kind for kind in OtlpKind if kind.json_field in keys), None)
    return FileRequest(where, LINEAGE_PATH if kind is None else kind.http_path, body)


def _parquet_items(path: Path) -> Iterator[FileRequest]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        hint = "name a whole Parquet file"
        raise BadInput(f"the file is not Parquet: {error}", hint=hint, path=str(path)) from None
    names = file.schema_arrow.names
    if "payload" not in names:
        hint = f"it has {', '.join(names)}; name files that the exporter `files` wrote"
        raise BadInput("there is no column `payload`", hint=hint, path=str(path))
    kinds = {kind.slot: kind for kind in OtlpKind}
    number = 0
    for batch in file.iter_batches(columns=[n for n in ("slot", "payload") if n in names]):
        slots = batch.column("slot").to_pylist() if "slot" in names else [""] * batch.num_rows
        for slot, payload in zip(slots, batch.column("payload").to_pylist(), strict=True):
            where, number = f"{path}#{number + 1}", number + 1
            body = payload.encode() if isinstance(payload, str) else payload
            if slot in kinds:
                yield FileRequest(where, kinds[slot].http_path, body, "application/x-protobuf")
            else:
                yield _item(where, body)


# ------------------------------------------------------------------------ sending


class _FilePoster:
    """Posts over one connection for each receiver."""

    def __init__(self, url: str | None, token: str | None, timeout_s: float) -> None:
        self._url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def close(self) -> None:
        """Hang up."""
        for connection in self._connections.values():
            connection.close()

    def post(self, item: FileRequest) -> str | None:
        """Post until it is taken; return why it will never be, or None."""
        url = self._url or (LINEAGE_URL if item.is_lineage else OTLP_URL)
        deadline_s, pause_s, told = time.monotonic() + self._timeout_s, PAUSE_S, False
        while True:
            status, text, after_s = self._try(url, item)
            if 200 <= status < 300:  # noqa: PLR2004
                return None
            if status in _DENIED:
                hint = "name the variable with the token: --token-env NAME"
                raise NotAllowed(f"{url} answers {status}: {text}", hint=hint)
            if status and status not in _LATER:
                return f"{status}: {text}"
            if time.monotonic() > deadline_s:
                hint = (
                    "is the gateway up (`holdfast status`)? --to names another address;"
                    " what was accepted stays accepted"
                )
                raise Overloaded(f"{item.where}: {url} does not take it: {text}", hint=hint)
            if not told:
                told, how_long = True, f"for up to {self._timeout_s:g} s (--timeout)"
                click.echo(f"{url}: {printable(text)}; trying again {how_long} …", err=True)
            time.sleep(min(after_s or pause_s, PAUSE_MAX_S))
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _try(self, url: str, item: FileRequest) -> tuple[int, str, float]:
        """Return the status (0: no answer), what was said, and the pause that was asked for."""
        connection = self._connection(url)
        path = urlsplit(url).path.rstrip("/")
        target = path if path.endswith(item.path) else path + item.path
        try:
            headers = {"Content-Type": item.content_type, **self._headers}
            connection.request("POST", target, item.body, headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return 0, text, 0.0
        after = response.getheader("Retry-After", "")
        return response.status, _said(body), float(after) if after.isdecimal() else 0.0

    def _connection(self, url: str) -> http.client.HTTPConnection:
        if url not in self._connections:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise BadInput(f"{url!r} is no address", hint="write http://HOST:PORT")
            kind = http.client.HTTPSConnection if parts.scheme == "https" else None
            made = (kind or http.client.HTTPConnection)(
                parts.hostname, parts.port, timeout=REQUEST_S
            )
            self._connections[url] = made
        return self._connections[url]


def _said(body: bytes) -> str:
    """Return what an answer says, on one line."""
    try:
        told = json.loads(body)
    except ValueError:
        return body[:200].decode(errors="replace")
    if isinstance(told, dict):
        told = told.get("message") or told.get("error") or told
    return str(told)[:400]
