# Shared by the scripts beside it; sourced, never run.
# shellcheck shell=bash
#
# Everything a person reads goes to standard error, so that scripts can print their one
# result (a path) on standard output.

SKERRY_CACHE=${SKERRY_CACHE:-/var/cache/skerry}
# shellcheck disable=SC2034  # read by the scripts that source this file
DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf '%s\n' "$*" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# What must be gone when a script ends, however it ends: paths are added to CLEANUP.
CLEANUP=()
STEP_LOG=
STEP_BEAT=
clean_up() {
    [ -z "$STEP_BEAT" ] || kill "$STEP_BEAT" 2>/dev/null || true
    [ -z "$STEP_LOG" ] || rm -f "$STEP_LOG"
    [ "${#CLEANUP[@]}" -eq 0 ] || rm -rf "${CLEANUP[@]}"
}
trap clean_up EXIT
# A signal ends the script through its exit trap.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Seconds with one digit since the given $EPOCHREALTIME.
seconds_since() {
    local now=${EPOCHREALTIME/[.,]/} then=${1/[.,]/}
    local tenths=$(((now - then) / 100000))
    printf '%d.%d s' $((tenths / 10)) $((tenths % 10))
}

# step TITLE COMMAND...: run COMMAND with its output in a log, say how long it took.
# A step that takes longer shows its age and its last line of output every few seconds, so
# that nobody has to guess whether it hangs. On failure the end of the log is shown.
# COMMAND stays in the foreground: Ctrl-C must reach it.
step() {
    local title=$1 started=$EPOCHREALTIME status=0
    shift
    STEP_LOG=$(mktemp "${TMPDIR:-/tmp}/skerry-step.XXXXXXXX")
    say "==> $title"
    heartbeat "$started" "$STEP_LOG" &
    STEP_BEAT=$!
    "$@" >"$STEP_LOG" 2>&1 </dev/null || status=$?
    kill "$STEP_BEAT" 2>/dev/null || true
    wait "$STEP_BEAT" 2>/dev/null || true
    STEP_BEAT=
    if [ "$status" -ne 0 ]; then
        say "    failed after $(seconds_since "$started") (exit status $status); the last lines were:"
        tail -n 40 "$STEP_LOG" | sed 's/^/    | /' >&2
    else
        say "    done in $(seconds_since "$started")"
    fi
    rm -f "$STEP_LOG"
    STEP_LOG=
    return "$status"
}

# The running line of a step, until it is told to end or the script is gone (kill -9). It
# holds no lock of the script's, or a killed run would keep the next one waiting.
heartbeat() {
    exec 8>&- 9>&-
    trap 'kill "$!" 2>/dev/null; exit 0' TERM
    trap - EXIT HUP INT
    local delay=2 last
    while :; do
        # 'wait' and not a plain sleep: bash runs a trap only between commands.
        sleep "$delay" &
        wait "$!"
        kill -0 "$$" 2>/dev/null || exit 0
        delay=10
        last=$(tail -c 4096 "$2" 2>/dev/null | tr '\r' '\n' | grep -v '^[[:space:]]*$' |
            tail -n 1 | tr -cd '[:print:]' | cut -c 1-60) || last=
        say "    ... $(seconds_since "$1")  $last"
    done
}

# Names of the given packages that are not installed, one a line.
missing_packages() {
    # dpkg-query fails when it has never heard of one of the names: those are missing too.
    local installed
    installed=$(dpkg-query --show --showformat '${db:Status-Abbrev}${Package}\n' "$@" 2>/dev/null |
        sed -n 's/^ii //p') || true
    local name
    for name in "$@"; do
        case $'\n'$installed$'\n' in
        *$'\n'"$name"$'\n'*) ;;
        *) printf '%s\n' "$name" ;;
        esac
    done
}

apt_update() { apt-get -q -o DPkg::Lock::Timeout=300 update; }

# Programs are wanted and no services: docker-registry would serve on all addresses. Where the
# machine has a rule of its own for that, it stands.
POLICY=/usr/sbin/policy-rc.d
apt_install() (
    if [ ! -e "$POLICY" ]; then
        trap 'rm -f "$POLICY"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$POLICY"
        chmod 755 "$POLICY"
    fi
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Options::=--force-confold install --no-install-recommends "$@"
)

# need_packages WHY PACKAGE...: install what is missing; costs a few milliseconds when
# nothing is.
need_packages() {
    local why=$1 missing
    shift
    mapfile -t missing < <(missing_packages "$@")
    [ "${#missing[@]}" -eq 0 ] && return 0
    # The lists of a fresh machine are empty or old, so they are always fetched first; once
    # per run is enough.
    if [ -z "${apt_lists_fresh:-}" ]; then
        step "Debian package lists" apt_update
        apt_lists_fresh=1
    fi
    step "Debian packages for $why: ${missing[*]}" apt_install "${missing[@]}"
}

# archive_uri LABEL: the address of the configured archive with that label ("Debian",
# "Debian-Security"), as this machine's own apt configuration has it: the only place where
# a mirror is named. Both forms of source lists are read by apt itself. Empty when none.
archive_uri() {
    local uri
    # shellcheck disable=SC2016  # the names in the format are apt's
    uri=$(apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        sed -n "s/^$1|//p" | head -n 1) || true
    printf '%s' "$uri"
}

# private_apt DIR: prepare DIR as an apt state of its own and set the array APT_PRIVATE to
# the options that make apt use it. The machine's lists, pins and caches stay untouched.
# The caller writes DIR/sources.list.
private_apt() {
    mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
    : >"$1/sources.list"
    # shellcheck disable=SC2034  # read by the scripts that source this file
    APT_PRIVATE=(
        -q
        -o "Dir::State::lists=$1/lists"
        -o "Dir::Cache=$1/cache"
        -o "Dir::Etc::sourcelist=$1/sources.list"
        -o Dir::Etc::sourceparts=/dev/null
        -o Dir::Etc::preferences=/dev/null
        -o Dir::Etc::preferencesparts=/dev/null
        # The directory is below one that only root may enter, so apt's own user cannot.
        -o APT::Sandbox::User=root
    )
}

# Only one run at a time may fill one part of the cache; a second one waits and then finds
# it filled. The lock goes with the process.
lock_cache() {
    mkdir -p "$SKERRY_CACHE"
    exec 9>"$SKERRY_CACHE/.lock-$1"
    if ! flock --nonblock 9; then
        say "    waiting for another run that holds $SKERRY_CACHE/.lock-$1"
        flock 9
    fi
}
