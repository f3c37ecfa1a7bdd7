"""What is made of events: figures, comparisons, files."""

from __future__ import annotations

import json
import sys

import pytest

from skerry.errors import InvalidRequest, StorageFailed, Unavailable
from skerry.spec.trajectory import Event, Outcome, content, request_digest
from skerry.trajectory.reports import export as module
from skerry.trajectory.reports.difference import Kind, compare
from skerry.trajectory.reports.export import COLUMNS, export
from skerry.trajectory.reports.stats import TrajectoryStats, stats_of

BOX = "s" + "a" * 20


def event(ordinal: int, started: float, ended: float, action: str = "run", **fields) -> Event:
    request = fields.pop("request", {"argv": ["echo", str(ordinal)]})
    outcome = fields.pop("outcome", Outcome.DONE)
    if outcome is Outcome.DONE:
        fields.setdefault("result", {"exit_code": 0})
    return Event(
        ordinal=ordinal, sandbox=BOX, action=action, request=request, outcome=outcome,
        request_digest=request_digest(request), started=started, ended=ended, **fields,
    )  # fmt: skip


def test_time_is_at_work_between_or_paused_and_overlaps_count_once():
    stats = stats_of(
        [
            event(0, 0.0, 1.0, "create"),
            event(1, 3.0, 5.0),  # two seconds between
            event(2, 4.0, 6.0),  # one of its two seconds is new
            event(3, 7.0, 7.0, "pause"),
            event(4, 17.0, 17.0, "resume"),
            event(5, 18.0, 20.0),
            event(6, 19.0, 0.0, outcome=Outcome.RUNNING),
        ]
    )
    assert (stats.busy_s, stats.between_s, stats.paused_s) == (6.0, 4.0, 10.0)
    assert stats.span_s == stats.busy_s + stats.between_s + stats.paused_s == 20.0
    assert (stats.events, stats.commands, stats.sandboxes) == (7, 4, 1)


def model_request(ordinal: int, started: float, ended: float, **fields) -> Event:
    request = {"ordinal": ordinal, "new": [{"role": "user", "text": "q"}], "digest": "d"}
    result = {"answered": True, "answer": {"text": "a"}, "sha256": "s", "bytes": 1}
    usage = {"input_tokens": 20, "output_tokens": 3}
    fields = {"request": request, "result": result, "usage": usage} | fields
    return event(ordinal, started, ended, "model.request", **fields)


def test_requests_of_a_model_are_no_work_and_are_counted_with_their_tokens():
    lone = [event(0, 0.0, 1.0), event(1, 4.0, 5.0)]
    asking = [lone[0], model_request(1, 1.0, 3.5), model_request(2, 3.5, 4.0), lone[1]]
    asking.append(model_request(3, 5.0, 5.0, result={"answered": False}, usage={}))
    stats, without = stats_of(asking), stats_of(lone)
    assert (stats.model_requests, stats.model_s) == (2, 3.0)
    assert (stats.input_tokens, stats.output_tokens) == (40, 6)
    assert (stats.busy_s, stats.between_s) == (without.busy_s, without.between_s) == (2.0, 3.0)


def test_requests_of_a_model_are_compared_by_what_is_said():
    one = model_request(0, 0, 1)
    drawn = {"digest": "e", "sha256": "t", "bytes": 2}
    same = model_request(0, 5, 9, request=one.request | drawn, result=one.result | drawn)
    assert [pair.kind for pair in compare([one], [same])] == [Kind.SAME]
    other = model_request(0, 0, 1, result=one.result | {"answer": {"text": "b"}})
    assert [pair.kind for pair in compare([one], [other])] == [Kind.OUTCOME]
    asked = one.request | {"new": [{"role": "user", "text": "p"}]}
    assert [pair.kind for pair in compare([one], [model_request(0, 0, 1, request=asked)])] == [
        Kind.REQUEST
    ]


def test_failures_are_counted_by_fault_and_commands_by_how_they_ended():
    def error(fault: str) -> dict:
        return {"code": "x", "fault": fault, "message": "m"}

    stats = stats_of(
        [
            event(0, 0, 1, result={"exit_code": 3, "stdout_total": 10, "stderr_total": 5}),
            event(1, 1, 2, result={"exit_code": 0, "stdout": content(b"four")}),
            event(2, 2, 3, result={"signal": 9, "timed_out": True, "oom_killed": True}),
            event(3, 3, 4, outcome=Outcome.ERROR, error=error("caller")),
            event(4, 4, 5, outcome=Outcome.ERROR, error=error("platform")),
            event(5, 5, 6, outcome=Outcome.UNKNOWN, error=error("platform")),
        ]
    )
    assert (stats.nonzero, stats.timed_out, stats.oom_killed) == (2, 1, 1)
    assert (stats.bytes_out, stats.failures, stats.unknown) == (
        19,
        {"caller": 1, "platform": 1},
        1,
    )
    total = TrajectoryStats()
    total.add(stats)
    total.add(stats)
    assert (total.commands, total.failures["caller"], total.sandboxes) == (12, 2, 2)
    assert stats.failures["caller"] == 1


