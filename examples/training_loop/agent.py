"""The agent, as a scaffold: it asks its model for a command, runs it, and says what came of it, until done.

It runs in the sandbox, with the standard library only. Skerry sets OPENAI_BASE_URL and OPENAI_API_KEY, and
writes the task to its standard input.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
HEADERS = {
    "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
    "Content-Type": "application/json",
}


def ask(messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    for tried in range(1000):
        # As OpenAI's client does: a lost connection is tried again, and the request says so.
        headers = {**HEADERS, "X-Stainless-Retry-Count": str(tried)}
        try:
            with urllib.request.urlopen(urllib.request.Request(URL, body, headers)) as answer:
                return json.load(answer)["choices"][0]["message"]["content"]
        except OSError:
            time.sleep(0.5)
    sys.exit("no answer")


messages = [{"role": "user", "content": json.load(sys.stdin)["prompt"]}]
while (said := ask(messages)) != "done":
    ran = subprocess.run(["/bin/sh", "-c", said], capture_output=True, text=True)
    messages.append({"role": "assistant", "content": said})
    messages.append(
        {"role": "user", "content": f"status {ran.returncode}\n{ran.stdout}{ran.stderr}"}
    )
