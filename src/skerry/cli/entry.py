"""The process `skerry`. Its script imports this first; from then on SIGINT does what it should.

Before that, in the first milliseconds of an interpreter, SIGINT does what Python has it do.
"""

import sys

from skerry.cli import sigint

sigint.own_process()


def main() -> None:
    """Runs the command line and ends the process with its status; 130 after SIGINT, whenever it came."""
    try:
        from skerry.cli.main import main as run

        run()
    except KeyboardInterrupt:  # in the moment between a command's end and its report
        sigint.leave_at_once()
        sys.exit(sigint.STATUS)
