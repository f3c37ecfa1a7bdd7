#!/usr/bin/env bash
# Provide erofs-utils 1.8 or newer and print the path of its mkfs.erofs.
#
#   scripts/erofs-utils.sh            find, else build; prints the path on standard output
#   scripts/erofs-utils.sh --print    only find; fast; fails when there is no mkfs.erofs at all
#   scripts/erofs-utils.sh --refresh  build again, also when a build is cached
#
# Why: Debian 12 has 1.5, whose lz4hc takes tens of seconds where 1.8 takes two, and which
# has neither tar input (an image in 0.04 s by indexing the tar) nor zstd. The source comes
# from a newer Debian suite through this machine's own apt configuration, signed by Debian's
# archive key and pinned by hash below. dump.erofs and fsck.erofs stand beside mkfs.erofs.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=1.8.6
SUITE=trixie
TARBALL=erofs-utils_$VERSION.orig.tar.gz
SHA256=5b221dc3fd6d151425b30534ede46fb7a90dc233a8659cba0372796b0a066547
TOOLS=(mkfs.erofs dump.erofs fsck.erofs)
HOME_DIR=$SKERRY_CACHE/erofs-utils-$VERSION
# Written when the source could not be had, so that the next setup does not ask again at once.
UNAVAILABLE=$SKERRY_CACHE/erofs-utils-$VERSION.unavailable

# version_of MKFS: "1.8.6"; empty when it does not run (for instance because a library it was
# linked with went away with a system upgrade). 1.5 complains about the option and prints its
# name and version all the same.
version_of() {
    local text
    text=$("$1" --version 2>&1) || true
    [[ $text =~ (mkfs\.erofs|erofs-utils\))\ ([0-9]+\.[0-9]+(\.[0-9]+)?) ]] && printf '%s' "${BASH_REMATCH[2]}"
    return 0
}

