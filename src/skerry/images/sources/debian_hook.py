"""The last changes inside a Debian base, as a shell script that mmdebstrap runs.

They take away what names the builder or differs from build to build, and set what a sandbox
needs. The placeholders in debian.sources are filled in by the network policy of a sandbox.
"""

CUSTOMIZE = r"""
set -eu
root=$1 suite=$2

# Of the builder: its mirror, proxy, name servers and name.
rm -f "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"/* \
    "$root/etc/apt/apt.conf.d/99mmdebstrap"
rm -f "$root/etc/resolv.conf" && : >"$root/etc/resolv.conf"
echo sandbox >"$root/etc/hostname"
printf '127.0.0.1\tlocalhost skerry\n::1\tlocalhost\n' >"$root/etc/hosts"

mkdir -p "$root/etc/apt/sources.list.d"
{
    cat <<END
# A sandbox has no network unless its policy gives it one. Where the policy allows Debian
# packages, Skerry replaces the placeholders and removes the "Enabled" lines.
Enabled: no
Types: deb
URIs: @DEBIAN_URI@
Suites: $suite
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
    case $suite in sid | unstable | experimental) ;; *) cat <<END ;; esac

Enabled: no
Types: deb
URIs: @DEBIAN_SECURITY_URI@
Suites: $suite-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
} >"$root/etc/apt/sources.list.d/debian.sources"
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

# A sandbox is thrown away: nothing of the distribution must be kept from pip, and its refusal
# would hide the real reason when there is no network.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED

# Made anew where needed, different at every build, or a record of the build.
find "$root/var/log" -type f -delete
find "$root/var/cache" -mindepth 1 -type f -delete
rm -f "$root"/etc/*- "$root/var/lib/dpkg"/*-old "$root/var/lib/dpkg/lock"* "$root/etc/.pwd.lock"
rm -rf "$root"/var/lib/systemd/* "$root"/var/lib/apt/lists/* "$root/var/lib/apt/extended_states.lock"
# Leftovers of the path filter: empty directories are inodes in every layer.
for part in doc man locale info lintian linda doc-base; do
    [ ! -d "$root/usr/share/$part" ] || find "$root/usr/share/$part" -mindepth 1 -type d -empty -delete
done
# Clamped times would make Python compile these at every start: it must take them as they are.
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
"""
