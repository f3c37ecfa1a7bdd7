"""`skerry completion`: the script that teaches a shell our commands, options, ids and layers."""

from __future__ import annotations

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand

FILES = {
    "bash": 'eval "$(skerry completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(skerry completion zsh)"   in ~/.zshrc',
    "fish": "skerry completion fish > ~/.config/fish/completions/skerry.fish",
}


@click.command(cls=SkerryCommand)
@click.argument("shell", type=click.Choice(list(FILES)))
@click.pass_context
def completion(ctx: click.Context, /, *, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    app = ctx.ensure_object(App)
    found = get_completion_class(shell)
    if found is None:  # this click is older than the shell's support
        raise click.UsageError(f"click knows no completion for {shell}", ctx)
    script = found(ctx.find_root().command, {}, "skerry", "_SKERRY_COMPLETE")
    app.line(script.source())
    app.note(f"to use it: {FILES[shell]}")
