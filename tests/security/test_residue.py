"""An answer hidden in every place that builds leave things in: none of it is in a committed layer.

The controls: without rules all of it is there; and what is not residue stays.
"""

from __future__ import annotations

import shlex

import pytest

pytestmark = pytest.mark.root

ANSWER = "correct-horse-battery-staple"
HOMES = ("/root", "/home/agent", "/srv/state/builder")  # the last one by /etc/passwd only
# By rule: places below a home (~) or absolute ones.
PLACES = {
    "temporary": ("/tmp/x/answer", "/var/tmp/answer"),
    "packages": ("/var/cache/apt/answer", "/var/lib/apt/lists/answer", "/var/log/apt/history.log"),
    "caches": (
        "~/.cache/pip/answer",
        "~/.npm/_cacache/index/answer",
        "~/.cargo/registry/cache/answer",
        "~/.m2/repository/answer",
        "/srv/app/pkg/__pycache__/solution.cpython-311.pyc",
        "/srv/app/.pytest_cache/v/answer",
        "/srv/app/.mypy_cache/answer",
        "/srv/app/node_modules/.cache/answer",
    ),
    "histories": (
        "~/.bash_history",
        "~/.zsh_history",
        "~/.python_history",
        "~/.node_repl_history",
        "~/.psql_history",
        "~/.mysql_history",
        "~/.sqlite_history",
        "~/.lesshst",
        "~/.viminfo",
        "~/.wget-hsts",
        "~/.gdb_history",
        "~/.ipython/profile_default/history.sqlite",
        "~/.local/share/fish/fish_history",
        "~/.local/state/nvim/shada/main.shada",
        "~/.vim/undo/answer",
        "~/.emacs.d/auto-save-list/answer",
    ),
    "editors": (
        "/srv/app/.solution.py.swp",
        "/srv/app/.solution.py.un~",
        "/srv/app/solution.py~",
        "/srv/app/#solution.py#",
    ),
    "credentials": (
        "~/.netrc",
        "~/.pypirc",
        "~/.npmrc",
        "~/.git-credentials",
        "~/.config/git/credentials",
        "~/.config/gh/hosts.yml",
        "~/.config/gcloud/credentials.db",
        "~/.config/containers/auth.json",
        "~/.ssh/id_ed25519",
        "~/.ssh/id_rsa",
        "~/.ssh/deploy.pem",
        "~/.aws/credentials",
        "~/.aws/sso/cache/answer",
        "~/.azure/answer",
        "~/.kube/config",
        "~/.docker/config.json",
        "~/.dockercfg",
        "~/.cargo/credentials.toml",
        "~/.gem/credentials",
        "~/.gnupg/private-keys-v1.d/answer",
        "~/.pgpass",
        "~/.my.cnf",
        "~/.vault-token",
        "~/.huggingface/token",
        "~/.m2/settings.xml",
        "/etc/ssh/ssh_host_ed25519_key",
        "/etc/apt/auth.conf.d/answer.conf",
    ),
}
# Found by what they hold, wherever they are.
CONTENTS = {
    "/srv/app/.npmrc": f"//registry.example/:_authToken={ANSWER}",
    "/srv/app/pip.conf": f"[global]\nindex-url = https://me:{ANSWER}@pypi.example/simple",
    "~/.ssh/my_key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{ANSWER}\n-----END-----",
}
OPT_IN = {
    "logs": ("/var/log/app/answer.log",),
    "builds": ("/srv/app/build/answer.o", "/srv/app/target/release/answer"),
}
KEPT = {
    "/srv/app/solution.py": "print('no answer')",
    "/srv/app/.npmrc-example": "registry=https://registry.example/",
    "/srv/other/.npmrc": "save-exact=true",
    "/root/.ssh/id_ed25519.pub": "ssh-ed25519 AAAA",
    "/root/.ssh/known_hosts": "host",
    "/root/.bashrc": "set -o vi",
    "/root/.config/app/settings": "a=b",
    "/srv/app/builder.py": "x",
    "/etc/ssh/ssh_host_ed25519_key.pub": "x",
}


def places(rules: dict[str, tuple[str, ...]]) -> list[str]:
    found = []
    for paths in rules.values():
        for path in paths:
            found += [path.replace("~", home) for home in HOMES] if path[0] == "~" else [path]
    return found


async def hide(sandbox) -> list[str]:
    """Writes the answer everywhere; returns where."""
    await sandbox.run("useradd -m -d /home/agent agent; useradd -d /srv/state/builder builder")
    contents = dict.fromkeys(places(PLACES) + places(OPT_IN), ANSWER)
    for path, text in CONTENTS.items():
        contents |= (
            {path.replace("~", home): text for home in HOMES} if path[0] == "~" else {path: text}
        )
    for path, text in (contents | KEPT).items():
        await sandbox.files.write(path, text, parents=True)
    return sorted(contents)


async def found(client, layer: str) -> list[str]:
    """Where a sandbox with the layer finds the answer."""
    sandbox = await client.sandboxes.create(layers=[layer])
    line = f"grep -rlIs --exclude-dir=proc --exclude-dir=sys {shlex.quote(ANSWER)} / ; true"
    paths = (await sandbox.run(line)).text.splitlines()
    for path, text in KEPT.items():
        assert await sandbox.files.read_text(path) == text, path
    await sandbox.destroy()
    return sorted(paths)


async def test_no_answer_survives_in_residue_and_the_manifest_says_what_went(node_client) -> None:
    sandbox = await node_client.sandboxes.create()
    hidden = await hide(sandbox)
    await sandbox.commit("workspace/all", scrub=[])
    control = await found(node_client, "workspace/all")
    assert control == hidden, set(control) ^ set(hidden)

    layer = await sandbox.commit("workspace/clean")
    opted = places(OPT_IN)
    assert await found(node_client, "workspace/clean") == sorted(opted)
    taken = {one.rule: one for one in layer.scrubbed}
    assert set(taken) == set(PLACES)
    for rule, paths in PLACES.items():
        assert taken[rule].files >= len(paths)
        assert 0 < len(taken[rule].paths) <= 10
        assert taken[rule].bytes >= len(ANSWER)

    rules = [*PLACES, *OPT_IN]
    await sandbox.commit("workspace/bare", scrub=rules)
    assert await found(node_client, "workspace/bare") == []
    for name in ("workspace/all", "workspace/clean", "workspace/bare"):
        await node_client.images.remove(name)
    await sandbox.destroy()


async def test_link_into_residue_and_names_of_any_bytes_do_not_bring_it_back(node_client) -> None:
    sandbox = await node_client.sandboxes.create()
    await sandbox.run(
        f"echo {ANSWER} > /root/.netrc; ln -s /root/.netrc /srv/link; mkdir -p /root/.aws; "
        f"printf '{ANSWER}' > \"/root/.aws/$(printf 'a\\377b')\"; ln -s / /root/.kube; "
        "echo ok > /srv/kept"
    )
    await sandbox.commit("workspace/links")
    other = await node_client.sandboxes.create(layers=["workspace/links"])
    seen = await other.run(
        f"cat /srv/kept; cat /srv/link; ls /root/.aws /root/.kube; grep -rs {ANSWER} /srv /root"
    )
    assert seen.stdout == b"ok\n"
    await node_client.sandboxes.destroy_many([sandbox, other])
    await node_client.images.remove("workspace/links")
