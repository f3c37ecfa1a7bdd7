"""What a caller may ask for when a sandbox is made, and what is said of the rest."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest
from skerry.sdk.options import spec_of


@pytest.mark.parametrize("asked", [{"disks": ["disk/data"]}, {"disks": ()}, {"disk": "disk/data"}])
def test_block_disks_are_refused_with_the_reason_and_what_to_do(asked: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as error:
        spec_of("container", **asked)  # type: ignore[arg-type]
    for word in ("block disks", "file system", "skerry disk open", "layers="):
        assert word in error.value.message


def test_other_options_that_there_are_not_are_named_and_those_that_there_are() -> None:
    with pytest.raises(TypeError, match=r"no option 'dusks'; there are image, layers, .*, memory,"):
        spec_of("container", dusks=1)  # type: ignore[call-arg]


def test_limit_of_what_may_be_written_is_still_a_size() -> None:
    assert spec_of("container", disk="2GiB").disk_bytes == 2 << 30
    with pytest.raises(InvalidRequest, match="no size"):
        spec_of("container", disk="much")
