"""A body that asks for what there is not is refused by name, and nothing is made of the rest."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sandboxes", {"disks": ["disk/data"]}),
        ("/v1/sandboxes/batch", {"spec": {"disks": ["disk/data"]}, "count": 2, "key": "k"}),
    ],
)
async def test_block_disks_are_no_part_of_a_sandbox(
    stand, path: str, body: dict[str, object]
) -> None:
    async with (
        stand.serving() as (_, api),
        api.session.post(path, json=body, headers={"accept": "application/json"}) as answer,
    ):
        assert answer.status == 422
        said = await answer.json()
    assert said["code"] == "invalid"
    assert "`disks`" in said["message"]
    assert stand.world.instances == {}
