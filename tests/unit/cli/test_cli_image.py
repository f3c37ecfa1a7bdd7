"""`skerry image`, and the build file."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from fake_client import FakeClient, invoke, manifest

from skerry.cli.buildfile import read
from skerry.cli.imagebuild import suite_of
from skerry.errors import InvalidRequest, NotFound
from skerry.spec.layers import Damage, RecordProblem, RecordsCheck


@pytest.mark.parametrize(
    ("name", "suite"),
    [
        ("base/debian:11", "bullseye"),
        ("debian:12", "bookworm"),
        ("debian:trixie", "trixie"),
        ("debian:99", None),
        ("base/other:12", None),
        ("workspace/debian:12", None),
    ],
)
def test_well_known_names_stand_for_suites(name: str, suite: str | None) -> None:
    assert suite_of(name) == suite


def test_build_of_a_well_known_name_needs_no_option() -> None:
    client = FakeClient()
    result = invoke(client, "image", "build", "base/debian:12")
    assert result.exit_code == 0
    assert client.calls[-1] == ("debian", "base/debian:12", "bookworm", (), False)
    assert "fetching" in result.stderr
    assert "fetching" not in result.stdout


def test_build_from_a_suite_with_packages() -> None:
    client = FakeClient()
    invoke(client, "image", "build", "base/t:1", "--suite", "sid", "--package", "gcc", "--refresh")
    assert client.calls[-1] == ("debian", "base/t:1", "sid", ("gcc",), True)


def test_build_by_steps(tmp_path: Path) -> None:
    client = FakeClient()
    invoke(
        client, "image", "build", "workspace/x", "--from", "debian:12", "--layer", "toolkit/t",
        "--context", str(tmp_path), "--step", "one", "--step", "two", "-e", "A=b",
    )  # fmt: skip
    kind, name, keywords = client.calls[-1]
    assert (kind, name) == ("build", "workspace/x")
    assert keywords["steps"] == ("one", "two")
    assert keywords["layers"] == ("toolkit/t",)
    assert (keywords["context"], keywords["env"]) == (str(tmp_path), {"A": "b"})


def test_build_of_nothing_says_what_there_could_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(None, "image", "build", "workspace/x")
    assert result.exit_code == 125
    assert "skerry.toml" in result.stderr


BUILD = """
[layer."workspace/a"]
from = "debian:13"
context = "src"
steps = ["one"]

