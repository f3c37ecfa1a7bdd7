"""Trajectories as files for other programs: JSON lines, and Parquet (`skerry[parquet]`).

One row an event, with the columns of `COLUMNS`; docs/guide/trajectories.md describes them. Files
appear whole or not at all, and memory is bounded by `ROWS_AT_ONCE` events.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from skerry.errors import InvalidRequest, StorageFailed, Unavailable
from skerry.spec.trajectory import Event, content_bytes

ROWS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 16 << 20  # of results
FORMATS: Final = ("jsonl", "parquet")
SCHEMA_VERSION: Final = 1

# Name and type of each column of a Parquet file, in order.
COLUMNS: Final = (
    ("sandbox", "string"),
    ("ordinal", "int64"),
    ("rollout", "string"),
    ("job", "string"),
    ("action", "string"),
    ("op", "string"),
    ("outcome", "string"),
    ("started", "float64"),
    ("ended", "float64"),
    ("request", "string"),
    ("request_digest", "string"),
    ("result", "string"),
    ("error", "string"),
    ("error_fault", "string"),
    ("exit_code", "int64"),
    ("stdout", "string"),
    ("stderr", "string"),
    ("stdout_bytes", "int64"),
    ("stderr_bytes", "int64"),
    ("cpu_seconds", "float64"),
    ("memory_peak_bytes", "int64"),
    ("input_tokens", "int64"),
    ("output_tokens", "int64"),
    ("seq", "int64"),
    ("hash", "string"),
)

_json = msgspec.json.Encoder(order="deterministic")


class Writer(Protocol):
    """Takes events, some at a time."""

    def write(self, events: list[Event]) -> None:
        """Writes them."""

    def close(self) -> None:
        """Ends the file."""


def kind_of(path: str) -> str:
    """Returns the format that a file's name stands for."""
    return "parquet" if path.endswith(".parquet") else "jsonl"


def export(events: Iterable[Event], path: str, kind: str) -> int:
    """Writes a file; returns how many events are in it.

    Raises InvalidRequest for another kind, Unavailable without what it needs, StorageFailed.
    """
    partial = f"{path}.part-{os.getpid()}"
    count = 0
    try:
        with open(partial, "wb") as file:
            with contextlib.closing(writer_of(file, kind)) as writer:
                for rows in _batches(events):
                    writer.write(rows)
                    count += len(rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
    return count


def writer_of(file: BinaryIO, kind: str) -> Writer:
    """Returns what writes events of one format to a file that is open."""
    if kind == "jsonl":
        return Lines(file)
    if kind == "parquet":
        return Table(file)
    raise InvalidRequest(f"format: {kind[:40]!r} is none of {', '.join(FORMATS)}")


class Lines:
    """JSON lines: each an event as the API gives it, with every field."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, events: list[Event]) -> None:
        """Writes a line for each."""
        for event in events:
            self._file.write(_json.encode(whole(event)) + b"\n")

    def close(self) -> None:
        """Nothing is left to be written."""


class Table:
    """A Parquet file with the columns of `COLUMNS`, compressed by zstd."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            arrow = importlib.import_module("pyarrow")
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise Unavailable(
                "Parquet needs pyarrow, which is not installed: pip install 'skerry[parquet]'"
            ) from error
        self._arrow = arrow
        fields = [arrow.field(name, getattr(arrow, kind)()) for name, kind in COLUMNS]
        meta = {"skerry.schema_version": str(SCHEMA_VERSION)}
        self._schema = arrow.schema(fields, metadata=meta)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, events: list[Event]) -> None:
        """Writes a group of rows."""
        rows = [row_of(event) for event in events]
        self._writer.write_batch(self._arrow.RecordBatch.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        """Writes the footer."""
        self._writer.close()


def whole(event: Event) -> dict[str, Any]:
    """Returns an event as plain JSON with every field."""
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(event))
    return found


def row_of(event: Event) -> dict[str, Any]:
    """Returns an event's row: what a query asks for in columns, the rest as JSON texts."""
    result, error = event.result or {}, event.error or {}
    return {
        "sandbox": event.sandbox,
        "ordinal": event.ordinal,
        "rollout": event.rollout,
        "job": event.job,
        "action": event.action,
        "op": event.op or None,
        "outcome": str(event.outcome),
        "started": event.started,
        "ended": event.ended or None,
        "request": _text(event.request),
        "request_digest": event.request_digest,
        "result": None if event.result is None else _text(event.result),
        "error": None if event.error is None else _text(event.error),
        "error_fault": _word(error.get("fault")),
        "exit_code": _whole(result.get("exit_code")),
        "stdout": _content(result.get("stdout")),
        "stderr": _content(result.get("stderr")),
        "stdout_bytes": _whole(result.get("stdout_total")),
        "stderr_bytes": _whole(result.get("stderr_total")),
        "cpu_seconds": _real(event.usage.get("cpu_seconds")),
        "memory_peak_bytes": _whole(event.usage.get("memory_peak_bytes")),
        "input_tokens": _whole(event.usage.get("input_tokens")),
        "output_tokens": _whole(event.usage.get("output_tokens")),
        "seq": event.seq,
        "hash": event.hash,
    }


def _batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    rows: list[Event] = []
    weight = 0
    for event in events:
        rows.append(event)
        weight += sum(len(str(value)) for value in (event.result or {}).values())
        if len(rows) == ROWS_AT_ONCE or weight > BYTES_AT_ONCE:
            yield rows
            rows, weight = [], 0
    yield rows


def _text(value: dict[str, Any]) -> str:
    return _json.encode(value).decode()


def _content(value: Any) -> str | None:
    """Returns an output that stands in the event as text; None if it is elsewhere."""
    data = content_bytes(value) if isinstance(value, dict) else None
    return None if data is None else data.decode("utf-8", "replace")


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None
