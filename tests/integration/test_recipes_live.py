"""Recipes built on a real node: what each instruction does, what is cached, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry import ImageSources
from skerry.errors import InvalidRequest, NotFound, SandboxFailed

pytestmark = pytest.mark.root

RECIPE = """\
# a tool with a user of its own
ARG LEVEL=low
FROM debian:12
ARG LEVEL
ENV PATH=/opt/tool/bin:$PATH LEVEL=$LEVEL
RUN groupadd -g 1234 tool && useradd -u 1234 -g tool tool && echo left > /tmp/between
WORKDIR /opt/tool
COPY --chown=tool:tool --chmod=755 bin/ bin/
COPY notes.txt *.cfg etc/
COPY <<EOF etc/made
level $LEVEL
EOF
RUN test "$(cat /tmp/between)" = left && rm /etc/motd && echo secret > /root/.bash_history
USER tool
RUN <<EOF
id -un > /tmp/who
test "$(cat /tmp/who) $PWD" = "tool /opt/tool"
EOF
CMD ["tool"]
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    root = tmp_path / "context"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tool").write_text("#!/bin/sh\necho tool $LEVEL of $(id -un) in $(pwd)\n")
    (root / "notes.txt").write_text("notes")
    (root / "a.cfg").write_text("a")
    (root / "secret.cfg").write_text("hidden")
    (root / ".dockerignore").write_text("secret*\n")
    return root


async def remove_all(images) -> None:
    for manifest in await images.list():
        if manifest.name.startswith(("workspace/build-cache/", "workspace/recipe", "base/recipe")):
            await images.remove(manifest.name)


async def test_a_recipe_makes_a_layer_and_its_steps_are_kept(node_client, context: Path) -> None:
    images = node_client.images
    lines: list[str] = []
    try:
        made = await images.build_recipe(
            "workspace/recipe", RECIPE, context=context, network=(), on_log=lines.append
        )
        assert "cached" not in lines
        assert made.creator == "build"
        assert made.recipe["recipe"] == RECIPE
        assert made.config is not None
        assert (made.config.user, made.config.workdir) == ("tool", "/opt/tool")
        assert {"temporary", "histories"} <= {one.rule for one in made.scrubbed}
        async with await node_client.sandboxes.create(layers=["workspace/recipe"]) as sandbox:
            result = await sandbox.run("tool")
            assert result.text == "tool low of tool in /opt/tool\n"
            listing = (
                "cd /opt/tool && find . -printf '%P %m %u\\n' | LC_ALL=C sort; cat etc/made; "
                "test ! -e /etc/motd && test ! -e /root/.bash_history && ls -A /tmp"
            )
            result = await sandbox.run(listing, user="root")
            assert result.text.splitlines() == [
                " 755 root", "bin 755 root", "bin/tool 755 tool", "etc 755 root",
                "etc/a.cfg 644 root", "etc/made 644 root", "etc/notes.txt 644 root", "level low",
            ]  # fmt: skip

        lines.clear()
        again = await images.build_recipe(
            "workspace/recipe", RECIPE, context=context, network=(), on_log=lines.append
        )
        assert lines.count("cached") == 7
        assert again == made  # the very one: nothing was made again

        lines.clear()
        (context / "notes.txt").write_text("other notes")
        changed = await images.build_recipe(
            "workspace/recipe", RECIPE, context=context, network=(), args={"LEVEL": "low"},
            on_log=lines.append,
        )  # fmt: skip
        assert lines.count("cached") == 3  # what lies before the changed file
        assert changed.digest != made.digest
    finally:
        await remove_all(images)


async def test_a_base_by_recipe_stands_alone(node_client) -> None:
    images = node_client.images
    try:
        made = await images.build_recipe(
            "base/recipe:1", "FROM debian:12\nRUN rm /etc/motd\nENV A=b", network=()
        )
        assert made.config is not None
        assert made.config.env == {"A": "b"}
        async with await node_client.sandboxes.create(image="recipe:1") as sandbox:
            result = await sandbox.run("test ! -e /etc/motd && echo $A")
            assert result.text == "b\n"
    finally:
        await remove_all(images)