def test_runs_that_differ_in_times_and_ids_only_are_the_same():
    one = [event(0, 1, 2, op="1" * 32, result={"exit_code": 0, "op_id": "1", "cpu_seconds": 1})]
    two = [event(0, 5, 9, op="2" * 32, result={"exit_code": 0, "op_id": "2", "cpu_seconds": 2})]
    assert [pair.kind for pair in compare(one, two)] == [Kind.SAME]


def test_difference_is_of_the_request_or_of_what_came_of_it_or_of_the_length():
    one = [
        event(0, 0, 1, "create", request={"image": "a", "key": "k1"}, result={"create_ms": 1}),
        event(1, 1, 2),
        event(2, 2, 3, result={"exit_code": 0}),
        event(3, 3, 4),
    ]
    two = [
        event(0, 0, 1, "create", request={"image": "a", "key": "k2"}, result={"create_ms": 9}),
        event(1, 1, 2, request={"argv": ["other"]}),
        event(2, 2, 3, result={"exit_code": 1}),
    ]
    kinds = [Kind.SAME, Kind.REQUEST, Kind.OUTCOME, Kind.LEFT_ONLY]
    assert [pair.kind for pair in compare(one, two)] == kinds
    assert [pair.kind for pair in compare(two, one)][-1] is Kind.RIGHT_ONLY


def test_content_is_compared_by_what_it_is_and_not_by_where():
    import hashlib

    data = b"x" * 5000
    blob = {"blob": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    one = [event(0, 0, 1, result={"stdout": content(data)})]
    assert [pair.kind for pair in compare(one, [event(0, 0, 1, result={"stdout": blob})])] == [
        Kind.SAME
    ]


EVENTS = [
    event(0, 1.0, 2.0, "create", request={"image": "debian:12"}, rollout="r", job="j"),
    event(1, 2.0, 3.5, result={"exit_code": 0, "stdout": content(b"\xc3\xa4"), "stdout_total": 2}),
    event(2, 3.5, 4.0, result={"signal": 9, "stdout": content(b"\xff")}, usage={"cpu_seconds": 1}),
    event(3, 4.0, 0.0, outcome=Outcome.RUNNING),
    event(4, 4.0, 5.0, outcome=Outcome.ERROR, error={"code": "invalid", "fault": "caller"}),
    model_request(5, 5.0, 6.0),
]


def test_json_lines_have_every_field_of_every_event(tmp_path):
    path = tmp_path / "out.jsonl"
    assert export(EVENTS, str(path), "jsonl") == 6
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["ordinal"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert all(line.keys() == set(Event.__struct_fields__) for line in lines)
    assert lines[1]["result"]["stdout"] == {"bytes": 2, "text": "ä"}
    assert lines[0]["rollout"] == "r"


def test_parquet_has_the_documented_columns_and_the_same_events(tmp_path, monkeypatch):
    from pyarrow import parquet

    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    path = tmp_path / "out.parquet"
    assert export(EVENTS, str(path), "parquet") == 6
    table = parquet.read_table(path)
    assert [(field.name, str(field.type)) for field in table.schema] == [
        (name, "double" if kind == "float64" else kind) for name, kind in COLUMNS
    ]
    assert table.schema.metadata[b"skerry.schema_version"] == b"1"
    rows = table.to_pylist()
    assert [row["exit_code"] for row in rows] == [0, 0, None, None, None, None]
    assert [row["stdout"] for row in rows] == [None, "ä", "\ufffd", None, None, None]
    assert [row["ended"] for row in rows] == [2.0, 3.5, 4.0, None, 5.0, 6.0]
    assert [row["error_fault"] for row in rows] == [None] * 4 + ["caller", None]
    assert json.loads(rows[2]["result"])["stdout"] == {"base64": "/w==", "bytes": 1}
    assert rows[2]["cpu_seconds"] == 1.0
    assert [row["input_tokens"] for row in rows] == [None] * 5 + [20]
    assert rows[5]["output_tokens"] == 3


def test_parquet_without_any_event_is_a_file_with_columns(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "none.parquet"
    assert export([], str(path), "parquet") == 0
    assert parquet.read_table(path).num_rows == 0


def test_export_that_fails_midway_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old")

    def broken():
        yield EVENTS[0]
        raise StorageFailed("the node is gone")

    for kind in ("jsonl", "parquet"):
        with pytest.raises(StorageFailed):
            export(broken(), str(path), kind)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["out.jsonl"]
    with pytest.raises(StorageFailed):
        export(EVENTS, str(tmp_path / "no" / "where"), "jsonl")


def test_other_formats_and_a_missing_library_are_named(tmp_path, monkeypatch):
    with pytest.raises(InvalidRequest, match="csv"):
        export(EVENTS, str(tmp_path / "x"), "csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unavailable, match=r"skerry\[parquet\]"):
        export(EVENTS, str(tmp_path / "x"), "parquet")
    assert list(tmp_path.iterdir()) == []


def test_export_holds_few_events_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BYTES_AT_ONCE", 10_000)
    written = []
    monkeypatch.setattr(module.Lines, "write", lambda _self, events: written.append(len(events)))
    big = [event(n, n, n + 1, result={"stdout": content(b"x" * 4000)}) for n in range(20)]
    export(iter(big), str(tmp_path / "x"), "jsonl")
    assert sum(written) == 20
    assert max(written) <= 3
