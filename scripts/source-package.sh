#!/usr/bin/env bash
# Provide a file of a Debian source package and print its path; it is kept in the cache.
#
#   scripts/source-package.sh PACKAGE SUITE FILE SHA256
#
# Why: tests judge public programs with known answers, which are not ours to copy. They come from the
# suite through this machine's own apt configuration, signed by Debian's archive key and pinned by hash.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SOURCES=$SKERRY_CACHE/sources

is_right() { [ -f "$1" ] && printf '%s  %s\n' "$2" "$1" | sha256sum --check --quiet >&2 2>/dev/null; }

# $1 is a private directory.
fetch() {
    local dir=$1 package=$2 suite=$3 file=$4 sha256=$5 uri
    uri=$(archive_uri Debian)
    if [ -z "$uri" ]; then
        # Without downloaded lists apt does not know which of its entries is Debian's.
        apt_update
        uri=$(archive_uri Debian)
    fi
    [ -n "$uri" ] || die "no Debian archive is configured in apt"
    [ -r "$DEBIAN_KEYRING" ] || die "the package debian-archive-keyring is not installed"
    private_apt "$dir"
    printf 'deb-src [signed-by=%s] %s %s main\n' "$DEBIAN_KEYRING" "$uri" "$suite" >"$dir/sources.list"
    apt-get "${APT_PRIVATE[@]}" update
    mkdir "$dir/source"
    (cd "$dir/source" && apt-get "${APT_PRIVATE[@]}" source --download-only --only-source "$package")
    [ -f "$dir/source/$file" ] || die "suite $suite no longer has $file"
    is_right "$dir/source/$file" "$sha256" || die "$file is not what it was: its hash differs"
}

main() {
    [ "$#" -eq 4 ] || die "usage: source-package.sh PACKAGE SUITE FILE SHA256"
    local package=$1 suite=$2 file=$3 sha256=$4
    if ! is_right "$SOURCES/$file" "$sha256"; then
        lock_cache sources
        if ! is_right "$SOURCES/$file" "$sha256"; then # another run was not faster
            mkdir -p "$SOURCES"
            local dir
            dir=$(mktemp -d "$SKERRY_CACHE/source-package.XXXXXXXX")
            CLEANUP+=("$dir")
            # A subshell, so that its "die" is a failed step.
            # shellcheck disable=SC2016  # expanded by the inner shell
            step "$file from Debian $suite" \
                bash -c 'set -euo pipefail; . "$1" --library; shift; fetch "$@"' - \
                "${BASH_SOURCE[0]}" "$dir" "$@"
            mv "$dir/source/$file" "$SOURCES/$file"
        fi
    fi
    printf '%s\n' "$SOURCES/$file"
}

# "--library": a step sources this file for one of its functions.
[ "${1:-}" = --library ] || main "$@"
