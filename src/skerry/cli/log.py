"""How a daemon logs: lines for people or JSON, into a file of bounded size or onto stderr."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from logging.handlers import RotatingFileHandler

LOG_BYTES = 8 << 20
LOG_FILES = 2  # older ones that are kept: NAME.1 and NAME.2
LINE_CHARACTERS = 16_384  # of a message; what is beyond is cut
CONTROLS = {
    number: f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
    for number in (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)
}
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SANDBOX = re.compile(r"s[a-z2-7]{20}")
OPERATION = re.compile(r"[0-9a-f]{32}")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the ids that the line is about.

    Ids are found among the arguments of the line: what is logged as an argument and looks like an
    id of a sandbox or an operation is one (ids are not guessable, so nothing else does).
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
            "pid": record.process,
        }
        arguments = record.args if isinstance(record.args, tuple) else ()
        for argument in arguments:
            if isinstance(argument, str):
                if SANDBOX.fullmatch(argument):
                    fields.setdefault("sandbox", str(argument))
                elif OPERATION.fullmatch(argument):
                    fields.setdefault("operation", argument)
        if record.exc_info:
            fields["error"] = _cut(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line for people; only a traceback takes more. No message can look like another line."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's
        """Returns the line, its control characters written out."""
        return _cut(super().formatMessage(record)).translate(CONTROLS)


def _cut(text: str) -> str:
    if len(text) <= LINE_CHARACTERS:
        return text
    return f"{text[:LINE_CHARACTERS]} ... and {len(text) - LINE_CHARACTERS} characters more"


class DaemonLog(RotatingFileHandler):
    """A log of bounded size. What the process itself writes to stderr follows into the new file."""

    def __init__(self, path: str) -> None:
        self._led = _leads_to(path)
        super().__init__(
            path,
            maxBytes=LOG_BYTES,
            backupCount=LOG_FILES,
            encoding="utf-8",
            errors="backslashreplace",  # names from inside may be no UTF-8
        )

    def doRollover(self) -> None:  # noqa: N802 - the name is the base class's
        """Begins a new file."""
        super().doRollover()
        if self.stream is not None:
            for descriptor in self._led:
                os.dup2(self.stream.fileno(), descriptor)


def _leads_to(path: str) -> tuple[int, ...]:
    """Returns which of stdout and stderr are this file: who started us sent them there."""
    try:
        wanted = os.stat(path)
        return tuple(
            descriptor for descriptor in (1, 2) if os.path.samestat(os.fstat(descriptor), wanted)
        )
    except OSError:
        return ()


def start_logging(*, quiet: bool, log_format: str, log_file: str | None) -> None:
    """Sets the process's logging up, once."""
    handler: logging.Handler
    handler = logging.StreamHandler(sys.stderr) if log_file is None else DaemonLog(log_file)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it tells of every connection
