"""Errors as people and programs see them: one line and a hint, or one JSON object; and the status."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

import click

from skerry.errors import (
    Bug,
    CallerError,
    ImageBroken,
    LayerDamaged,
    NotFound,
    ObjectDamaged,
    OutcomeUnknown,
    Overloaded,
    SkerryError,
    StorageFailed,
    Unauthorized,
    Unavailable,
)

if TYPE_CHECKING:
    from skerry.cli.app import App

OWN_FAILURE = 125  # as env, timeout and docker have it: not the command's status
USAGE = 2
TIMED_OUT = 124
NOT_STARTED = 126
NOT_FOUND = 127


def report(app: App, error: BaseException) -> int:
    """Says what went wrong on stderr and returns the exit status."""
    from skerry.cli.loop import Interrupted

    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else OWN_FAILURE
    if isinstance(error, Interrupted):
        if error.trouble is not None:
            app.warn(f"while cleaning up: {error.trouble}")
        if error.number == signal.SIGPIPE:
            _let_go_of_stdout()
        return 128 + error.number
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return 128 + signal.SIGINT
    if isinstance(error, click.ClickException):
        if type(error).__name__ == "NoArgsIsHelpError" and not app.as_json:
            click.echo(error.format_message(), err=True)  # the help says all
            return USAGE
        return _usage(app, error)
    if isinstance(error, BaseExceptionGroup):
        # Task groups wrap what happened; the first cause is what a reader can act on.
        return report(app, error.exceptions[0])
    if isinstance(error, SkerryError):
        _say(app, error)
    elif isinstance(error, OSError):
        _say(app, CallerError(_os_text(error), errno=error.errno))
    else:
        text = "".join(traceback.format_exception(error))
        if not app.as_json:
            click.echo(text, err=True, nl=False)
        _say(app, Bug(f"unexpected {type(error).__name__}: {error}", traceback=text))
    return OWN_FAILURE


def _say(app: App, error: SkerryError) -> None:
    from skerry.cli.jsonable import jsonable

    hint = hint_for(error, remote=app.settings.url is not None, state=app.settings.state)
    if app.as_json:
        fields = {name: value for name, value in error.fields.items() if name != "hint"}
        body = {
            "code": error.code,
            "fault": str(error.fault),
            "message": error.message,
            "retryable": error.retryable,
            "fields": jsonable(fields),
            "hint": hint,
        }
        click.echo(json.dumps(body, ensure_ascii=False), err=True)
        return
    app.warn(error.message)
    if hint:
        click.echo(f"  {hint}", err=True)


def _usage(app: App, error: click.ClickException) -> int:
    ctx = getattr(error, "ctx", None)
    carries_status = getattr(getattr(ctx, "command", None), "carries_status", False)
    path = ctx.command_path if ctx is not None else "skerry"
    hint = f"`{path} --help` lists the options"
    if app.as_json:
        body = {
            "code": "usage",
            "fault": "caller",
            "message": error.format_message(),
            "retryable": False,
            "fields": {},
            "hint": hint,
        }
        click.echo(json.dumps(body, ensure_ascii=False), err=True)
    else:
        app.warn(error.format_message())
        click.echo(f"  {hint}", err=True)
    return OWN_FAILURE if carries_status else USAGE


def _os_text(error: OSError) -> str:
    if error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _let_go_of_stdout() -> None:
    # Python flushes stdout at its end and would complain about the reader that has gone.
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
    except (OSError, ValueError):
        return


def hint_for(error: SkerryError, *, remote: bool, state: str) -> str | None:
    """Returns what a person can do about an error, if there is something."""
    own = error.fields.get("hint")
    if isinstance(own, str):
        return own
    if "skerry " in error.message:  # it says already what to run
        return None
    match error:
        case Unauthorized():
            return "put the node's token into SKERRY_TOKEN (--token-env names another variable)"
        case NotFound():
            return _hint_not_found(error)
        case Overloaded():
            wait = error.fields.get("retry_after_s")
            when = f"in {wait:g} s" if isinstance(wait, int | float) else "later"
            return f"try again {when}, or free room: `skerry ls` shows what runs"
        case OutcomeUnknown():
            return "the command may have run: look at its effects before you run it again"
        case ObjectDamaged():
            return "whoever keeps the store must look at that path, and remove what is there"
        case StorageFailed() if "reason" in error.fields:
            return None  # the message says it
        case StorageFailed():
            return "free space, then try again; `skerry doctor` shows the disks"
        case LayerDamaged():
            return "`skerry image verify --all` says what is damaged, and how to store it anew"
        case ImageBroken():
            return "remove the layer and make it again: `skerry image rm`, `skerry image build`"
        case Unavailable() if error.fields.get("reason") == "draining":
            return "use another node, or take it back: `skerry drain --undo`"
        case Unavailable() if remote:
            return "is the address right, and does the node run there?"
        case Unavailable():
            return "`skerry doctor` says what this machine lacks"
        case Bug():
            return f"this is a bug of Skerry; please report it with the log {state}/node.log"
    return None


def _hint_not_found(error: SkerryError) -> str | None:
    if any(kind in error.message for kind in ("base/", "workspace/", "toolkit/")):
        return "`skerry image ls` lists what there is"
    if "sandbox" in error.message:
        return "`skerry ls -a` lists sandboxes"
    if error.message.startswith(("no rollout", "no job")):
        return "`skerry trace ls --all` lists what is on record; --jobs names another place"
    return None
