"""Models of made-up weights: served over HTTP like any other, but only when that was allowed."""

import json
import signal
import subprocess

from conftest import BUILD, SLOW


def inferd(*args):
    return subprocess.run([BUILD / "inferd", *args], capture_output=True, text=True, timeout=120 * SLOW)


def config_of(path, name="made-up"):
    return {"devices": [{"kind": "cpu", "memory": "64MiB"}], "models": [{"name": name, "path": path}]}


def test_a_dummy_is_served_like_a_model(launch):
    d = launch(config_of("dummy:tiny?dtype=q4_k_m&layers=3&context=512"), args=["--allow-dummy"])
    answer = d.http.post("/v1/chat/completions", json={
        "model": "made-up", "max_tokens": 20, "temperature": 0, "ignore_eos": True,
        "messages": [{"role": "user", "content": "héllo \U0001f600"}]})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["usage"]["completion_tokens"] == 20 and body["choices"][0]["finish_reason"] == "length"
    again = d.http.post("/v1/completions", json={
        "model": "made-up", "prompt": [5, 6, 7], "max_tokens": 30, "stream": True, "seed": 1, "ignore_eos": True})
    assert again.status_code == 200 and again.text.rstrip().endswith("data: [DONE]")
    tokens = d.http.post("/tokenize", json={"model": "made-up", "prompt": "a b"}).json()["tokens"]
    assert len(tokens) == 3  # a token for each byte
    d.settled()
    assert d.stop() == 0


def test_the_same_path_is_the_same_model(launch):
    ask = {"model": "made-up", "prompt": [9, 8, 7, 6], "max_tokens": 16, "temperature": 0, "ignore_eos": True,
           "return_token_ids": True, "logprobs": 1}
    answers = []
    for seed in (1, 1, 2):
        d = launch(config_of(f"dummy:tiny-qwen3?dtype=f16&seed={seed}"), args=["--allow-dummy"])
        choice = d.http.post("/v1/completions", json=ask).json()["choices"][0]
        answers.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
        assert d.stop() == 0
    assert answers[0] == answers[1] != answers[2]


def test_a_dummy_must_be_allowed(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config_of("dummy:tiny")))
    for command in (["check", "--config", path], ["serve", "--config", path],
                    ["serve", "--model", "dummy:tiny"]):
        r = inferd(*command)
        assert r.returncode == 2 and "dummy:tiny: " in r.stderr and "--allow-dummy" in r.stderr, r.stderr
    assert inferd("run", "dummy:tiny", "hello").returncode == 2
    assert inferd("check", "--config", path, "--allow-dummy").returncode == 0


def test_a_wrong_dummy_is_a_problem_of_the_configuration(tmp_path):
    path = tmp_path / "c.json"
    for model, words in (("dummy:tinny", 'no shape is called "tinny"; there are llama-3.1-8b'),
                         ("dummy:tiny?layers=many", 'layers is "many", expected a whole number')):
        path.write_text(json.dumps(config_of(model)))
        r = inferd("check", "--config", path, "--allow-dummy")
        assert r.returncode == 2 and words in r.stderr and f"models[0]: {model}: " in r.stderr, r.stderr


def test_a_dummy_runs_in_the_terminal():
    r = inferd("run", "dummy:tiny-gemma3?dtype=q8_0", "--allow-dummy", "--memory", "64MiB", "--max-tokens", "5",
               "--temperature", "0", "Hello")
    assert r.returncode == 0 and "answer:" in r.stderr, r.stderr


def test_a_dummy_without_a_name_is_called_as_its_shape():
    p = subprocess.Popen([BUILD / "inferd", "serve", "--model", "dummy:tiny?dtype=q4_0", "--allow-dummy", "--device",
                          "cpu", "--memory", "64MiB", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    line = p.stdout.readline()
    p.send_signal(signal.SIGTERM)
    assert p.wait(60 * SLOW) == 0
    assert line.startswith("inferd serves tiny ("), line
