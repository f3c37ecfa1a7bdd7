"""Groups and commands of click with our habits: late imports, options everywhere, one error report."""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from skerry.cli import sigint
from skerry.cli.app import App
from skerry.cli.failure import report


def _set_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(App).as_json = True


def _set_quiet(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(App).quiet = True


def common_options() -> list[click.Parameter]:
    """Returns the options that every command and group takes."""
    return [
        click.Option(
            ["--json"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_set_json,
            help="Machine output: JSON objects, one a line.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_set_quiet,
            help="No notes and no progress.",
        ),
    ]


class SkerryCommand(click.Command):
    """A command; with `carries_status` its exit status is a sandboxed command's.

    Then Skerry's own failures, wrong usage too, are 125, so that they cannot be mistaken for it.
    With `takes_command`, words after `--` (or, without one, after the first argument) are taken as
    they stand.
    """

    def __init__(
        self,
        *args: Any,
        carries_status: bool = False,
        takes_command: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.carries_status = carries_status
        self.takes_command = takes_command
        self.params.extend(common_options())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses, with the words of a sandboxed command kept apart."""
        if self.takes_command and "--" not in args:
            ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; a reader of our output that has gone ends it as SIGPIPE would."""
        sigint.raise_again()
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would end with 1, as a command in a sandbox may
            from skerry.cli.loop import Interrupted

            raise Interrupted(signal.SIGPIPE) from error


class SkerryGroup(click.Group):
    """A group whose commands are SkerryCommands."""

    command_class = SkerryCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(common_options())


class LazyGroup(SkerryGroup):
    """A group that knows its commands' help lines and imports a command when it is used."""

    def __init__(
        self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names in the order in which they were given."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns a command."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command; for a mistyped one names those that it may have been."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if not close or "mean" in error.message:  # newer versions of click say it themselves
                raise
            text = f"{error.message} Did you mean {' or '.join(close)}?"
            raise click.UsageError(text, error.ctx or ctx) from None

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazy.items()])


class TopGroup(LazyGroup):
    """The top: makes the App, reports every error in one place and ends with the status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs a command line; with `standalone_mode` ends the process, else returns the status."""
        app = extra.setdefault("obj", App())
        try:
            value = super().main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
            status = value if isinstance(value, int) else 0
            sys.stdout.flush()
            sigint.leave_at_once()
        except BaseException as error:  # noqa: BLE001 - the one place where all errors end
            sigint.leave_at_once()
            status = report(app, error)
        if standalone_mode:
            sys.exit(status)
        return status
