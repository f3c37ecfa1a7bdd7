from __future__ import annotations

import base64


async def test_sandbox_is_made_used_and_destroyed(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        result = await api.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["echo", "hi"]})
        assert base64.b64decode(result["stdout"]) == b"hi\n"
        assert result["exit_code"] == 0
        gone = await api.call("DELETE", f"/v1/sandboxes/{sid}")
        assert gone["state"] == "stopped"
        assert stand.world.instances == {}
        assert len(node.sandboxes) == 0