is_new() { [[ $1 =~ ^([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= 108)); }

# Sets FOUND to the best mkfs.erofs there is and FOUND_VERSION to its version.
find_tool() {
    FOUND=$HOME_DIR/bin/mkfs.erofs
    if [ -x "$FOUND" ]; then
        FOUND_VERSION=$(version_of "$FOUND")
        is_new "$FOUND_VERSION" && return 0
    fi
    FOUND=$(command -v mkfs.erofs) || FOUND=
    FOUND_VERSION=
    [ -z "$FOUND" ] || FOUND_VERSION=$(version_of "$FOUND")
}

say_what_is_lost() {
    warn "mkfs.erofs ${FOUND_VERSION:-?} is older than 1.8; $1"
    warn "  lost: tar input (--tar=f and the index mode --tar=i), zstd, fast lz4hc, several threads"
    warn "  images are still built, from an unpacked tree and more slowly"
}

# $1 is a private directory, here and in build().
fetch_source() {
    local dir=$1 uri
    uri=$(archive_uri Debian)
    if [ -z "$uri" ]; then
        # Without downloaded lists apt does not know which of its entries is Debian's.
        apt_update
        uri=$(archive_uri Debian)
    fi
    [ -n "$uri" ] || die "no Debian archive is configured in apt"
    [ -r "$DEBIAN_KEYRING" ] || die "the package debian-archive-keyring is not installed"
    private_apt "$dir"
    printf 'deb-src [signed-by=%s] %s %s main\n' "$DEBIAN_KEYRING" "$uri" "$SUITE" >"$dir/sources.list"
    apt-get "${APT_PRIVATE[@]}" update
    mkdir "$dir/source"
    (cd "$dir/source" && apt-get "${APT_PRIVATE[@]}" source --download-only --only-source erofs-utils)
    [ -f "$dir/source/$TARBALL" ] || die "suite $SUITE no longer has version $VERSION"
    printf '%s  %s\n' "$SHA256" "$dir/source/$TARBALL" | sha256sum --check --quiet
}

build() {
    local dir=$1 tree=$1/tree
    mkdir "$tree"
    tar -xzf "$dir/source/$TARBALL" -C "$tree" --strip-components=1
    cd "$tree"
    ./autogen.sh
    # Only what Skerry calls: no FUSE daemon, no SELinux labels, no lzma.
    ./configure CFLAGS='-O2' --disable-fuse --without-selinux --disable-lzma \
        --enable-lz4 --with-libzstd --with-zlib --with-uuid --enable-multithreading
    make -j"$(nproc)"
    mkdir -p "$dir/out/bin"
    local tool
    for tool in "${TOOLS[@]}"; do
        install -s -m 0755 "${tool%%.*}/$tool" "$dir/out/bin/$tool"
    done
    # A build without these would be no better than the old package.
    "$dir/out/bin/mkfs.erofs" --help 2>&1 | grep -q -e '--tar' || die "built without tar input"
    "$dir/out/bin/mkfs.erofs" --help 2>&1 | grep -q 'zstd' || die "built without zstd"
    "$dir/out/bin/mkfs.erofs" --help 2>&1 | grep -q 'lz4hc' || die "built without lz4hc"
}

main() {
    local mode=${1:-}
    case $mode in
    '' | --print | --refresh) ;;
    *) die "usage: erofs-utils.sh [--print | --refresh]" ;;
    esac

    find_tool
    if [ "$mode" = --print ]; then
        [ -n "$FOUND" ] || die "there is no mkfs.erofs on this machine: run 'make setup'"
        printf '%s\n' "$FOUND"
        return 0
    fi
    if [ "$mode" != --refresh ]; then
        if is_new "$FOUND_VERSION"; then
            printf '%s\n' "$FOUND"
            return 0
        fi
        # Not being able to reach a newer suite seldom changes within a day.
        if [ -n "$FOUND" ] && [ -n "$(find "$UNAVAILABLE" -mtime -1 2>/dev/null)" ]; then
            say_what_is_lost "its source could not be had (tried again after a day, or with --refresh)"
            printf '%s\n' "$FOUND"
            return 0
        fi
    fi

    [ "$(id -u)" -eq 0 ] || die "building erofs-utils needs root"
    lock_cache erofs-utils
    find_tool
    if [ "$mode" != --refresh ] && is_new "$FOUND_VERSION"; then # another run was faster
        printf '%s\n' "$FOUND"
        return 0
    fi
    # Left over from a run that was killed; we hold the lock, so nobody uses it.
    rm -rf "$SKERRY_CACHE"/erofs-utils-build.*
    BUILD_DIR=$(mktemp -d "$SKERRY_CACHE/erofs-utils-build.XXXXXXXX")
    CLEANUP+=("$BUILD_DIR")

    # Subshells, so that their "die" is a failed step and not the end of this script. No
    # "|| true" style calls: bash would ignore "set -e" inside them.
    local status=0
    # shellcheck disable=SC2016  # expanded by the inner shell
    step "erofs-utils $VERSION: source from Debian $SUITE" \
        bash -c 'set -euo pipefail; . "$1" --library; fetch_source "$2"' - \
        "${BASH_SOURCE[0]}" "$BUILD_DIR" || status=$?
    if [ "$status" -eq 0 ]; then
        need_packages "building erofs-utils" gcc libc6-dev make autoconf automake libtool pkg-config \
            liblz4-dev libzstd-dev zlib1g-dev uuid-dev
        # shellcheck disable=SC2016
        step "erofs-utils $VERSION: build" \
            bash -c 'set -euo pipefail; . "$1" --library; build "$2"' - \
            "${BASH_SOURCE[0]}" "$BUILD_DIR" || status=$?
    fi
    if [ "$status" -eq 0 ]; then
        rm -rf "$HOME_DIR"
        mv "$BUILD_DIR/out" "$HOME_DIR"
        chmod 0755 "$HOME_DIR"
        rm -f "$UNAVAILABLE"
        printf '%s\n' "$HOME_DIR/bin/mkfs.erofs"
        return 0
    fi

    touch "$UNAVAILABLE"
    need_packages "the older erofs-utils" erofs-utils
    hash -r
    find_tool
    [ -n "$FOUND" ] || die "no erofs-utils to be had"
    is_new "$FOUND_VERSION" || say_what_is_lost "the newer one could not be built (see above)"
    printf '%s\n' "$FOUND"
}

# "--library": a step sources this file for one of its functions.
[ "${1:-}" = --library ] || main "$@"
