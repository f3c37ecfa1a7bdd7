"""Harbor's own agent, terminus-2, with tmux in a sandbox and a model that is a script."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

TURNS = (
    {"commands": [{"keystrokes": "cd /app\n", "duration": 0.1}], "task_complete": False},
    {
        "commands": [
            {"keystrokes": "cat > hello.txt\n", "duration": 0.3},
            {"keystrokes": "hello\n", "duration": 0.3},
            {"keystrokes": "C-d", "duration": 0.5},
            {"keystrokes": "ls -l; id -un\n", "duration": 0.5},
        ],
        "task_complete": False,
    },
    {"commands": [], "task_complete": True},
    {"commands": [], "task_complete": True},  # terminus asks whether that is meant
)


class Model(http.server.BaseHTTPRequestHandler):
    """Answers in OpenAI's protocol, one turn after the other; keeps what it was told."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard.append(body["messages"][-1]["content"])
        turn = TURNS[min(len(self.server.heard), len(TURNS)) - 1]
        content = json.dumps({"analysis": "a", "plan": "p"} | turn)
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "fake",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": content},
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def model():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        server.heard = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_agent_works_in_its_terminal_and_earns_1(harbor, client, model, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    task = harbor.init("terminal")
    info = {"max_input_tokens": 32000, "max_output_tokens": 4000}
    info |= {"input_cost_per_token": 0, "output_cost_per_token": 0}
    job = harbor.run(
        task,
        *("-a", "terminus-2", "-m", "openai/fake"),
        *("--ak", f"api_base=http://127.0.0.1:{model.server_port}/v1"),
        *("--ak", f"model_info={json.dumps(info)}"),
        *("--ak", "record_terminal_session=false"),  # it would install asciinema
    )
    assert job.exceptions == [None], job.log() + job.said
    assert job.rewards == [1.0], job.log()
    assert len(model.heard) == len(TURNS)
    assert "root@skerry:/app#" in model.heard[1]
    assert "hello.txt\nroot\n" in model.heard[2].replace("\r", "")
