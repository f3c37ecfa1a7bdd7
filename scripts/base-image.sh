#!/usr/bin/env bash
# Build the root file system of a Debian base image as a tar.
#
#   scripts/base-image.sh [--refresh] OUT.tar SUITE [PACKAGE...]
#   scripts/base-image.sh [--refresh] --print SUITE [PACKAGE...]   the path in the cache instead
#
# SUITE is a code name (bookworm, trixie); PACKAGEs come on top of the list below. Packages
# come through this machine's own apt configuration; nothing of that configuration, and no
# name of this machine, stays in the result. The result is cached by its inputs (this script,
# suite, packages) and kept until --refresh. Called by "skerry image build".
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# What agents and test suites expect of a machine, beyond minbase.
PACKAGES=(
    python3 python3-pip python3-venv python-is-python3
    git patch less xz-utils ca-certificates
    procps iputils-ping adduser passwd sudo
)

usage() { die "usage: base-image.sh [--refresh] (OUT.tar | --print) SUITE [PACKAGE...]"; }

# --- the part that runs as a step, in private namespaces ---------------------------------

# write_sources DIR SUITE: the suite's source list for the build, from this machine's archives.
write_sources() {
    local dir=$1 suite=$2 main security
    main=$(archive_uri Debian)
    if [ -z "$main" ]; then # without downloaded lists apt does not know which entry is Debian's
        apt_update
        main=$(archive_uri Debian)
    fi
    [ -n "$main" ] || die "no Debian archive is configured in apt"
    security=$(archive_uri Debian-Security)
    {
        printf 'deb [signed-by=%s] %s %s main\n' "$DEBIAN_KEYRING" "$main" "$suite"
        case $suite in
        sid | unstable | experimental) ;; # have neither updates nor security
        *)
            printf 'deb [signed-by=%s] %s %s-updates main\n' "$DEBIAN_KEYRING" "$main" "$suite"
            if [ -n "$security" ]; then
                printf 'deb [signed-by=%s] %s %s-security main\n' "$DEBIAN_KEYRING" "$security" "$suite"
            else
                warn "apt has no Debian-Security entry: the image gets no security updates" # reaches the log
            fi
            ;;
        esac
    } >"$dir/sources.list"
}

