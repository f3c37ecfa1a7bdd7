"""What an operator may choose, and what is refused."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest
from skerry.images.lazy.fetch import FetchConfig
from skerry.images.lazy.options import LazyOptions
from skerry.images.lazy.profiles import ProfileConfig
from skerry.images.lazy.server import ServerConfig


@pytest.mark.parametrize(
    "options",
    [
        LazyOptions(cache_bytes=1 << 20),
        LazyOptions(fetch=FetchConfig(wait_s=0)),
        LazyOptions(fetch=FetchConfig(range_bytes=100)),
        LazyOptions(fetch=FetchConfig(threads=0)),
        LazyOptions(fetch=FetchConfig(refetches=-1)),
        LazyOptions(server=ServerConfig(threads=0)),
        LazyOptions(server=ServerConfig(request_timeout_s=70_000)),
        LazyOptions(profile=ProfileConfig(record_s=-1)),
        LazyOptions(server=ServerConfig(request_timeout_s=40)),  # less than two reads' bounds
    ],
)
def test_what_makes_no_sense_is_refused(options: LazyOptions) -> None:
    with pytest.raises(InvalidRequest):
        options.check()


def test_defaults_and_no_timeout_of_the_kernel_make_sense() -> None:
    assert LazyOptions().check() == LazyOptions()
    LazyOptions(server=ServerConfig(request_timeout_s=0)).check()