[layer."workspace/b"]
layers = ["workspace/a"]
steps = ["two"]
timeout = 5
"""


def test_build_file_is_built_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "skerry.toml").write_text(BUILD)
    monkeypatch.chdir(tmp_path)
    client = FakeClient()
    assert invoke(client, "image", "build").exit_code == 0
    builds = [call for call in client.calls if call[0] == "build"]
    assert [call[1] for call in builds] == ["workspace/a", "workspace/b"]
    assert builds[0][2]["context"] == str(tmp_path / "src")
    only = FakeClient()
    assert invoke(only, "image", "build", "workspace/b").exit_code == 0
    assert [call[1] for call in only.calls if call[0] == "build"] == ["workspace/b"]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "",
        "[layer]",
        '[layer."workspace/a"]\nsteps = []',
        '[layer."workspace/a"]\nsteps = "one"',
        '[layer."workspace/a"]\nsteps = [1]',
        '[layer."workspace/a"]\nsteps = ["one"]\nstep = 1',
        "not toml",
    ],
)
def test_build_file_with_a_mistake_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "skerry.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest):
        read(str(path))


def test_build_file_without_the_layer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "skerry.toml"
    path.write_text(BUILD)
    with pytest.raises(NotFound):
        read(str(path), "workspace/c")


def test_import_knows_directories_from_archives(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar"
    archive.write_bytes(b"")
    client = FakeClient()
    invoke(client, "image", "import", "base/x", str(archive))
    invoke(client, "image", "import", "workspace/y", str(tmp_path), "--prefix", "/src")
    imports = [call for call in client.calls if call[0].startswith("import")]
    assert imports == [
        ("import_tar", "base/x", str(archive)),
        ("import_directory", "workspace/y", str(tmp_path), "/src"),
    ]
    assert (
        invoke(None, "image", "import", "base/x", str(archive), "--prefix", "/x").exit_code == 125
    )
    assert invoke(None, "image", "import", "base/x", str(tmp_path / "none")).exit_code == 125


def test_ls_and_inspect_give_manifests() -> None:
    client = FakeClient()
    client.layers = {"base/debian:12": manifest()}
    assert "3 MiB" in invoke(client, "image", "ls").stdout
    line = json.loads(invoke(client, "image", "ls", "--json").stdout)
    assert line.pop("build_cache") is False
    assert (line["name"], line["size_bytes"]) == ("base/debian:12", 3 << 20)
    assert json.loads(invoke(client, "image", "inspect", "--json", "base/debian:12").stdout) == line
    missing = invoke(client, "image", "inspect", "workspace/none")
    assert missing.exit_code == 125


def test_rm_removes_each() -> None:
    client = FakeClient()
    invoke(client, "image", "rm", "base/a", "base/b")
    assert client.calls[-2:] == [("remove", "base/a"), ("remove", "base/b")]


def test_gc_says_what_went_and_a_dry_run_why_the_rest_stays() -> None:
    client = FakeClient()
    done = invoke(client, "image", "gc")
    assert client.calls[-1] == ("collect", False)
    assert "gone" in done.stdout
    assert "debian" not in done.stdout
    assert "freed 1 MiB in 1 blobs" in done.stderr
    dry = invoke(client, "image", "gc", "--dry-run")
    assert client.calls[-1] == ("collect", True)
    assert "would go" in dry.stdout
    assert "pin, tag base/debian:12" in dry.stdout
    [report] = [
        json.loads(line) for line in invoke(client, "--json", "image", "gc").stdout.splitlines()
    ]
    assert (report["freed_bytes"], report["kept"][0]["why"][0]) == (1 << 20, "pin")


def test_pin_and_unpin_name_the_digest() -> None:
    client = FakeClient()
    client.layers["debian:12"] = manifest()
    for word in ("pin", "unpin"):
        result = invoke(client, "image", word, "debian:12")
        assert client.calls[-1] == (word, "debian:12")
        assert result.stdout == f"base/debian:12@{manifest().digest}\n"


def test_verify_tells_damage_with_its_files_and_ends_with_1() -> None:
    client = FakeClient()
    digest = "sha256:" + "c" * 64
    for name in ("base/good:1", "base/bad:1"):
        client.layers[name] = msgspec.structs.replace(manifest(name), digest=f"{digest}-{name}")
    assert invoke(client, "image", "verify", "base/good:1").exit_code == 0
    chunks = tuple(range(30))
    client.damage["base/bad:1"] = (Damage(digest, "data", "30 chunks", chunks, ("/etc/x",)),)
    bad = invoke(client, "image", "verify", "--all", "--remove-damaged")
    assert bad.exit_code == 1
    assert client.calls[-2:] == [("verify", "base/bad:1", True), ("verify", "base/good:1", True)]
    assert "base/bad:1  DAMAGED" in bad.stdout
    assert "base/good:1  good" in bad.stdout
    assert "and 10 more" in bad.stdout
    assert "files /etc/x" in bad.stdout
    assert "make the layer again" in bad.stdout
    told = json.loads(invoke(client, "--json", "image", "verify", "base/bad:1").stdout)
    assert told["damage"][0]["chunks"] == list(chunks)
    for words in ((), ("base/good:1", "--all")):
        assert "--all" in invoke(client, "image", "verify", *words).stderr


def test_verify_last_reads_nothing_and_says_what_was_found_when() -> None:
    client = FakeClient()
    for name in ("base/new:1", "base/bad:1"):
        client.layers[name] = msgspec.structs.replace(manifest(name), digest=name)
    client.damage["base/bad:1"] = (Damage("sha256:c", "data", "1 chunk", (7,), ("/etc/x",)),)
    said = invoke(client, "image", "verify", "--last", "--all")
    assert said.exit_code == 1
    assert {call[0] for call in client.calls} == {"connect", "verify_records", "last_check"}
    assert "base/bad:1  DAMAGED  1 MiB  2026-01-02T03:04:05Z" in said.stdout
    assert "base/new:1  not checked since it was made" in said.stdout
    assert invoke(client, "image", "verify", "--last", "base/new:1").exit_code == 0
    refused = invoke(client, "image", "verify", "--last", "--remove-damaged", "base/new:1")
    assert refused.exit_code == 125
    assert "--remove-damaged" in refused.stderr


def test_verify_all_names_damaged_records_and_says_what_to_do() -> None:
    client = FakeClient()
    client.layers = {"base/a:1": manifest("base/a:1")}
    problem = RecordProblem("tags/base/b!!1", "name", "base/b:1", "it is damaged", "make it again")
    client.records = RecordsCheck(3, (problem,), (RecordProblem("k", "manifest", "base/c:1", "x"),))
    said = invoke(client, "image", "verify", "--all")
    assert said.exit_code == 1
    assert "base/b:1  DAMAGED name\n  it is damaged\n  what to do: make it again\n" in said.stdout
    assert "base/c:1  made again: manifest" in said.stdout
    assert "base/a:1  good" in said.stdout
    first = invoke(client, "--json", "image", "verify", "--all").stdout.splitlines()[0]
    assert json.loads(first)["problems"][0]["name"] == "base/b:1"
    assert invoke(client, "image", "verify", "base/a:1").exit_code == 0  # it asks for that alone


def test_verify_reads_a_layer_of_several_names_once() -> None:
    client = FakeClient()
    client.layers = {name: manifest(name) for name in ("base/a:1", "base/b:1")}
    assert invoke(client, "image", "verify", "--all").exit_code == 0
    assert sum(call[0] == "verify" for call in client.calls) == 1


def test_ls_leaves_the_build_cache_out_unless_it_is_asked_for() -> None:
    client = FakeClient()
    step = f"workspace/build-cache/{'a' * 64}:latest"
    names = ["base/a:1", step, "workspace/build-cachet:1"]
    client.layers = {name: manifest(name) for name in names}

    def listed(*words: str) -> list[tuple[str, bool]]:
        lines = invoke(client, "--json", "image", "ls", *words).stdout.splitlines()
        return [(one["name"], one["build_cache"]) for one in map(json.loads, lines)]

    theirs = [("base/a:1", False), ("workspace/build-cachet:1", False)]
    assert listed() == theirs
    assert listed("--cache") == [(step, True)]
    assert listed("--all") == listed("-a") == [theirs[0], (step, True), theirs[1]]
    said = invoke(client, "image", "ls")
    assert "build-cache/" not in said.stdout
    assert "1 layer of the build cache" in said.stderr
    assert step in invoke(client, "image", "ls", "-a").stdout
    assert invoke(client, "image", "ls", "--all", "--cache").exit_code == 125
    client.layers = {step: manifest(step)}
    only = invoke(client, "image", "ls")
    assert (only.stdout, "no layers yet" in only.stderr) == ("", False)
    client.layers = {}
    assert "nothing in the build cache" in invoke(client, "image", "ls", "--cache").stderr