# archive_epoch DIR: the date of the newest of the suite's Release files, in seconds. No file
# of a package is newer, so clamping times to it makes equal inputs give equal tars and leaves
# every .py as old as its .pyc says (a clamped source would make Python compile it again at
# every start).
archive_epoch() {
    local file date newest=0 seconds
    for file in "$1"/lists/*Release; do
        date=$(sed -n 's/^Date: //p' "$file" | head -n 1)
        [ -n "$date" ] || continue
        seconds=$(date --utc --date "$date" +%s)
        ((seconds <= newest)) || newest=$seconds
    done
    ((newest > 0)) || die "no Release file with a date"
    printf '%s' "$newest"
}

fetch_lists() {
    private_apt "$1"
    write_sources "$1" "$2"
    apt-get "${APT_PRIVATE[@]}" update
}

# The last changes inside, after the packages are configured; $1 is the root. Run by mmdebstrap.
customize() {
    local root=$1 suite=$2

    # Of the builder: its mirror, proxy, name servers and name.
    rm -f "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"/* \
        "$root/etc/apt/apt.conf.d/99mmdebstrap"
    rm -f "$root/etc/resolv.conf" && : >"$root/etc/resolv.conf"
    echo sandbox >"$root/etc/hostname"
    printf '127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n' >"$root/etc/hosts"

    # The same for every image, and no address: a policy that allows packages fills it in.
    local security=
    case $suite in
    sid | unstable | experimental) ;;
    *)
        security="
Enabled: no
Types: deb
URIs: @DEBIAN_SECURITY_URI@
Suites: $suite-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg"
        ;;
    esac
    mkdir -p "$root/etc/apt/sources.list.d"
    cat >"$root/etc/apt/sources.list.d/debian.sources" <<END
# A sandbox has no network unless its policy gives it one. Where the policy allows Debian
# packages, Skerry replaces the placeholders and removes the "Enabled" lines.
Enabled: no
Types: deb
URIs: @DEBIAN_URI@
Suites: $suite
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
${security:+$security
}
END
    cat >"$root/etc/apt/apt.conf.d/90skerry" <<'END'
// Without a network, fail soon instead of trying for minutes.
Acquire::Retries "1";
Acquire::http::Timeout "10";
Acquire::https::Timeout "10";
// Small: no translations, no recommended packages, no copies of installed packages.
Acquire::Languages "none";
APT::Install-Recommends "false";
APT::Keep-Downloaded-Packages "false";
// What is sent is not shown: no terminal is expected.
Dpkg::Use-Pty "false";
END
    # A sandbox's writable layer is thrown away; syncing every unpacked file buys nothing.
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/90skerry-unsafe-io"
    # dpkg keeps to it when packages are installed later, as in the usual slim images.
    mv "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/90skerry-slim"
    # A service that a package wants to start has no init to run it.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 0755 "$root/usr/sbin/policy-rc.d"

    # Made anew where needed, different at every build, or a record of the build.
    find "$root/var/log" -type f -delete
    find "$root/var/cache" -mindepth 1 -type f -delete
    rm -f "$root"/etc/*- "$root/var/lib/dpkg"/*-old "$root/var/lib/dpkg/lock"* "$root/etc/.pwd.lock"
    rm -rf "$root"/var/lib/systemd/* "$root"/var/lib/apt/lists/* "$root"/var/lib/apt/extended_states.lock
    # Leftovers of the path filter: empty directories are inodes in every layer.
    find "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale" \
        "$root/usr/share/info" "$root/usr/share/lintian" "$root/usr/share/linda" \
        -mindepth 1 -type d -empty -delete 2>/dev/null || true
    # Times of compiled files follow their sources, so they are checked here where the
    # sources have their final times: each must be taken as it is.
    chroot "$root" /usr/bin/python3 - <<'END'
import importlib.util, os, struct, sys
stale = []
for top, _, names in os.walk("/usr/lib/python3"):
    for name in names:
        if name.endswith(".py"):
            source = os.path.join(top, name)
            try:
                with open(importlib.util.cache_from_source(source), "rb") as file:
                    flags, mtime = struct.unpack("<4xII", file.read(12))
            except FileNotFoundError:
                continue
            if flags == 0 and mtime != int(os.stat(source).st_mtime):
                stale.append(source)
sys.exit(f"compiled files do not match: {stale[:3]}" if stale else 0)
END
}

# build DIR SUITE PACKAGES: DIR has the apt state of fetch_lists(); makes DIR/root.tar.
build() {
    local dir=$1 suite=$2 packages=$3
    local options=(
        --mode=root --variant=minbase --format=tar
        "--include=$packages"
        # The usual slim set: everything people read, except licences, goes.
        --dpkgopt='path-exclude=/usr/share/man/*'
        --dpkgopt='path-exclude=/usr/share/doc/*'
        --dpkgopt='path-include=/usr/share/doc/*/copyright'
        --dpkgopt='path-exclude=/usr/share/doc-base/*'
        --dpkgopt='path-exclude=/usr/share/info/*'
        --dpkgopt='path-exclude=/usr/share/lintian/*'
        --dpkgopt='path-exclude=/usr/share/linda/*'
        # C.UTF-8 is not here but in /usr/lib/locale.
        --dpkgopt='path-exclude=/usr/share/locale/*'
        --dpkgopt='path-include=/usr/share/locale/locale.alias'
        # Device nodes are the sandbox's business: it gets its own /dev (an empty one below).
        --skip=output/dev
        # The suite may be newer or older than this machine's.
        "--keyring=$DEBIAN_KEYRING"
        "--customize-hook=bash -c 'set -euo pipefail; . \"\$1\" --library; customize \"\$2\" \"\$3\"' - '$SELF' \"\$1\" '$suite'"
    )
    # mmdebstrap gives its apt no settings of this machine; those that say how to reach an
    # archive (a proxy, a certificate, time checks) are handed on. They leave with
    # 99mmdebstrap above. Lists of hooks and index targets are not settings of that kind.
    local line
    while IFS= read -r line; do
        options+=("--aptopt=$line")
    done < <(apt-config dump --format '%F "%v";%n' | grep -E '^Acquire::(http|https|Check|Retries|tor|ftp|ForceIPv)' || true)

    SOURCE_DATE_EPOCH=$(archive_epoch "$dir")
    export SOURCE_DATE_EPOCH
    export TMPDIR=$dir/tmp
    mkdir -m 0755 "$TMPDIR"
    # Maintainer scripts see the environment: nothing of this machine's belongs there.
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
        TMPDIR="$TMPDIR" SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" SKERRY_CACHE="$SKERRY_CACHE" \
        mmdebstrap "${options[@]}" "$suite" "$dir/root.tar" "$dir/sources.list"
    mkdir "$TMPDIR/dev"
    tar --append --file "$dir/root.tar" --format=ustar --numeric-owner --owner=0 --group=0 \
        --mode=0755 --mtime="@$SOURCE_DATE_EPOCH" -C "$TMPDIR" ./dev
}

