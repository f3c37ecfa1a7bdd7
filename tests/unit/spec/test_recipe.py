"""Recipes: what each instruction becomes, and that each line that is wrong is named."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest
from skerry.spec.layers import ImageConfig
from skerry.spec.recipe import CopyStep, Plan, RunStep, plan
from skerry.spec.recipe_stages import parse_recipe

BASE = ImageConfig(env={"PATH": "/usr/bin"})


def planned(text: str, args: dict[str, str] | None = None, base: ImageConfig = BASE) -> Plan:
    return plan(parse_recipe(text, args), base)


def runs(text: str, args: dict[str, str] | None = None) -> list[RunStep]:
    return [step for step in planned(text, args).steps if isinstance(step, RunStep)]


def copies(text: str, args: dict[str, str] | None = None) -> list[CopyStep]:
    return [step for step in planned(text, args).steps if isinstance(step, CopyStep)]


def test_shell_form_goes_to_the_shell_as_it_is_written() -> None:
    (step,) = runs("FROM debian:12\nRUN echo $PATH 'a  b' && true")
    assert step.argv == ("/bin/sh", "-c", "echo $PATH 'a  b' && true")
    assert step.workdir == "/"
    assert step.env == {"PATH": "/usr/bin"}


def test_exec_form_is_taken_word_by_word() -> None:
    (step,) = runs('FROM debian:12\nRUN ["printf", "%s", "a b"]')
    assert step.argv == ("printf", "%s", "a b")


def test_shell_instruction_changes_the_shell_form_only() -> None:
    text = 'FROM debian:12\nSHELL ["/bin/bash", "-ec"]\nRUN a\nRUN ["b"]'
    assert [step.argv for step in runs(text)] == [("/bin/bash", "-ec", "a"), ("b",)]


def test_continuations_lose_comments_and_empty_lines_between() -> None:
    text = "FROM debian:12\nRUN a \\\n  # why\n\n  && b \\\n  && c\nRUN d"
    assert [step.argv[2] for step in runs(text)] == ["a   && b   && c", "d"]


def test_escape_directive_makes_the_backtick_join_lines() -> None:
    text = "# escape=`\nFROM debian:12\nRUN a `\n  b\nENV C=x\\y"
    made = planned(text)
    assert made.steps[0].text == "RUN a   b"
    assert made.config.env["C"] == "x\\y"


def test_heredoc_of_run_is_a_script_and_a_programs_input() -> None:
    text = "FROM debian:12\nRUN <<EOF\nset -e\necho $A\nEOF\nRUN cat > /x <<-'END'\n\tone\n\tEND\n"
    script, fed = runs(text)
    assert script.argv == ("/bin/sh", "-c", "set -e\necho $A\n")
    assert (fed.argv[2], fed.stdin) == ("cat > /x", "one\n")


def test_heredoc_with_an_interpreter_is_its_input() -> None:
    (step,) = runs("FROM debian:12\nRUN <<PY\n#!/usr/bin/python3\nprint(1)\nPY")
    assert step.argv == ("/usr/bin/python3", "/dev/stdin")
    assert step.stdin == "#!/usr/bin/python3\nprint(1)\n"


def test_env_reaches_later_steps_and_the_configuration() -> None:
    text = 'FROM debian:12\nENV A=1 B="two words"\nENV PATH=/opt:$PATH\nRUN x\nENV C the rest'
    made = planned(text)
    (step,) = [step for step in made.steps if isinstance(step, RunStep)]
    assert step.env == {"A": "1", "B": "two words", "PATH": "/opt:/usr/bin"}
    assert made.config.env["C"] == "the rest"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("$A", "one"), ("${A}", "one"), ("${A}two", "onetwo"), ("$NONE", ""),
        ("${NONE:-$A}", "one"), ("${A:-x}", "one"), ("${A:+yes}", "yes"), ("${NONE:+yes}", ""),
        ("\\$A", "$A"), ("'$A'", "$A"), ('"$A b"', "one b"), ("$", "$"), ("a$1", "a$1"),
    ],
)  # fmt: skip
def test_variables_are_put_in_as_docker_does(word: str, value: str) -> None:
    made = planned(f"FROM debian:12\nENV A=one\nENV B={word}")
    assert made.config.env["B"] == value


def test_path_has_a_value_where_the_base_sets_none() -> None:
    made = planned("FROM debian:12\nENV PATH=/x:$PATH", base=ImageConfig())
    assert made.config.env["PATH"].startswith("/x:/usr/local/sbin:")
    assert planned("FROM debian:12\nRUN x", base=ImageConfig()).config.env == {}


def test_args_have_defaults_that_the_caller_overrides() -> None:
    text = "ARG V=12\nFROM debian:$V\nARG V\nARG W=w$V\nRUN x"
    assert parse_recipe(text).base == "base/debian:12"
    assert parse_recipe(text, {"V": "13"}).base == "base/debian:13"
    assert runs(text)[0].env == {"PATH": "/usr/bin", "V": "12", "W": "w12"}
    assert runs(text, {"W": "z"})[0].env["W"] == "z"


def test_args_do_not_stay_in_the_layer_and_env_wins_over_them() -> None:
    made = planned("FROM debian:12\nARG A=secret\nARG B=1\nENV B=2\nRUN x")
    assert made.config.env == {"PATH": "/usr/bin", "B": "2"}
    assert isinstance(made.steps[0], RunStep)
    assert made.steps[0].env["B"] == "2"


def test_arg_that_nobody_declares_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no ARG names X"):
        parse_recipe("FROM debian:12\nARG Y", {"X": "1"})


def test_workdir_is_relative_to_the_last_and_made() -> None:
    made = planned("FROM debian:12\nWORKDIR /a\nWORKDIR b/../c\nRUN x")
    assert [step.target for step in made.steps if isinstance(step, CopyStep)] == ["/a/", "/a/c/"]
    assert made.config.workdir == "/a/c"


def test_copy_targets_are_absolute_and_sources_stay_below_the_context() -> None:
    text = "FROM debian:12\nWORKDIR /w\nCOPY a b/ c/\nCOPY --chown=1:2 --chmod=640 /x y\nCOPY . ."
    made = copies(text)
    assert (made[1].sources, made[1].target) == (("a", "b"), "/w/c/")
    assert (made[2].sources, made[2].target) == (("x",), "/w/y")
    assert (made[2].owner, made[2].mode) == ("1:2", "640")
    assert (made[3].sources, made[3].target) == ((".",), "/w/")


def test_copy_takes_the_json_form_and_documents() -> None:
    text = 'FROM debian:12\nENV A=1\nCOPY ["a b", "/c d/"]\nCOPY <<X <<"Y" /e/\n$A\nX\n$A\nY'
    first, second = copies(text)
    assert (first.sources, first.target) == (("a b",), "/c d/")
    assert second.files == (("X", "1\n"), ("Y", "$A\n"))


def test_labels_commands_and_what_means_nothing_are_kept_or_noted() -> None:
    text = 'FROM debian:12\nLABEL a="b c" d=e\nENTRYPOINT ["x"]\nCMD y z\nEXPOSE 80\nUSER me'
    made = planned(text)
    assert made.config.labels == {"a": "b c", "d": "e"}
    assert (made.config.entrypoint, made.config.cmd) == (("x",), ("/bin/sh", "-c", "y z"))
    assert made.config.user == "me"
    assert made.notes == ("line 5: EXPOSE has no meaning in a sandbox",)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("RUN x", 1, "begins with FROM"),
        ("FROM", 1, "write FROM IMAGE"),
        ("FROM toolkit/x", 1, "must be a base"),
        ("FROM a.example/b/c:1@x", 1, "digest"),
        ("FROM debian:12 AS a\nFROM debian:12 AS A", 2, "another stage has it"),
        ("FROM debian:12 AS 1a", 1, "no name"),
        ("FROM debian:12 AS a\nFROM workspace/x", 2, "must be a base"),
        ("FROM debian:12\n" * 65, 65, "more than 64 stages"),
        ("FROM debian:12\n\nADD x y", 3, "use COPY"),
        ("FROM debian:12\nRUNN x", 2, "RUNN is no instruction"),
        ("FROM debian:12\nRUN", 2, "without a command"),
        ("FROM debian:12\nRUN --mount=type=secret,id=a x", 2, "only cache mounts"),
        ("FROM debian:12\nRUN <<EOF\nx", 2, "EOF has no end"),
        ("FROM debian:12\nCOPY a", 2, "write COPY"),
        ("FROM debian:12\nCOPY a b /c", 2, "end it with /"),
        ("FROM debian:12\nCOPY ../a /c", 2, "outside the context"),
        ("FROM debian:12\nCOPY --from= a /c", 2, "write COPY --from=IMAGE"),
        ("FROM debian:12\nCOPY --from=x <<E /c\nE", 2, "write COPY --from=IMAGE"),
        ("FROM debian:12\nCOPY --from=x ../a /c", 2, "outside"),
        ("FROM debian:12\nCOPY --parents a /c", 2, "--parents is not taken"),
        ("FROM debian:12\nCOPY --chmod=9 a /c", 2, "octal"),
        ("FROM debian:12\nENV", 2, "write ENV"),
        ("FROM debian:12\nENV A=${B", 2, "without }"),
        ("FROM debian:12\nENV A=${B?x}", 2, "only"),
        ("FROM debian:12\nENV A='x", 2, "not closed"),
        ("FROM debian:12\nUSER a b", 2, "write USER"),
        ("FROM debian:12\nARG 1=2", 2, "write ARG"),
        ("FROM debian:12\nSHELL sh", 2, "write SHELL"),
    ],
)
def test_a_wrong_line_is_named(text: str, line: int, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"line {line}:.*{says}"):
        planned(text)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "ARG A=1"])
def test_a_recipe_without_from_says_how_to_begin(text: str) -> None:
    with pytest.raises(InvalidRequest, match="begin with FROM"):
        parse_recipe(text)


STAGES = """ARG V=12
FROM debian:$V AS Build
ARG V
RUN one $V
FROM scratchy:1
RUN two $V
FROM build AS again
ENV A=b
FROM ghcr.io/a/b:1
COPY --from=build /out/* /in/
COPY --from=0 x y
COPY --from=ghcr.io/c/d:2 --chown=1 /uv /usr/local/bin/uv
"""


def test_stages_have_names_and_numbers_and_begin_with_images_or_stages() -> None:
    recipe = parse_recipe(STAGES)
    assert [(one.name, one.base) for one in recipe.stages] == [
        ("build", "base/debian:12"), (None, "base/scratchy:1"), ("again", "build"),
        (None, "base/ghcr.io/a/b:1"),
    ]  # fmt: skip
    assert recipe.earlier("build", 2) == 0
    assert recipe.earlier("BUILD", 3) == 0
    assert recipe.earlier("again", 2) is None  # a stage comes before who uses it
    assert recipe.earlier("0", 3) is None
    assert recipe.earlier("0", 3, numbers=True) == 0
    assert recipe.earlier("3", 3, numbers=True) is None


def test_each_stage_is_planned_alone() -> None:
    recipe = parse_recipe(STAGES)
    first, second, third, last = (plan(recipe, BASE, at) for at in range(4))
    assert [step.env.get("V") for step in (*first.steps, *second.steps)] == ["12", None]
    assert third.config.env["A"] == "b"
    assert [(one.origin, one.sources, one.target) for one in last.steps] == [
        ("build", ("out/*",), "/in/"), ("0", ("x",), "/y"),
        ("ghcr.io/c/d:2", ("uv",), "/usr/local/bin/uv"),
    ]  # fmt: skip


def test_bounds_hold() -> None:
    with pytest.raises(InvalidRequest, match="instructions"):
        parse_recipe("FROM debian:12\n" + "RUN x\n" * 501)
    with pytest.raises(InvalidRequest, match="bytes"):
        parse_recipe("#" * (1 << 20) + "x")
    bomb = "".join(f"ENV A{n + 1}=$A{n}$A{n}$A{n}$A{n}\n" for n in range(20))
    with pytest.raises(InvalidRequest, match="too long"):
        planned("FROM debian:12\nENV A0=xxxxxxxx\n" + bomb)


def test_words_in_words_without_end_are_refused_with_their_line() -> None:
    nested = "${b:-" * 50 + "x" + "}" * 50
    assert parse_plan(f"FROM debian:12\nENV a={nested}\n").config.env["a"] == "x"
    with pytest.raises(InvalidRequest, match="line 2: more than 100"):
        parse_plan("FROM debian:12\nENV a=" + "${b:-" * 3000 + "x" + "}" * 3000 + "\n")


def parse_plan(text: str) -> Plan:
    return plan(parse_recipe(text), ImageConfig())
