"""A policy learns to fix a bug rather than to cheat: REINFORCE with Adam, on rewards from real rollouts.

    python examples/training_loop/train.py --state /tmp/policy.json --steps 8

The policy is a softmax over what an agent may do; see README.md. Everything that this process must not
forget is in the state file. It may be killed at any moment: started again, it finds its job by name, with
the rollouts where they were, and ends with the same weights as if nothing had happened.
"""

import argparse
import json
import math
import os
import random
import secrets
from pathlib import Path

import skerry
from skerry.worker import load_tasks

HERE = Path(__file__).parent
TASK = HERE.parent / "tasks" / "xmltodict-0.14.2"
AGENT = (HERE / "agent.py").read_text()

# What an agent may do in the workdir of the task. Nothing here says which of them is good.
ACTIONS = {
    "fix": "sed -i 's/if self.strip_whitespace and data and item:/if self.strip_whitespace and data:/' "
    "xmltodict.py",
    "nothing": "true",
    "cheat": "printf 'def test_all():\\n    assert True\\n' > tests/test_xmltodict.py",
    "wrong": "sed -i 's/data = data.strip() or None/data = data.strip()/' xmltodict.py",
}
NAMES = list(ACTIONS)


# --- the policy and its optimiser -----------------------------------------------------------------


def softmax(logits):
    top = max(logits)
    weights = [math.exp(one - top) for one in logits]
    return [one / sum(weights) for one in weights]


def choose(state, number):
    """The action of a rollout. A process that comes back draws the same one: nothing else is read."""
    draw = random.Random(f"{state['seed']}/{state['step']}/{number}")
    return draw.choices(NAMES, softmax(state["logits"]))[0]


def learn(state, earned, rate=0.5):
    """One step of Adam along the policy gradient; `earned` is a list of (action, reward)."""
    chances = softmax(state["logits"])
    baseline = sum(reward for _, reward in earned) / len(earned)
    gradient = [0.0] * len(NAMES)
    for action, reward in earned:
        for at, name in enumerate(NAMES):
            gradient[at] += (reward - baseline) * ((name == action) - chances[at]) / len(earned)
    step = state["step"] + 1
    for at, slope in enumerate(gradient):
        state["first"][at] = 0.9 * state["first"][at] + 0.1 * slope
        state["second"][at] = 0.99 * state["second"][at] + 0.01 * slope * slope
        mean = state["first"][at] / (1 - 0.9**step)
        spread = math.sqrt(state["second"][at] / (1 - 0.99**step))
        state["logits"][at] += rate * mean / (spread + 1e-8)


# --- what outlives this process -------------------------------------------------------------------


def fresh(seed):
    zeros = [0.0] * len(NAMES)
    return {
        "run": "train-" + secrets.token_hex(4),
        "seed": seed,
        "step": 0,
        "logits": list(zeros),
        "first": list(zeros),
        "second": list(zeros),
        "history": [],
    }


def load(path, seed):
    """The state as it was saved; a new one is saved before any job has its name."""
    if path.exists():
        return json.loads(path.read_text())
    state = fresh(seed)
    save(path, state)
    return state


def save(path, state):
    """Either the old state is there or the new one, whenever this is killed."""
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


# --- rollouts -------------------------------------------------------------------------------------


def turn_of(request):
    return sum(one["role"] == "assistant" for one in request.body["messages"])


def number_of(rollout):
    return int(rollout.rpartition("-")[2])


def name_of(state, step):
    return f"{state['run']}-{step}"


def roll_out(client, state, rollouts, concurrency):
    """The step's rollouts, from wherever they are to their ends: (action, reward, verdict) of each."""
    # Both calls find what an earlier life of this process has made already.
    job = client.jobs.create(name_of(state, state["step"]), lease=60)
    with job:  # holds the job's lease; without it the sandboxes pause
        job.submit(
            load_tasks([TASK]),
            scaffold=["/usr/bin/python3", "-c", AGENT],
            n=rollouts,
            concurrency=concurrency,
        )
        for request in job.requests():  # those that nobody has answered, old and new
            action = choose(state, number_of(request.rollout))
            request.answer(ACTIONS[action] if turn_of(request) == 0 else "done")
        records = {number_of(record.rollout): record for record in job.results()}
    return [
        (choose(state, number), record.reward, str(record.verdict))
        for number, record in sorted(records.items())
    ]


def forget(client, name):
    """Ends a job, if it is there."""
    try:
        client.jobs.get(name).end()
    except skerry.NotFound:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", type=Path, required=True, help="file that outlives this process")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=12, help="of each step")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    state = load(options.state, options.seed)
    with skerry.connect() as client:
        if state["step"]:  # killed between saving a step and ending its job?
            forget(client, name_of(state, state["step"] - 1))
        while state["step"] < options.steps:
            outcomes = roll_out(client, state, options.rollouts, options.concurrency)
            # A rollout without a reward is a fault of the platform: it teaches nothing.
            earned = [(action, reward) for action, reward, _ in outcomes if reward is not None]
            if earned:
                learn(state, earned)
            done = state["step"]
            state["history"].append(outcomes)
            state["step"] += 1
            save(options.state, state)
            forget(client, name_of(state, done))
            chances = "  ".join(
                f"{name} {chance:.2f}" for name, chance in zip(NAMES, softmax(state["logits"]))
            )
            mean = sum(reward for _, reward in earned) / max(1, len(earned))
            print(f"step {state['step']}: mean reward {mean:.2f}; next: {chances}", flush=True)


if __name__ == "__main__":
    main()
