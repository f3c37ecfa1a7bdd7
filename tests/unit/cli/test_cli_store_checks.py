"""`skerry doctor` on a layer store in a directory."""

from __future__ import annotations

from pathlib import Path

from skerry.cli.store_checks import store_check
from skerry.images.objects.mounts import file_system
from skerry.node.config import NodeConfig


def config(store_dir: Path) -> NodeConfig:
    return NodeConfig(state_dir="/s", run_dir="/r", store_dir=str(store_dir))


def test_directory_is_told_with_its_file_system(tmp_path: Path) -> None:
    kind = file_system(str(tmp_path)).kind
    found = store_check(config(tmp_path))
    assert (found.status, found.found.split(", which")[0]) == ("ok", f"{tmp_path}; on {kind}")
    assert "to be made" in store_check(config(tmp_path / "new" / "one")).found


def test_place_that_is_no_directory_is_missed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert store_check(config(tmp_path / "file" / "store")).status == "missing"
