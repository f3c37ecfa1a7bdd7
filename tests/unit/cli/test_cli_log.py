"""The daemon's log: lines that programs can read, and a size that is bounded."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.cli import log as cli_log
from skerry.cli.log import DaemonLog, JsonFormatter, TextFormatter
from skerry.spec import ids

SANDBOX = str(ids.sandbox_id("abcde", 1, b"12345678"))


def record(text: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    trouble = (type(error), error, None) if error is not None else None
    return logging.LogRecord("skerry.node", logging.WARNING, "f", 1, text, arguments, trouble)


def test_json_line_names_sandbox_and_operation() -> None:
    line = JsonFormatter().format(
        record('%s of %s: %d\nand "more"', "ab" * 16, SANDBOX, 3, error=ValueError("why"))
    )
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["sandbox"], fields["operation"]) == (SANDBOX, "ab" * 16)
    assert (fields["level"], fields["logger"]) == ("warning", "skerry.node")
    assert fields["message"].endswith('and "more"')
    assert "ValueError: why" in fields["error"]
    assert fields["time"].endswith("Z")


def test_line_about_nothing_has_no_ids() -> None:
    fields = json.loads(JsonFormatter().format(record("up %s", "to date")))
    assert not {"sandbox", "operation", "error"} & set(fields)


def test_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_log, "LOG_BYTES", 2000)
    handler = DaemonLog(str(tmp_path / "node.log"))
    try:
        for number in range(500):
            handler.emit(record("line %d", number))
    finally:
        handler.close()
    assert sorted(os.listdir(tmp_path)) == ["node.log", "node.log.1", "node.log.2"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * 2000
    assert "line 499" in (tmp_path / "node.log").read_text()


@pytest.mark.parametrize("formatter", [JsonFormatter, TextFormatter])
def test_name_that_is_no_utf8_is_logged(tmp_path: Path, formatter: type[logging.Formatter]) -> None:
    handler = DaemonLog(str(tmp_path / "node.log"))
    handler.setFormatter(formatter())
    try:
        handler.emit(record("left %s behind", "a\udcff"))
    finally:
        handler.close()
    (line,) = (tmp_path / "node.log").read_text(encoding="utf-8").splitlines()
    assert "left a\\udcff behind" in line
    if formatter is JsonFormatter:
        assert json.loads(line)["message"] == "left a\udcff behind"


def test_message_can_neither_look_like_another_line_nor_move_the_cursor() -> None:
    forged = "x\n2026-11-30 00:00:00,000 INFO skerry.node: all is well\r\x1b[2J\x85\u2028"
    line = TextFormatter().format(record("%s", forged))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    with_error = TextFormatter().format(record("why", error=ValueError("a")))
    assert with_error.splitlines()[-1] == "ValueError: a"


@pytest.mark.parametrize("formatter", [JsonFormatter, TextFormatter])
def test_line_is_bounded(formatter: type[logging.Formatter]) -> None:
    error = ValueError("y" * 10_000_000) if formatter is JsonFormatter else None
    line = formatter().format(record("%s", "x" * 10_000_000, error=error))
    assert len(line) < 4 * cli_log.LINE_CHARACTERS
    assert "characters more" in line


def test_stderr_follows_into_the_new_file(tmp_path: Path) -> None:
    """What the interpreter itself says at a crash must not go into a file that is deleted soon."""
    program = """if True:
        import logging, sys
        from skerry.cli import log
        log.LOG_BYTES = 1000
        log.start_logging(quiet=False, log_format="text", log_file=sys.argv[1])
        for n in range(100):
            logging.getLogger("x").warning("line %d", n)
        print("last words", file=sys.stderr, flush=True)
    """
    path = tmp_path / "node.log"
    with path.open("ab") as output:
        subprocess.run(
            [sys.executable, "-c", program, str(path)], stdout=output, stderr=output, check=True
        )
    assert path.read_text().endswith("last words\n")
