"""The driver of a session's shell: the script that a shell runs to run scripts (native/PROTOCOL.md).

The agent starts the shell with the pipe of numbers as its standard input, and with the file of the
present script and the pipe of answers as descriptors 8 and 9. The driver puts all of these out of
reach: it closes them for everything inside a `{ ...; }` by redirections, which the shell undoes at
the end of the block and for which it keeps copies that close on exec. Those copies it uses, by their
names in /proc/self/fd; so a script sees, and its programs inherit, nothing but 0, 1 and 2.

`exit`, `set -e` and fatal errors run the EXIT trap, in which a subshell (a fork, so everything that
was set is still there) answers and goes on; the agent ends the old one. Signal 62 makes the shell
leave a script that has timed out. Shells in which this does not work (zsh, ksh) end at `exit`, and
the agent starts another one.
"""

from __future__ import annotations

import os
from typing import Final

FALLBACK: Final = "/bin/sh"

# Names in it begin with __skerry_: n number of the script that runs, m the
# same for the answer at its exit, r result of the last script, p process, x the shell's options at
# its exit (whose trace is for scripts, not for this), and the files:
# s script, a answers, e stderr, g numbers, o stdout.
#
# - `>|` because of `set -C`; `IFS=` because scripts may set it; the redirections of `.` give a script
#   fresh streams, so one that closes or redirects its own does so for itself alone. Its 0 is the
#   block's, not the name /dev/null: whoever may remove that would have every later script fail.
# - `&& :` sets $? for the script without an ERR trap or `set -e` taking notice.
# - n is empty but while a script runs: a shell that leaves the loop for another reason (its pipes
#   are gone) must end, or each fork of the EXIT trap would make the next one, for ever.
# - bash undoes the block's redirections before it runs the EXIT trap, unless a function called
#   `exit`; dash never does. Hence the two ways to go on.
_DRIVER: Final = r"""
__skerry_find='for __skerry_n in 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
{ [ -f "/proc/self/fd/$__skerry_n" ] || [ -p "/proc/self/fd/$__skerry_n" ]; } &&
set -- "$@" "/proc/self/fd/$__skerry_n"
done
__skerry_n=
__skerry_s=$1 __skerry_a=$2 __skerry_e=$3 __skerry_g=$4 __skerry_o=$5'
__skerry_loop='case ${__skerry_x-} in *x*) set -x ;; esac
case ${__skerry_x-} in *v*) set -v ;; esac
while IFS= @ read -r __skerry_n <"$__skerry_g"; do
__skerry_status "$__skerry_r" && :
. "$__skerry_s" 0</proc/self/fd/0 1>|"$__skerry_o" 2>|"$__skerry_e"
__skerry_r=$?
@ echo "$__skerry_n $__skerry_r $__skerry_p" >|"$__skerry_a" || exit "$__skerry_r"
__skerry_n=
done
exit "$__skerry_r"'
__skerry_start='{
__skerry_find
[ -f "$__skerry_s" ] && [ -p "$__skerry_a" ] && [ -p "$__skerry_e" ] && [ -p "$__skerry_g" ] &&
[ -p "$__skerry_o" ] || exit 125
eval "$__skerry_loop"
} 8<&- 9>&- 2>/dev/null 0</dev/null 1>|/proc/self/fd/1'
__skerry_exit='{ __skerry_r=$? __skerry_x=$-; set +xv; } 2>/dev/null || exit
[ -z "$__skerry_n" ] || ( trap "$__skerry_exit" EXIT; trap "exit 143" 62
__skerry_m=$__skerry_n __skerry_n=
IFS=" " @ read -r __skerry_p __skerry_y </proc/self/stat
if [ -f "$__skerry_s" ] && [ -p "$__skerry_a" ]; then
exec 0</dev/null 1>|"$__skerry_o" 2>/dev/null
@ echo "$__skerry_m $__skerry_r $__skerry_p" >|"$__skerry_a" || exit "$__skerry_r"
eval "$__skerry_loop"
else
@ echo "$__skerry_m $__skerry_r $__skerry_p" >&9 || exit "$__skerry_r"
eval "$__skerry_start"
fi )'
__skerry_find() { eval "$__skerry_find"; }
__skerry_status() { return "$1"; }
__skerry_n= __skerry_r=0 __skerry_p=$$
[ -z "${BASH_VERSION-}" ] || shopt -s expand_aliases
unset BASH_EXECUTION_STRING
case ${ZSH_VERSION-}${KSH_VERSION-}${YASH_VERSION-} in
"") trap "$__skerry_exit" EXIT; trap "exit 143" 62 ;;
esac
eval "$__skerry_start"
exit
"""

# What is dearer in every shell but works in all, and what bash can do instead: what only the driver
# uses is named by its number, not opened each time. (A script's own streams are opened: a program
# that makes its output nonblocking does so for that command alone.)
_IN_BASH: Final = (
    ('@ read -r __skerry_n <"$__skerry_g"', '@ read -r -u "${__skerry_g##*/}" __skerry_n'),
    ('__skerry_p" >|"$__skerry_a"', '__skerry_p" >&"${__skerry_a##*/}"'),
    (  # a restricted shell (`set -r`) may run no script any more: it must not look as if one failed
        "__skerry_r=$?\n@ echo",
        '__skerry_r=$?\ncase $__skerry_r$- in [1-9]*r*) exit "$__skerry_r" ;; esac\n@ echo',
    ),
    (
        '\n__skerry_status "$__skerry_r" && :',
        '\ncase $__skerry_r in 0) ;; *) __skerry_status "$__skerry_r" && : ;; esac',
    ),
)


def driver(shell: str) -> str:
    """Returns the driver for a shell, by its path or name."""
    name = os.path.basename(shell)
    text = _DRIVER
    if name == "bash":
        for usual, cheap in _IN_BASH:
            text = text.replace(usual, cheap)
    # What runs a builtin even if a function has its name.
    return text.replace("@ ", "builtin " if name in {"bash", "zsh"} else "command ")


def argv(shell: str) -> tuple[str, ...]:
    """Returns the arguments that make a session of a shell."""
    name = os.path.basename(shell)
    words = [shell]
    if name == "busybox":
        words.append("sh")
    elif name == "zsh":
        words.append("-f")  # no start files, as in any other shell that runs -c
    return (*words, "-c", driver(shell), name)