# --- the command --------------------------------------------------------------------------

main() {
    local refresh='' out suite
    if [ "${1:-}" = --refresh ]; then
        refresh=1
        shift
    fi
    [ "$#" -ge 2 ] || usage
    out=$1 suite=$2
    shift 2
    [[ $suite =~ ^[a-z][a-z0-9-]*$ ]] || die "not a suite's code name: $suite"
    local package extra=()
    for package in "$@"; do
        # Also keeps options and patterns of apt out.
        [[ $package =~ ^[a-z0-9][a-z0-9+.-]+$ ]] || die "not a package name: $package"
        extra+=("$package")
    done
    local packages
    packages=$(printf '%s\n' "${PACKAGES[@]}" "${extra[@]}" | sort -u | paste -sd,)

    local inputs cached
    inputs=$({
        cat "$SELF"
        printf '%s\n' "$suite" "$packages" "$(dpkg --print-architecture)"
    } | sha256sum | cut -c 1-16)
    cached=$SKERRY_CACHE/base/$suite-$inputs.tar

    if [ -n "$refresh" ] || [ ! -f "$cached" ]; then
        [ "$(id -u)" -eq 0 ] || die "building a base image needs root"
        lock_cache base
        if [ -n "$refresh" ] || [ ! -f "$cached" ]; then # else another run made it meanwhile
            make_image "$cached" "$suite" "$packages"
        fi
    fi
    if [ "$out" = --print ]; then
        printf '%s\n' "$cached"
    else
        # A copy (shared blocks where the file system can), since whoever gets it may change it;
        # renamed into place, since half a tar is a valid tar of less.
        CLEANUP+=("$out.part-$$")
        cp --reflink=auto "$cached" "$out.part-$$"
        mv -T "$out.part-$$" "$out"
    fi
}

make_image() {
    local cached=$1 suite=$2 packages=$3 dir
    need_packages "building base images" mmdebstrap debian-archive-keyring
    mkdir -p "$SKERRY_CACHE/base"
    # Left over from a run that was killed; we hold the lock, so nobody uses it.
    rm -rf "$SKERRY_CACHE"/base/build.*
    dir=$(mktemp -d "$SKERRY_CACHE/base/build.XXXXXXXX")
    chmod 0755 "$dir" # apt's own user must get through
    CLEANUP+=("$dir")

    # shellcheck disable=SC2016  # expanded by the inner shell
    step "Debian $suite: package lists" \
        bash -c 'set -euo pipefail; . "$1" --library; fetch_lists "$2" "$3"' - "$SELF" "$dir" "$suite"
    # Own mount and pid namespaces: the kernel removes every mount and kills every process of
    # the build when it ends, is interrupted or is killed, whatever a maintainer script did.
    # An own network namespace is not possible: packages are fetched inside.
    # shellcheck disable=SC2016
    step "Debian $suite: root file system" \
        setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child=KILL --mount-proc \
        bash -c 'set -euo pipefail; . "$1" --library; build "$2" "$3" "$4"' - \
        "$SELF" "$dir" "$suite" "$packages"
    chmod 0644 "$dir/root.tar"
    mv "$dir/root.tar" "$cached"
    say "    $(stat -c %s "$cached" | numfmt --to=iec-i --suffix=B), $(tar -tf "$cached" | wc -l) entries: $cached"
}

SELF=$(realpath "${BASH_SOURCE[0]}")
# "--library": a step sources this file for one of its functions.
[ "${1:-}" = --library ] || main "$@"
