"""`skerry`: global options, and where each command lives. Commands are imported when they are used."""

from __future__ import annotations

import click

from skerry.cli.app import TOKEN_VARIABLE, App, settings_from
from skerry.cli.group import TopGroup

# Where each command is, and its line in --help: so that --help imports none of them.
COMMANDS = {
    "demo": ("skerry.cli.demo:demo", "Run the main job on real tasks with scripted policies."),
    "rollout": ("skerry.cli.rollout:rollout", "Run a job: policies over tasks, graded."),
    "job": ("skerry.cli.job:job", "List, show, pause, resume and remove jobs."),
    "trace": (
        "skerry.cli.trace.command:trace",
        "What is on record: list, show, diff, export, stats, verify.",
    ),
    "task": ("skerry.cli.task:task", "Make, check and list tasks."),
    "run": ("skerry.cli.run:run", "Run one command in a new sandbox, which is then removed."),
    "call": ("skerry.cli.call:call", "Call a short program on a warm container."),
    "exec": ("skerry.cli.run:exec_", "Run a command in a live sandbox."),
    "shell": ("skerry.cli.shell:shell", "Open a terminal in a live or a new sandbox."),
    "cp": ("skerry.cli.copy:cp", "Copy files and trees into and out of a sandbox."),
    "watch": ("skerry.cli.watch:watch", "Tell what happens to files in a sandbox."),
    "forward": ("skerry.cli.forward:forward", "Reach a port inside from here, or the reverse."),
    "ps": ("skerry.cli.ops:ps", "List the commands that run in a sandbox."),
    "attach": ("skerry.cli.ops:attach", "Join a command that runs."),
    "kill": ("skerry.cli.ops:kill", "End a command with all its processes, or signal them."),
    "network": ("skerry.cli.network:network", "Show or change what a sandbox may reach."),
    "ls": ("skerry.cli.sandboxes:ls", "List sandboxes."),
    "inspect": ("skerry.cli.sandboxes:inspect", "Show all that is known of sandboxes."),
    "logs": ("skerry.cli.logs:logs", "Show a sandbox's commands and their recorded output."),
    "pause": ("skerry.cli.control:pause", "Let sandboxes stand still."),
    "resume": ("skerry.cli.control:resume", "Let paused sandboxes go on."),
    "stop": ("skerry.cli.control:stop", "End sandboxes; their results stay."),
    "extend": ("skerry.cli.control:extend", "Give live sandboxes other deadlines."),
    "rm": ("skerry.cli.sandboxes:rm", "Destroy sandboxes."),
    "commit": ("skerry.cli.commits:commit", "Make a layer of what a sandbox wrote."),
    "commits": ("skerry.cli.commits:commits", "List commits under way and the last ones."),
    "fork": ("skerry.cli.commits:fork", "Make sandboxes that begin with what one has on its disk."),
    "image": ("skerry.cli.image:image", "Build, import, list and remove layers."),
    "disk": ("skerry.cli.disk:disk", "Make and open block disks, take snapshots of them."),
    "up": ("skerry.cli.up:up", "Start a node in the background, or stop it."),
    "top": ("skerry.cli.top:top", "Watch what sandboxes use."),
    "drain": ("skerry.cli.control:drain", "Empty a node: no new sandboxes, the live ones finish."),
    "node": ("skerry.cli.node:node", "Run a node in the foreground."),
    "worker": ("skerry.cli.worker:worker", "Own rollouts, as a process of a node."),
    "doctor": ("skerry.cli.doctor:doctor", "Say what this machine can do and what is missing."),
    "census": ("skerry.cli.census:census", "List what Skerry holds on this machine, and orphans."),
    "bench": ("skerry.cli.bench:bench", "Run the benchmarks of the checkout."),
    "completion": ("skerry.cli.completion:completion", "Print the completion script of a shell."),
}


@click.group(
    cls=TopGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--url", metavar="URL", help="Node: http://HOST:PORT or unix:///PATH [SKERRY_URL].")
@click.option(
    "--token-env",
    metavar="NAME",
    default=TOKEN_VARIABLE,
    show_default=True,
    help="Environment variable that holds the node's token.",
)
@click.option("--state", "state_dir", metavar="DIR", help="State directory of the local node.")
@click.option("--run", "run_dir", metavar="DIR", help="Run directory of the local node.")
@click.version_option(package_name="skerry", prog_name="skerry", message="%(prog)s %(version)s")
@click.pass_obj
def cli(
    app: App, /, *, url: str | None, token_env: str, state_dir: str | None, run_dir: str | None
) -> None:
    """Sandboxes in which AI agents are trained and evaluated.

    Try: skerry demo, or: skerry run default -- python3 --version
    """
    app.settings = settings_from(url=url, token_env=token_env, state_dir=state_dir, run_dir=run_dir)


def main() -> None:
    """Runs the command line and ends the process with its status."""
    cli(prog_name="skerry")


if __name__ == "__main__":
    main()
