"""`skerry node`: options and the TOML file become one checked configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.cli.app import Settings
from skerry.cli.node import claim_name, node_config, read_config, read_tokens
from skerry.errors import Conflict, InvalidRequest, NotFound

TOKEN = "0123456789abcdef"


def test_defaults_name_the_well_known_places() -> None:
    made = node_config(Settings(), {}, {})
    assert (made.state_dir, made.run_dir) == ("/var/lib/skerry", "/run/skerry")
    assert made.store_dir == "/var/lib/skerry/store"
    assert made.embedded is False


def test_options_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        f'state_dir = "/a"\nrun_dir = "/b"\ntcp = "127.0.0.1:1"\ntokens = ["{TOKEN}"]\n'
        "[limits]\nsandboxes_max = 7\n"
    )
    content = read_config(str(path))
    made = node_config(Settings(), content, {"tcp": None})
    assert (made.state_dir, made.store_dir, made.run_dir) == ("/a", "/a/store", "/b")
    assert (made.tcp, made.limits.sandboxes_max) == ("127.0.0.1:1", 7)
    made = node_config(Settings(state_dir="/c"), content, {"tcp": "127.0.0.1:2"})
    assert (made.state_dir, made.tcp) == ("/c", "127.0.0.1:2")


def test_swap_and_idle_reclaim_are_configured() -> None:
    content = {"zram": "1GiB", "idle_reclaim": {"when": "off", "idle_s": 5.0}}
    made = node_config(Settings(), content, {"zram": None})
    assert (made.zram, made.idle_reclaim.when, made.idle_reclaim.idle_s) == ("1GiB", "off", 5.0)
    assert node_config(Settings(), content, {"zram": "2GiB"}).zram == "2GiB"


def test_store_is_a_directory_or_a_bucket() -> None:
    made = node_config(Settings(), {"store": "/shared/layers"}, {})
    assert (made.store, made.store_dir) == ("", "/shared/layers")
    content = {"store": "s3://layers/a", "s3": {"endpoint": "http://[::1]:9", "region": "r-1"}}
    made = node_config(Settings(), content, {})
    assert (made.store, made.s3.endpoint, made.s3.region) == (
        "s3://layers/a",
        "http://[::1]:9",
        "r-1",
    )
    assert made.s3.secret_key == "env:AWS_SECRET_ACCESS_KEY"


@pytest.mark.parametrize(
    "content",
    [
        {"colour": 1},
        {"limits": {"sandbox_max": 1}},
        {"limits": 3},
        {"limits": {"connections_max": 0}},
        {"pressure": {"memory": [20.0, 10.0]}},
        {"idle_reclaim": {"idle": 3.0}},
        {"idle_reclaim": {"when": "always"}},
        {"zram": "much"},
        {"zram": 3},
        {"pressure": {"memory_some": [10.0, 20.0]}},
        {"pressure": {"memory_some": 10.0}},
        {"weights": {"job": 0}},
        {"lease_s": "long"},
        {"tcp": "127.0.0.1:1"},  # without tokens
        {"tcp": "nowhere", "tokens": [TOKEN]},
        {"state_dir": "relative"},
        {"store": "relative"},
        {"store": "s3://"},
        {"store": "s3:bucket"},
        {"store": "/a", "store_dir": "/b"},
        {"store": 3},
        {"s3": {"bucket": "b"}},
        {"s3": {"secret_key": "the secret itself"}},
        {"s3": {"endpoint": "http://user:word@host"}},
    ],
)
def test_a_configuration_with_a_mistake_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        node_config(Settings(), content, {})


def test_brakes_and_weights_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        "weights = { nightly = 4 }\n[pressure]\ncpu_some = [90.0, 60.0]\n"
        "[limits]\nmemory_overcommit = 1.5\n"
    )
    made = node_config(Settings(), read_config(str(path)), {})
    assert made.weights == {"nightly": 4.0}
    assert (made.pressure.cpu_some, made.pressure.memory_full) == ((90.0, 60.0), (5.0, 2.0))
    assert made.limits.memory_overcommit == 1.5


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("= 3")
    with pytest.raises(InvalidRequest):
        read_config(str(path))
    with pytest.raises(NotFound):
        read_config(str(tmp_path / "none"))


def test_tokens_are_the_lines_without_comments(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# ours\n\n{TOKEN}\n  {TOKEN}x \n")
    assert read_tokens(str(path)) == (TOKEN, TOKEN + "x")
    path.write_text("# none\n")
    with pytest.raises(InvalidRequest):
        read_tokens(str(path))


def test_a_name_is_given_once(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    claim_name(state, "abcde")
    claim_name(state, "abcde")
    assert (tmp_path / "state/name").read_text() == "abcde\n"
    with pytest.raises(Conflict):
        claim_name(state, "fghij")
    with pytest.raises(InvalidRequest):
        claim_name(state, "toolong")
