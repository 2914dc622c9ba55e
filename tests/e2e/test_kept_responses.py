"""Kept responses when the machine fails: no file to open, a full disk, a shutdown; what was kept comes back whole or not at all."""

import concurrent.futures
import ctypes
import json
import os
import resource
import signal
import time

import pytest
import scripted

from conftest import SLOW


def keeping(launch, tmp_path, **limits):
    def config(model):
        return scripted.config_of(model, state_dir=str(tmp_path / "state"), limits=limits)
    s = scripted.start(launch, tmp_path, config=config)
    s.say("go on", "And on.")
    s.say("begin", "Begun.")
    return s


def post(s, **body):
    return s.http.post("/v1/responses", json={"model": "m", **body})


def large(n_bytes):
    """Begins a conversation with an item that is kept, and not told to the model."""
    return [{"type": "web_search_call", "id": "ws_1", "padding": "x" * n_bytes}, {"role": "user", "content": "begin"}]


def kept(s, id, method="GET"):
    return s.http.request(method, f"/v1/responses/{id}")


def wait_for(there):
    end = time.monotonic() + 20 * SLOW
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def files(tmp_path):
    return sorted(f.name for f in (tmp_path / "state/responses").iterdir())


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return [{"type": "function", "name": "f", "parameters": schema}]


def test_a_response_stays_while_no_file_can_be_opened(launch, tmp_path):
    """Each failed read counted as damage: a GET without a free descriptor deleted the response."""
    s = keeping(launch, tmp_path)
    first = post(s, input="begin").json()
    wait_for(lambda: files(tmp_path) == [first["id"] + ".json"])
    pid = s.process.pid
    used = {int(n) for n in os.listdir(f"/proc/{pid}/fd")}
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(4096)) - used), before[1]))
    for answer in (kept(s, first["id"]), post(s, input="go on", previous_response_id=first["id"])):
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1", answer.text
        error = answer.json()["error"]
        assert error["code"] == "server_overloaded" and "later" in error["message"] and "open files" not in error["message"]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert kept(s, first["id"]).json() == first
    assert post(s, input="go on", previous_response_id=first["id"]).status_code == 200
    assert "event=response_unread" in s.stderr() and "Too many open files" in s.stderr()
    assert s.stop() == 0


def test_tools_as_deep_as_a_request_may_have_them(launch, tmp_path):
    """They are one level deeper in the response, which was kept and then "nested too deeply"."""
    s = keeping(launch, tmp_path)
    statuses = []
    for levels in range(24, 33):
        answer = post(s, input="begin", tools=deep(levels), tool_choice="none")
        statuses.append(answer.status_code)
        if answer.status_code != 200:
            continue
        id = answer.json()["id"]
        for _ in range(2):  # from the queue, and from the disk
            assert kept(s, id).json() == answer.json()
            assert post(s, input="go on", previous_response_id=id).status_code == 200
            wait_for(lambda: id + ".json" in files(tmp_path))
    assert statuses[0] == 200 and statuses[-1] == 400, statuses
    assert s.stop() == 0


def test_a_conversation_with_more_values_than_a_request_may_have(launch, tmp_path):
    """Each request was within the limit; their conversation was kept, and then had "too many values"."""
    s = keeping(launch, tmp_path)
    many = [{"type": "web_search_call", "id": "ws_1", "padding": [0] * 600000}]
    first = post(s, input=many + [{"role": "user", "content": "begin"}]).json()
    second = post(s, input=many + [{"role": "user", "content": "go on"}], previous_response_id=first["id"]).json()
    third = post(s, input="go on", previous_response_id=second["id"])
    assert third.status_code == 200 and third.json()["output"][0]["content"][0]["text"] == "And on."
    assert kept(s, second["id"]).json() == second
    assert s.stop() == 0


def test_a_shutdown_keeps_what_was_answered(launch, tmp_path):
    s = keeping(launch, tmp_path)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(lambda: post(s, input=large(20000), max_output_tokens=4)) for _ in range(40)]
        wait_for(lambda: sum(a.done() for a in answers) >= 10)
        s.process.send_signal(signal.SIGTERM)
        done = [a.result() for a in answers if a.exception() is None]
    assert s.stop() == 0
    ids = [a.json()["id"] for a in done if a.status_code == 200]
    assert len(ids) >= 10
    s = keeping(launch, tmp_path)
    assert {f for f in files(tmp_path)} >= {id + ".json" for id in ids} and ".new" not in files(tmp_path)
    for id in ids:
        assert kept(s, id).json()["id"] == id
    assert s.stop() == 0


def test_a_reload_of_the_bounds_waits_for_a_restart(launch, tmp_path):
    """Requests go on meanwhile, and what was kept stays until then."""
    s = keeping(launch, tmp_path)
    config = json.loads(s.config_path.read_text())
    ids = [post(s, input="begin").json()["id"] for _ in range(4)]
    for limits in ({"responses_max": 2, "responses_bytes_max": "1MiB"}, {"responses_max": 0}):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(lambda: post(s, input="begin")) for _ in range(8)]
            s.config_path.write_text(json.dumps({**config, "limits": limits}))
            s.process.send_signal(signal.SIGHUP)
            ids += [a.result().json()["id"] for a in answers]
        wait_for(lambda: s.stderr().count("responses_max") > 0)
        assert all(kept(s, id).status_code == 200 for id in ids)
    assert s.stop() == 0


def test_a_kill_leaves_whole_files(launch, tmp_path):
    s = keeping(launch, tmp_path)
    ids = [post(s, input=large(20000)).json()["id"] for _ in range(5)]
    s.process.kill()
    s.process.wait()
    s = keeping(launch, tmp_path)
    for id in ids:
        answer = kept(s, id)
        assert answer.status_code == 404 or answer.json()["id"] == id
    assert "damaged" not in s.stderr() and ".new" not in files(tmp_path)
    assert s.stop() == 0


def test_a_full_disk(launch, tmp_path):
    """The answer comes, the log says what was not kept, what was kept before is there, and no part of a file stays."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tmp_path / "state/responses"
    folder.mkdir(parents=True)
    if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=64k") != 0:
        pytest.skip(f"no file system can be mounted: {os.strerror(ctypes.get_errno())}")
    try:
        s = keeping(launch, tmp_path)
        first = post(s, input="begin").json()
        wait_for(lambda: first["id"] + ".json" in files(tmp_path))
        ids = [post(s, input=large(15000), max_output_tokens=4).json()["id"] for _ in range(8)]
        wait_for(lambda: "No space left on device" in s.stderr())
        wait_for(lambda: kept(s, ids[-1]).status_code == 404)
        assert kept(s, first["id"]).json() == first and ".new" not in files(tmp_path)
        answers = [kept(s, id) for id in ids]
        assert {a.status_code for a in answers} == {200, 404}
        n = sum(a.status_code == 200 for a in answers)
        assert s.metric("inferd_responses_kept") == 1 + n and s.metric("inferd_responses_not_kept_total") == len(ids) - n
        assert 15000 * n < s.metric("inferd_responses_kept_bytes") < 16 * 4096
        assert kept(s, ids[0], "DELETE").status_code == 200
        wait_for(lambda: kept(s, post(s, input="begin").json()["id"]).status_code == 200)
        wait_for(lambda: "responses_kept_again" in s.stderr())
        assert s.stop() == 0
    finally:
        libc.umount2(bytes(folder), 2)
