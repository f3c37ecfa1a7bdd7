"""Sixteen samples at a time, each with files, a setup, tools and a look at what it left."""

from __future__ import annotations

from inspect_ai import Task
from inspect_ai import eval as evaluate_all
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, python
from inspect_ai.util import sandbox

from conftest import IMAGE, LOCAL, MODEL, says, told

SAMPLES = 64


@scorer(metrics=[accuracy()])
def left_behind():
    """Reads in the sandbox what the agent has made there."""

    async def score(state, target):
        made = await sandbox().read_file("made.txt")
        return Score(value=made == f"{target.text}\n", answer=made)

    return score


def test_sixteen_samples_at_a_time_have_a_sandbox_each(tmp_path) -> None:
    (tmp_path / "skerry.toml").write_text(f'image = "{IMAGE}"\nmemory = "256MiB"\n')
    dataset = [
        Sample(
            id=number,
            input="copy it",
            target=f"number {number}",
            files={"given.txt": f"number {number}"},
            setup="cat given.txt > prepared.txt; echo >> prepared.txt",
        )
        for number in range(SAMPLES)
    ]
    task = Task(
        dataset=dataset,
        solver=[use_tools(bash(timeout=120), python(timeout=120)), generate()],
        scorer=left_behind(),
        sandbox="local" if LOCAL else ("skerry", str(tmp_path / "skerry.toml")),
    )
    model = says(
        ("bash", {"command": "mv prepared.txt made.txt; hostname"}),
        ("python", {"code": "print(open('made.txt').read(), end='')"}),
    )
    (log,) = evaluate_all(task, model=model, max_samples=16, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.eval.model == MODEL
    assert [sample.error for sample in log.samples] == [None] * SAMPLES
    for sample in log.samples:
        assert told(sample)[1] == f"number {sample.id}\n"
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
