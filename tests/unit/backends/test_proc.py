"""What /proc says of processes that come and go."""

from __future__ import annotations

import os
import subprocess
import sys

from skerry.backends.shared import proc
from waiting import soon


def test_process_that_has_ended_does_not_run_though_its_number_is_still_there():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert proc.runs(child.pid)
        assert soon(lambda: proc.words(child.pid)[1:] == ("-c", "input()"))
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert soon(lambda: not proc.runs(child.pid))
        assert os.path.exists(f"/proc/{child.pid}")  # nobody has waited for it
        assert proc.words(child.pid) == ()
    assert not proc.runs(child.pid)


def test_what_is_not_there_reads_as_empty(tmp_path):
    gone = str(tmp_path / "gone")
    assert (proc.text(gone), proc.names(gone), proc.link(gone)) == ("", [], "")


def test_option_without_a_value_has_none():
    line = ("skerry-spawn", "--run", "/run/x", "--state")
    assert [proc.option(line, name) for name in ("--run", "--state", "--init")] == [
        "/run/x",
        "",
        "",
    ]
