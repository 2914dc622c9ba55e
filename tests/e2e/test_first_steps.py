"""What people type in the first minutes, and what they are told."""

import concurrent.futures
import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from conftest import BUILD, SLOW, model_config

KEY = "key-of-a-newcomer-1"


def inferd(*args, env=None):
    return subprocess.run([BUILD / "inferd", *map(str, args)], capture_output=True, text=True, timeout=60 * SLOW,
                          env={**os.environ, **(env or {})})


@contextlib.contextmanager
def serving(*args, env=None):
    """The address of `inferd serve` with these words."""
    p = subprocess.Popen([BUILD / "inferd", "serve", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, env={**os.environ, **(env or {})})
    try:
        line = p.stdout.readline()
        found = re.search(r"base_url=\"http://(\S+):(\d+)/v1\"", line)
        assert found, (line, p.communicate(timeout=60 * SLOW)[1])
        yield f"http://127.0.0.1:{found.group(2)}", found.group(1)
    finally:
        p.terminate()
        _, text = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 0, text


# -- the command line --------------------------------------------------------------------------------

@pytest.mark.parametrize("listen", [":0", "0", "localhost:0", "127.0.0.1:0"])
def test_a_file_is_enough(tiny_model, listen):
    with serving(tiny_model, "--memory", "64MiB", "--listen", listen) as (url, host):
        assert host == "127.0.0.1"
        assert httpx.get(url + "/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_configuration_is_a_file_too(tiny_model, tmp_path):
    (tmp_path / "c.json").write_text('{"listen": "0", "models": [{"name": "mine", "path": "%s"}]}' % tiny_model)
    with serving(tmp_path / "c.json") as (url, _):
        assert httpx.get(url + "/v1/models").json()["data"][0]["id"] == "mine"


@pytest.mark.parametrize("words,sentence", [
    ([], "serve needs a model or a configuration: inferd serve FILE.gguf, or inferd serve FILE.json"),
    (["a.gguf", "b.gguf"], "serve takes one file"),
    (["a.gguf", "--config", "c.json"], "serve takes one file"),
    (["--model", "a.gguf", "--config", "c.json"], "serve takes one file"),
    (["c.json", "--name", "x"], "--name goes with a model"),
])
def test_a_wrong_command_is_told_in_a_sentence(words, sentence):
    r = inferd("serve", *words)
    assert r.returncode == 2 and r.stderr.startswith("inferd: " + sentence) and r.stderr.count("\n") == 1, r.stderr


# -- keys without a configuration --------------------------------------------------------------------

@pytest.mark.parametrize("way", ["file", "env"])
def test_other_machines_need_a_key_and_no_configuration(tiny_model, tmp_path, way):
    r = inferd("serve", tiny_model, "--listen", "0.0.0.0:0")
    assert r.returncode == 2 and "reachable from other machines, which needs keys: --api-key-file" in r.stderr
    keys = tmp_path / "keys"
    keys.write_text(f"# mine\n{KEY}\nkey-of-a-newcomer-2\n")
    keys.chmod(0o600)
    words = ["--api-key-file", keys] if way == "file" else ["--api-key-env", "MY_KEY"]
    with serving(tiny_model, "--memory", "64MiB", "--listen", "0.0.0.0:0", *words, env={"MY_KEY": KEY}) as (url, _):
        body = {"prompt": "x", "max_tokens": 2, "priority": "high"}
        assert httpx.post(url + "/v1/completions", json=body).status_code == 401
        r = httpx.post(url + "/v1/completions", json=body, headers={"Authorization": f"Bearer {KEY}"})
        assert r.status_code == 200, r.text
        assert "models" not in httpx.get(url + "/ready").json()  # names are for those with a key


@pytest.mark.parametrize("words,sentence", [
    (["--api-key-file", "/nonexistent/keys"], "--api-key-file: /nonexistent/keys: No such file or directory"),
    (["--api-key-env", "NO_SUCH_KEY"], "--api-key-env: the environment variable NO_SUCH_KEY is not set"),
    (["--api-key-env", "SHORT"], "--api-key-env: a key must have 8 to 512 bytes"),
])
def test_a_key_that_cannot_be_read_is_named(tiny_model, words, sentence):
    r = inferd("serve", tiny_model, *words, env={"SHORT": "abc"})
    assert r.returncode == 2 and sentence in r.stderr, r.stderr


def test_keys_of_the_command_line_and_tenants_exclude_each_other(tiny_model, tmp_path):
    (tmp_path / "c.json").write_text('{"models": [{"name": "m", "path": "%s"}], "tenants": [{"name": "t", "keys": '
                                     '["0123456789"]}]}' % tiny_model)
    r = inferd("serve", tmp_path / "c.json", "--api-key-env", "K", env={"K": KEY})
    assert r.returncode == 2 and "--api-key-env: the configuration has tenants" in r.stderr, r.stderr


# -- requests ----------------------------------------------------------------------------------------

def test_one_model_needs_no_name(tiny):
    for path, body in (("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                       ("completions", {"prompt": "x"})):
        for more in ({}, {"model": None}):
            r = tiny.http.post("/v1/" + path, json={**body, **more, "max_tokens": 2})
            assert r.status_code == 200 and r.json()["model"] == "tiny", r.text


def test_several_models_are_named(launch, tiny_model):
    c = model_config(tiny_model, "one")
    c["models"] = [{"name": n, "path": str(tiny_model)} for n in ("one", "two", *(f"m{i}" for i in range(8)))]
    c["tenants"] = [{"name": "all", "keys": ["key-of-all-models"]},
                    {"name": "few", "keys": ["key-of-one-model"], "models": ["two"]}]
    d = launch(c, wait=None)
    line = d.process.stdout.readline().decode()
    url = "http://127.0.0.1:" + re.search(r":(\d+)/v1", line).group(1)

    def ask(key, **more):
        r = httpx.post(url + "/v1/completions", json={"prompt": "x", "max_tokens": 2, **more}, timeout=60 * SLOW,
                       headers={"Authorization": f"Bearer {key}"})
        return r.status_code, r.json()["error"]["message"] if r.status_code != 200 else r.json()["model"]

    many = "(served: one, two, m0, m1, m2, m3 and 4 more)"
    assert ask("key-of-all-models") == (400, f'"model" is required {many}')
    assert ask("key-of-all-models", model="three") == (404, f'the model "three" does not exist {many}')
    assert ask("key-of-one-model") == (200, "two")  # the only one that it may use
    assert ask("key-of-one-model", model="one") == (404, 'the model "one" does not exist (served: two)')
    r = httpx.get(url + "/v1/models/nope", headers={"Authorization": "Bearer key-of-one-model"})
    assert r.json()["error"]["message"] == 'the model "nope" does not exist (served: two)'
    ready = httpx.get(url + "/ready").json()
    assert "models" not in ready and sum(ready["states"].values()) == 10
    assert d.stop() == 0


def test_ready_names_the_models(tiny):
    assert tiny.http.get("/ready").json() == {"status": "ready", "states": {"hot": 1}, "models": {"tiny": "hot"}}


@pytest.mark.parametrize("path,hint", [
    ("/chat/completions", "/v1/chat/completions"), ("/v1/chat/completion", "/v1/chat/completions"),
    ("/v1/v1/models", "/v1/models"), ("/model", None), ("/v2/things", None), ("/admin/stat", None), ("/x%22%0a\"", None),
])
def test_a_wrong_path_is_named_with_the_nearest(tiny, path, hint):
    r = tiny.http.get(path)
    message = r.json()["error"]["message"]
    assert r.status_code == 404 and r.json()["error"]["code"] == "unknown_url"
    shown = path.replace('"', "?") if '"' not in path else message[len("There is nothing at "):-1]
    assert message == f"There is nothing at {shown}" + (f"; did you mean {hint}?" if hint else "."), message


def test_a_long_path_is_cut_off(tiny):
    r = tiny.http.get("/" + "x" * 500)
    assert r.status_code == 404 and r.json()["error"]["message"] == f"There is nothing at /{'x' * 62}."


def test_the_root_says_what_this_is(tiny):
    r = tiny.http.get("/")
    assert r.status_code == 200 and r.headers["content-type"] == "text/plain; charset=utf-8"
    assert r.text.startswith("inferd ") and "/v1/chat/completions" in r.text and "/v1/models" in r.text
    assert tiny.http.head("/").status_code == 200 and tiny.http.post("/").status_code == 405


def test_refusals_say_what_to_change(tiny):
    body = b'{"model": "tiny", "prompt": "x", "max_tokens": 2}'
    for headers, status, words in (
            ({"content-type": "text/plain"}, 415, "send Content-Type: application/json"),
            ({"content-type": "application/json", "content-encoding": "gzip"}, 415, "send them uncompressed"),
            ({"host": "example.com"}, 403, "give the server keys"),
            ({"origin": "https://example.com"}, 403, "give the server keys")):
        r = tiny.http.post("/v1/completions", content=body, headers=headers)
        assert r.status_code == status and words in r.json()["error"]["message"], r.text


def test_a_reload_reads_the_keys_of_the_command_line_again(launch, tiny_model, tmp_path):
    """A configuration with tenants beside them was refused with an empty sentence."""
    keys, socket = tmp_path / "keys", tmp_path / "admin.sock"
    keys.write_text("the-first-key\n")
    keys.chmod(0o600)
    c = {**model_config(tiny_model, "m", memory="64MiB"), "admin": {"listen": f"unix:{socket}"}}
    d = launch(c, args=["--api-key-file", str(keys)])

    def status(key):
        return httpx.get(d.url + "/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    assert (status("the-first-key"), status("the-second-key")) == (200, 401)
    keys.write_text("the-second-key\n")
    admin = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://localhost", timeout=60 * SLOW)
    same = {"listen": "127.0.0.1:0", **c}
    assert admin.put("/admin/config", json=same).status_code == 200
    assert (status("the-first-key"), status("the-second-key")) == (401, 200)
    r = admin.put("/admin/config", json={**same, "tenants": [{"name": "t", "keys": ["the-third-key"]}]})
    assert r.status_code == 409 and r.json()["error"]["problems"] == [
        "--api-key-file: the configuration has tenants, each with keys of its own"], r.text
    assert status("the-second-key") == 200
    assert d.stop() == 0


# -- sampling that the model's authors recommend -----------------------------------------------------

def sampling_of(url):
    return {k: (v["value"], v["from"]) for k, v in httpx.get(url + "/v1/models").json()["data"][0]["sampling"].items()}


def texts(url, n=6, **fields):
    """What n requests without a seed answer."""
    return {httpx.post(url + "/v1/completions", json={"prompt": "a", "max_tokens": 12, **fields}).json()
            ["choices"][0]["text"] for _ in range(n)}


def test_a_file_beside_the_model_recommends_sampling(tiny_model, tmp_path):
    model = tmp_path / "m.gguf"
    model.symlink_to(tiny_model)
    with serving(model, "--memory", "64MiB", "--listen", "0") as (url, _):
        assert set(sampling_of(url).values()) == {(1, "default"), (0, "default")}
        assert len(texts(url)) > 1
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.00000001, "top_k": 20}')
    with serving(model, "--memory", "64MiB", "--listen", "0") as (url, _):
        found = sampling_of(url)
        assert found["temperature"][1] == "generation_config.json"
        assert found["top_k"] == (20, "generation_config.json") and found["top_p"] == (1, "default")
        assert len(texts(url)) == 1  # greedy
        assert len(texts(url, temperature=1)) > 1  # a request's own field wins


def test_the_configuration_wins_over_the_file_and_changes_live(tiny_model, tmp_path):
    model = tmp_path / "m.gguf"
    model.symlink_to(tiny_model)
    (tmp_path / "m.generation_config.json").write_text('{"temperature": 2, "top_p": 0.5}')
    config = {"listen": "127.0.0.1:0", "devices": [{"kind": "cpu", "memory": "64MiB"}],
              "models": [{"name": "m", "path": str(model), "sampling": {"temperature": 0}}],
              "admin": {"listen": f"unix:{tmp_path}/admin.sock"}}
    (tmp_path / "c.json").write_text(json.dumps(config))
    with serving(tmp_path / "c.json") as (url, _):
        found = sampling_of(url)
        assert found["temperature"] == (0, "configuration") and found["top_p"] == (0.5, "generation_config.json")
        assert len(texts(url)) == 1
        r = inferd("ctl", "--socket", f"{tmp_path}/admin.sock", "set", "model", "m", "sampling.temperature=1.5",
                   "sampling.top_p=1")
        assert r.returncode == 0, r.stderr
        assert sampling_of(url)["temperature"] == (1.5, "configuration")
        assert len(texts(url)) > 1


def test_run_uses_the_recommendation_too(tiny_model, tmp_path):
    model = tmp_path / "m.gguf"
    model.symlink_to(tiny_model)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0}')

    def answers(*words):
        return {inferd("run", model, "--memory", "64MiB", "--max-tokens", 12, *words, "hello").stdout for _ in range(4)}
    assert len(answers()) == 1 and len(answers("--temperature", "2")) > 1


def test_a_wrong_recommendation_is_told(tiny_model, tmp_path):
    model = tmp_path / "m.gguf"
    model.symlink_to(tiny_model)
    (tmp_path / "generation_config.json").write_text('{"temperature": 3}')
    r = inferd("serve", model, "--memory", "64MiB", "--listen", "0")
    assert r.returncode == 2 and "generation_config.json: temperature is 3; expected a number from 0 to 2" in r.stderr


def test_the_default_models_first_answer_is_right(real_model, tmp_path):
    """What the README asks first, with the sampling that scripts/fetch-model writes."""
    assert Path(real_model.replace(".gguf", ".generation_config.json")).is_file()
    with serving(real_model, "--name", "smollm2", "--listen", "0") as (url, _):
        assert sampling_of(url)["temperature"] == (0.2, "generation_config.json")

        def ask(seed):
            body = {"model": "smollm2", "seed": seed, "max_tokens": 60,
                    "messages": [{"role": "user", "content": "What is the capital of France?"}]}
            r = httpx.post(url + "/v1/chat/completions", json=body, timeout=120 * SLOW)
            return r.json()["choices"][0]["message"]["content"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            named = sum("Paris" in text for text in pool.map(ask, range(1, 51)))
        assert named >= 30, named


# -- web pages ---------------------------------------------------------------------------------------

LOCAL, OTHER, EVIL = "http://localhost:5173", "https://chat.example", "https://evil.example"


def preflight(url, origin, path="/v1/chat/completions", **headers):
    return httpx.options(url + path, headers={"Origin": origin, "Access-Control-Request-Method": "POST",
                                              "Access-Control-Request-Headers": "authorization,content-type", **headers})


def may_read(r, origin):
    """Would a browser let a page of this origin read the answer?"""
    return r.headers.get("access-control-allow-origin") == origin and r.headers.get("vary") == "Origin"


def test_pages_of_this_machine_may_use_a_server_without_keys(tiny_model):
    with serving(tiny_model, "--memory", "64MiB", "--listen", "0") as (url, _):
        r = preflight(url, LOCAL)
        assert r.status_code == 204 and may_read(r, LOCAL) and r.content == b""
        assert r.headers["access-control-allow-methods"] == "POST"
        assert r.headers["access-control-allow-headers"].startswith("Authorization, Content-Type")
        body = {"prompt": "x", "max_tokens": 2}
        r = httpx.post(url + "/v1/completions", json=body, headers={"Origin": LOCAL})
        assert r.status_code == 200 and may_read(r, LOCAL)
        assert r.headers["access-control-expose-headers"] == "*"
        with httpx.stream("POST", url + "/v1/completions", json={**body, "stream": True},
                          headers={"Origin": LOCAL}) as r:
            assert r.status_code == 200 and may_read(r, LOCAL) and b"[DONE]" in r.read()
        r = httpx.post(url + "/v1/completions", json={"prompt": 3}, headers={"Origin": LOCAL})
        assert r.status_code == 400 and may_read(r, LOCAL)  # an error, too
        assert preflight(url, EVIL).status_code == 403 and not may_read(preflight(url, EVIL), EVIL)
        assert preflight(url, LOCAL, "/v1/nothing").status_code == 404
        assert "access-control-allow-origin" not in httpx.get(url + "/v1/models").headers
        assert httpx.options(url + "/v1/models").status_code == 405  # not from a page


def test_the_operator_names_other_pages(tiny_model, tmp_path):
    path = tmp_path / "c.json"
    config = {"listen": "127.0.0.1:0", "devices": [{"kind": "cpu", "memory": "64MiB"}],
              "models": [{"name": "m", "path": tiny_model}], "cors": [OTHER],
              "tenants": [{"name": "t", "keys": [KEY]}],
              "admin": {"listen": f"unix:{tmp_path}/admin.sock"}}
    path.write_text(json.dumps(config))

    def put(cors):
        path.write_text(json.dumps({**config, "cors": cors}))
        r = inferd("ctl", "--socket", f"{tmp_path}/admin.sock", "config", "put", path)
        assert r.returncode == 0, r.stderr
    with serving(path) as (url, _):
        assert preflight(url, OTHER).status_code == 204  # before the key is checked
        r = httpx.get(url + "/v1/models", headers={"Origin": OTHER})
        assert r.status_code == 401 and may_read(r, OTHER)  # a page sees why
        key = {"Authorization": f"Bearer {KEY}"}
        r = httpx.get(url + "/v1/models", headers={"Origin": OTHER, **key})
        assert r.status_code == 200 and may_read(r, OTHER)
        assert may_read(preflight(url, LOCAL), LOCAL)
        r = preflight(url, EVIL)
        assert r.status_code == 403 and "cors" in r.json()["error"]["message"]
        r = httpx.get(url + "/v1/models", headers={"Origin": EVIL, **key})
        assert r.status_code == 200 and not may_read(r, EVIL)  # no browser hands it over
        put([])
        assert preflight(url, LOCAL).status_code == 403 and preflight(url, OTHER).status_code == 403
        put(["*"])
        assert may_read(preflight(url, EVIL), EVIL)


@pytest.mark.parametrize("cors,sentence", [
    (["*"], 'cors[0]: any web page could use this server: "*" needs keys'),
    (["chat.example"], "cors[0]: is not an origin"),
    (["https://a.example", "https://chat.example/"], "cors[1]: is not an origin"),
    ("*", "cors: expected a list of texts, found text"),
])
def test_wrong_origins_are_told(tiny_model, tmp_path, cors, sentence):
    (tmp_path / "c.json").write_text(json.dumps({"models": [{"name": "m", "path": tiny_model}], "cors": cors}))
    r = inferd("check", tmp_path / "c.json")
    assert r.returncode == 2 and sentence in r.stderr + r.stdout, r


def test_a_named_page_may_use_a_server_without_keys(tiny_model, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(
        {"listen": "127.0.0.1:0", "devices": [{"kind": "cpu", "memory": "64MiB"}],
         "models": [{"name": "m", "path": tiny_model}], "cors": [OTHER]}))
    with serving(tmp_path / "c.json") as (url, _):
        r = httpx.get(url + "/v1/models", headers={"Origin": OTHER})
        assert r.status_code == 200 and may_read(r, OTHER)
        assert httpx.get(url + "/v1/models", headers={"Origin": EVIL}).status_code == 403
        assert httpx.get(url + "/v1/models", headers={"Origin": OTHER, "Host": "evil.example"}).status_code == 403


# -- the admin socket --------------------------------------------------------------------------------

def test_ctl_finds_the_daemon_by_itself(tiny_model, tmp_path):
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    r = inferd("ctl", "state", env=runtime)
    assert r.returncode == 3 and r.stderr.count("\n") == 1
    assert f"{tmp_path}/inferd/admin.sock: No such file" in r.stderr and "/run/inferd/admin.sock" in r.stderr
    with serving(tiny_model, "--memory", "64MiB", "--listen", "0", env=runtime):
        socket = tmp_path / "inferd" / "admin.sock"
        assert socket.stat().st_mode & 0o777 == 0o600 and socket.parent.stat().st_mode & 0o777 == 0o700
        r = inferd("ctl", "state", env=runtime)
        assert r.returncode == 0 and "tiny" in r.stdout, r
        with serving(tiny_model, "--memory", "64MiB", "--listen", "0", env=runtime):  # serves without one
            assert inferd("ctl", "state", env=runtime).returncode == 0
        assert socket.exists()  # of the first one
    assert not socket.exists()


def test_no_admin_socket_is_a_setting(tiny_model, tmp_path):
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    (tmp_path / "c.json").write_text(json.dumps(
        {"listen": "127.0.0.1:0", "devices": [{"kind": "cpu", "memory": "64MiB"}], "admin": {"listen": "none"},
         "models": [{"name": "m", "path": tiny_model}]}))
    with serving(tmp_path / "c.json", env=runtime):
        assert not (tmp_path / "inferd").exists()
    # A folder that cannot be made is no reason not to serve.
    p = subprocess.Popen([BUILD / "inferd", "serve", tiny_model, "--memory", "64MiB", "--listen", "0"],
                         env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "c.json")}, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    assert "base_url" in p.stdout.readline()
    p.terminate()
    p.communicate(timeout=60 * SLOW)
    assert p.returncode == 0
