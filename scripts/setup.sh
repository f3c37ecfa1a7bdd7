#!/usr/bin/env bash
# Make this checkout ready: packages, virtual environment, native programs, erofs-utils.
#
#   make setup            everything; a second run finds all of it and takes well under a second
#   PYTHON=/path/python3.12 make setup     choose the interpreter of .venv
#   SKERRY_CACHE=/big/disk make setup      where tools are built and archives kept; set it for
#                                          `skerry` too, or cache_dir in a node's configuration
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

# Options and the job server of an outer make are not for the makes below.
unset MAKEFLAGS MFLAGS MAKELEVEL

STARTED=$EPOCHREALTIME
STAMP=.venv/.skerry-setup

# What is built and run here, and what the tests and benchmarks compare with:
PACKAGES=(
    gcc libc6-dev linux-libc-dev make pkg-config musl-tools # the native pair
    clang libclang-rt-dev                                   # its fuzz targets
    btrfs-progs                                             # store of writable layers
    mmdebstrap debian-archive-keyring                       # base images
    iproute2 util-linux procps git xz-utils                 # tests and their leak census
    openssl                                                 # tests of object stores over TLS
    bubblewrap runc                                         # peers in the benchmarks
    skopeo                                                  # images from and to registries
    docker-registry apache2-utils umoci                     # a registry and a witness for the tests
    shellcheck                                              # make lint
)

# All problems at once: nobody wants to meet them one by one.
check_machine() {
    local problems=() name
    [ "$(uname -s)" = Linux ] || problems+=("this is $(uname -s), not Linux")
    [ "$(id -u)" -eq 0 ] || problems+=("not root: packages, mounts and namespaces need it")
    for name in apt-get dpkg-query; do
        command -v "$name" >/dev/null || problems+=("no $name: Debian 12 or newer is expected")
    done
    kernel_has erofs || problems+=("the kernel has no EROFS (CONFIG_EROFS_FS): layers are EROFS images")
    kernel_has overlay || problems+=("the kernel has no overlayfs (CONFIG_OVERLAY_FS): roots are overlays of layers")
    [ -e /proc/self/ns/user ] || problems+=("the kernel has no user namespaces (CONFIG_USER_NS)")
    if [ "${#problems[@]}" -gt 0 ]; then
        say "Skerry cannot run on this machine:"
        printf '  - %s\n' "${problems[@]}" >&2
        exit 1
    fi
    # Not needed where the disk's own file system has project quotas.
    kernel_has btrfs ||
        warn "the kernel has no btrfs (CONFIG_BTRFS_FS): limits of disk space then need a file system with project quotas"
}

# A file system in a module is listed only once the module is loaded.
kernel_has() {
    grep -qw "$1" /proc/filesystems && return 0
    modprobe -q "$1" 2>/dev/null || true
    grep -qw "$1" /proc/filesystems
}

# usable_python PROGRAM: new enough, and runs at all (a pyenv shim may be only a name).
usable_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Sets INTERPRETER.
choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        usable_python "$PYTHON" || die "PYTHON=$PYTHON does not run or is older than 3.11"
        INTERPRETER=$PYTHON
        return 0
    fi
    for INTERPRETER in python3.13 python3.12 python3.11 python3; do
        usable_python "$INTERPRETER" && return 0
    done
    # A machine without any; Debian 12 and newer have a new enough one.
    need_packages "Python" python3 python3-venv
    INTERPRETER=/usr/bin/python3
    usable_python "$INTERPRETER" || die "Python 3.11 or newer is needed; this machine has none: set PYTHON=..."
}

# What decides over the content of .venv. The place counts too: scripts in it name it.
venv_key() {
    {
        cat pyproject.toml setup.py
        printf '%s\n' "$PWD" "${PYTHON:-}"
    } | sha256sum
}

make_venv() {
    local key
    key=$(venv_key)
    if [ -x .venv/bin/python ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$key" ]; then
        return 0
    fi
    choose_python
    # Debian keeps pip's bootstrap in a package of its own.
    if ! "$INTERPRETER" -c 'import ensurepip, venv' 2>/dev/null; then
        need_packages "virtual environments" \
            "python$("$INTERPRETER" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    fi
    rm -f "$STAMP"
    step "virtual environment with $("$INTERPRETER" --version)" \
        "$INTERPRETER" -m venv --clear .venv
    step "Python packages, and skerry itself in place" \
        .venv/bin/python -m pip install --no-input --disable-pip-version-check -e '.[dev]'
    printf '%s\n' "$key" >"$STAMP"
}

check_machine
# Two runs in one checkout would tread on each other's .venv.
exec 8<Makefile
flock 8
need_packages "building, testing and measuring" "${PACKAGES[@]}"
make_venv
step "native programs" make -C native install DEST=../src/skerry/_native
MKFS=$(scripts/erofs-utils.sh)
say "==> set up in $(seconds_since "$STARTED"): .venv/bin/skerry, $MKFS"
