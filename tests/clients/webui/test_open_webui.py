"""Open WebUI: its server between a browser's requests and the daemon; chat completions."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

PACKAGES = ["open-webui"]

STARTS_S = 240  # it imports much, and makes a database


@pytest.fixture(scope="module")
def webui(s, tmp_path_factory):
    """A client of `open-webui serve`, with the key of its only user."""
    folder = tmp_path_factory.mktemp("webui")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "HOME": str(folder), "DATA_DIR": str(folder), "WEBUI_AUTH": "False", "OPENAI_API_BASE_URL": s.v1,
           "OPENAI_API_KEY": "none", "ENABLE_OLLAMA_API": "False", "OFFLINE_MODE": "True", "WEBUI_SECRET_KEY": "test"}
    with open(folder / "log", "w") as log:
        server = subprocess.Popen([Path(sys.executable).with_name("open-webui"), "serve", "--host", "127.0.0.1", "--port",
                                   str(port)], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        try:
            wait_for(client, server, folder / "log")
            signed = client.post("/api/v1/auths/signin", json={"email": "", "password": ""}).json()
            client.headers["Authorization"] = "Bearer " + signed["token"]
            yield client
        finally:
            server.terminate()
            server.wait(30)


def wait_for(client, server, log):
    for _ in range(STARTS_S):
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise AssertionError("it does not start: " + log.read_text()[-3000:])


def ask(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def test_models(webui):
    """its list of models has those of the daemon"""
    assert {m["id"] for m in webui.get("/api/models").json()["data"]} >= {"m", "gpt-5.5"}


def test_chat(s, webui):
    """a chat through its API, whole and streamed"""
    s.say("Say hello.", "Hello there.")
    assert webui.post("/api/chat/completions", json=ask("Say hello.")).json()["choices"][0]["message"]["content"] \
        == "Hello there."
    with webui.stream("POST", "/api/chat/completions", json=ask("Say hello.", stream=True)) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"]) == "Hello there."


def test_title(s, webui):
    """the title of a chat, which it asks the model for in the background"""
    s.say("hail", '{"title": "Hail"}', tail=20000)
    answer = webui.post("/api/v1/tasks/title/completions", json=ask("There is hail.", chat_id="1"))
    assert json.loads(answer.json()["choices"][0]["message"]["content"]) == {"title": "Hail"}
