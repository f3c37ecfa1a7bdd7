"""What goes over SWE-ReX's wire: requests, answers, and exceptions by the path of their class."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SESSION_NAME_MAX = 200


class CreateSession(msgspec.Struct):
    """Of POST /create_session."""

    session: str = "default"
    session_type: Literal["bash"] = "bash"
    startup_source: list[str] = []
    startup_timeout: float = 1.0


class Action(msgspec.Struct):
    """Of POST /run_in_session: a line for bash, or an interrupt."""

    action_type: Literal["bash", "bash_interrupt"] = "bash"
    session: str = "default"
    command: str = ""
    timeout: float | None = None
    is_interactive_command: bool = False
    is_interactive_quit: bool = False
    check: Literal["silent", "raise", "ignore"] = "raise"
    error_msg: str = ""
    expect: list[str] = []
    n_retry: int = 3


class CloseSession(msgspec.Struct):
    """Of POST /close_session."""

    session: str = "default"
    session_type: Literal["bash"] = "bash"


class Command(msgspec.Struct):
    """Of POST /execute."""

    command: str | list[str]
    timeout: float | None = None
    shell: bool = False
    check: bool = False
    error_msg: str = ""
    env: dict[str, str] | None = None
    cwd: str | None = None
    merge_output_streams: bool = False


class ReadFile(msgspec.Struct):
    """Of POST /read_file."""

    path: str
    encoding: str | None = None
    errors: str | None = None


class WriteFile(msgspec.Struct):
    """Of POST /write_file."""

    path: str
    content: str


class Thrown(Exception):
    """What SWE-ReX's client raises again: an exception of its own, of Python's, or of Skerry's."""

    def __init__(self, class_path: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.class_path = class_path
        self.message = message
        self.extra = extra

    def body(self) -> dict[str, Any]:
        """Returns the answer, whose status is 511."""
        told = {
            "message": self.message,
            "class_path": self.class_path,
            "traceback": "",
            "extra_info": self.extra,
        }
        return {"swerexception": told}


def of_swerex(name: str, message: str, **extra: Any) -> Thrown:
    """Returns an exception of `swerex.exceptions`."""
    return Thrown(f"swerex.exceptions.{name}", message, **extra)


def of_python(name: str, message: str) -> Thrown:
    """Returns one of Python's own."""
    return Thrown(f"builtins.{name}", message)
