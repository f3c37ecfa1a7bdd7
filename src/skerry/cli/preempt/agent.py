"""The agent, run in its sandbox by /usr/bin/python3, never imported. It needs the standard library only.

It asks its model, does what the answer says, and so on until that says nothing more. Before and after
each step it tells the witness, in whose eyes each of its lives has a name of its own. It has the habits
of OpenAI's client: it tries again after a lost connection, and says so.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from typing import Any

TALLY = "/run/skerry-demo-ran"  # a line for each command that ran in this sandbox, whoever ran it
# Nothing of the environment's proxies: both addresses are on loopback.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def send(url: str, value: object, headers: dict[str, str], timeout: float) -> Any:
    """Posts JSON and returns the JSON that comes back."""
    body = json.dumps(value).encode()
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - loopback, by http
    with OPENER.open(request, timeout=timeout) as answer:
        return json.load(answer)


def tell(fact: dict[str, object]) -> None:
    """Returns when the witness has it; the note tells a repeated message from a repeated deed."""
    fact = {**fact, "note": uuid.uuid4().hex}
    while True:
        try:
            send(os.environ["WITNESS"], fact, {}, 30)
            return
        except (OSError, ValueError):
            time.sleep(0.05)  # the way to it is not open yet, or was cut


def ask(messages: list[dict[str, str]]) -> str:
    """Returns what the model says."""
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    key = "Bearer " + os.environ["OPENAI_API_KEY"]
    for tried in range(1000):
        headers = {"Authorization": key, "X-Stainless-Retry-Count": str(tried)}
        try:
            answer = send(url, {"model": "scripted", "messages": messages}, headers, 600)
            content: str = answer["choices"][0]["message"]["content"]
            return content
        except (OSError, ValueError):
            time.sleep(0.2)
    sys.exit("no answer")


def do(command: str, life: str, turn: int) -> tuple[dict[str, object], int]:
    """Runs a command; returns what to say of it, and how many have run here by now."""
    argv = ["/bin/sh", "-c", command]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    with open(TALLY, "a+") as tally:
        tally.write(f"{life} {turn}\n")
        tally.seek(0)
        count = len(tally.readlines())
    return {"status": done.returncode, "output": (done.stdout + done.stderr)[-2000:]}, count


def main() -> None:
    """Lives once."""
    told, life, turn = json.load(sys.stdin), uuid.uuid4().hex, 0
    who = {"rollout": told["rollout"], "life": life}
    tell({**who, "what": "began"})
    messages = [{"role": "user", "content": json.dumps({**who, "bug": told["bug"]})}]
    while True:
        tell({**who, "what": "asks", "turn": turn})
        content = ask(messages)
        answer = json.loads(content)
        tell({**who, "what": "heard", "turn": turn, "sample": answer["sample"]})
        if answer["command"] is None:
            break
        said, count = do(answer["command"], life, turn)
        tell({**who, "what": "ran", "turn": turn, "count": count})
        messages.append({"role": "assistant", "content": content})
        messages.append({"role": "user", "content": json.dumps(said)})
        turn += 1
    tell({**who, "what": "ended", "turn": turn})


if __name__ == "__main__":
    main()