async def test_many_steps_are_folded_below_the_limit_of_layers(node_client) -> None:
    images = node_client.images
    recipe = "FROM debian:12\n" + "".join(f"RUN echo {n} >> /count\n" for n in range(27))
    try:
        await images.build_recipe("workspace/recipe", recipe, network=())
        async with await node_client.sandboxes.create(layers=["workspace/recipe"]) as sandbox:
            result = await sandbox.run("cat /count")
            assert result.text.split() == [str(n) for n in range(27)]
    finally:
        await remove_all(images)


STAGES = """
FROM debian:12 AS build
RUN mkdir -p /out/sub && cd /out && echo made > a && echo deep > sub/b && chown 7:8 a && ln -s a link
FROM debian:12 AS unused
RUN false
FROM build AS more
ENV OF_STAGE=yes
RUN echo more > /out/more
FROM debian:12
COPY --from=build /out/ /in/
COPY --from=more /out/mo* /one/
COPY --from=0 --chown=nobody --chmod=750 /out/link /renamed
COPY --from=build --chown=9:9 /out/sub /in/sub
COPY --from=tools.example/only:1 /uv /usr/local/bin/uv
"""


async def test_stages_and_other_images_give_files_and_nothing_else(
    node_client, tmp_path: Path
) -> None:
    images = node_client.images
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "uv").write_text("#!/bin/sh\necho uv\n")
    (tmp_path / "only" / "uv").chmod(0o755)
    sources = ImageSources(aliases={"tools.example/only:1": "base/recipe-only:1"})
    lines: list[str] = []
    try:
        await images.import_directory("base/recipe-only:1", tmp_path / "only")
        made = await images.build_recipe(
            "workspace/recipe", STAGES, network=(), sources=sources, on_log=lines.append
        )
        assert not any("RUN false" in line for line in lines)  # nobody takes anything of it
        assert made.config is not None
        assert made.config.env == {}
        async with await node_client.sandboxes.create(layers=["workspace/recipe"]) as sandbox:
            result = await sandbox.run(
                "uv; find /in /one /renamed -printf '%p %m %U:%G %l\n' | LC_ALL=C sort; test ! -e /out"
            )
            assert result.text.splitlines() == [
                "uv", "/in 755 0:0 ", "/in/a 644 7:8 ", "/in/link 777 0:0 a", "/in/sub 755 0:0 ",
                "/in/sub/b 644 9:9 ", "/one 755 0:0 ", "/one/more 644 0:0 ",
                "/renamed 750 65534:65534 ",
            ]  # fmt: skip
        lines.clear()
        await images.build_recipe(
            "workspace/recipe", STAGES.replace("more >", "else >"), network=(), sources=sources,
            on_log=lines.append,
        )  # fmt: skip
        # The stage that is changed, what is copied of it and what comes after that are made again.
        assert lines.count("cached") == 2
        with pytest.raises(NotFound, match="line 3: there is no /nothing in build"):
            await images.build_recipe(
                "workspace/recipe",
                "FROM debian:12 AS build\nFROM debian:12\nCOPY --from=build /nothing /x",
                network=(),
            )
    finally:
        await remove_all(images)


async def test_a_failing_step_names_its_line_and_leaves_what_came_before(node_client) -> None:
    images = node_client.images
    recipe = "FROM debian:12\nRUN echo first\n\nRUN echo said; exit 3\n"
    lines: list[str] = []
    try:
        with pytest.raises(SandboxFailed, match=r"line 4.*status 3\nsaid"):
            await images.build_recipe("workspace/recipe", recipe, network=())
        with pytest.raises(NotFound):
            await images.inspect("workspace/recipe")
        with pytest.raises(SandboxFailed):
            await images.build_recipe("workspace/recipe", recipe, network=(), on_log=lines.append)
        assert lines.count("cached") == 1
        with pytest.raises(SandboxFailed, match="longer than 1 s"):
            await images.build_recipe(
                "workspace/recipe", "FROM debian:12\nRUN sleep 60", network=(), timeout=1
            )
        with pytest.raises(InvalidRequest, match="line 2: COPY needs a context"):
            await images.build_recipe("workspace/recipe", "FROM debian:12\nCOPY a b", network=())
        with pytest.raises(InvalidRequest, match="knows no 'nobodyelse'"):
            await images.build_recipe(
                "workspace/recipe",
                "FROM debian:12\nCOPY --chown=nobodyelse <<E /e\nE\n",
                network=(),
            )
        with pytest.raises(NotFound, match="base/nowhere"):
            await images.build_recipe("workspace/recipe", "FROM nowhere:1\nRUN true", network=())
    finally:
        await remove_all(images)
