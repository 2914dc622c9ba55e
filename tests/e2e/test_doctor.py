"""`inferd doctor` on this machine, and on configurations that cannot work on it."""

import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import BUILD, SLOW, model_config


def doctor(*args):
    return subprocess.run([BUILD / "inferd", "doctor", *args], capture_output=True, text=True, timeout=60 * SLOW)


def check(folder, config, *args):
    path = folder / "inferd.json"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    r = doctor("--config", path, "--json", *args)
    return r.returncode, {c["subject"]: c for c in json.loads(r.stdout)["checks"]}


def fine_config(folder, tiny_model, **more):
    return {**model_config(tiny_model), "listen": "127.0.0.1:0", "host_arena": 0,
            "admin": {"listen": f"unix:{folder}/admin.sock"}, **more}


def test_this_machine(tmp_path, tiny_model):
    r = doctor()
    assert r.returncode == 0 and r.stderr == "", r.stdout  # the machine runs these tests, so it has no problem
    lines = r.stdout.splitlines()
    assert lines[-1].endswith("0 problems") and all(len(x) <= 100 for x in lines)
    words = [x.split()[0] for x in lines[:-1] if not x.startswith(" ")]
    assert set(words) <= {"ok", "warning"}
    assert doctor("--strict").returncode == (1 if "warning" in words else 0)
    said = json.loads(doctor("--json").stdout)
    assert said["status"] in ("ok", "warning") and len(said["checks"]) == len(words)
    status, checks = check(tmp_path, fine_config(tmp_path, tiny_model))
    assert status == 0 and checks["ports.listen"]["level"] == checks["files.models"]["level"] == "ok", checks
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inferd.json"]  # it changes nothing


@pytest.fixture
def open_folder():
    """Other users may enter it, unlike tmp_path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_bad_cases(open_folder, tiny_model):
    tmp_path = open_folder
    keys = tmp_path / "shop.keys"
    keys.write_text("sk-shop-0123\n")
    keys.chmod(0o644)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        config = fine_config(tmp_path, tiny_model, listen=address, state_dir="no/state",
                             tenants=[{"name": "shop", "key_file": "shop.keys"}])
        config["models"].append({"name": "gone", "path": "gone.gguf"})
        config["devices"][0]["memory"] = "60TiB"
        status, checks = check(tmp_path, config)
    assert status == 1
    problems = {s for s, c in checks.items() if c["level"] == "problem"}
    assert problems == {"ports.listen", "files.keys", "files.models", "files.state_dir", "memory.amount"}, checks
    assert all(checks[s]["advice"] for s in problems)
    assert checks["ports.listen"]["figure"].startswith(f"{address} is used by py")
    assert "every user may read it (mode 0644)" in checks["files.keys"]["figure"]
    assert "gone.gguf: No such file" in checks["files.models"]["figure"]
    tmp_path.chmod(0o750)
    assert check(tmp_path, config)[1]["files.keys"]["level"] == "ok"


def test_a_daemon_that_answers_is_no_problem(tmp_path, tiny_model, launch):
    config = fine_config(tmp_path, tiny_model)
    d = launch(config)
    config["listen"] = d.url.removeprefix("http://").split("/")[0]
    status, checks = check(tmp_path, config)
    assert status == 0, checks
    assert f"by inferd (pid {d.process.pid}): an inferd that answers /health" in checks["ports.listen"]["figure"]
    assert checks["ports.admin"]["figure"].endswith("an inferd answers there")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask for another user")
def test_rights_of_another_user(open_folder, tiny_model):
    """Root may read every file, and the service may not."""
    model = open_folder / "m.gguf"
    model.write_bytes(open(tiny_model, "rb").read())
    model.chmod(0o600)
    config = fine_config(open_folder, model)
    status, checks = check(open_folder, config, "--user", "root")
    assert status == 0 and checks["files.models"]["level"] == "ok", checks
    status, checks = check(open_folder, config, "--user", "nobody")
    assert status == 1 and checks["rights.user"]["figure"] == "nobody"
    assert "may not be read" in checks["files.models"]["figure"]
    (open_folder / "inferd.json").chmod(0o600)
    r = doctor("--config", open_folder / "inferd.json", "--user", "nobody")
    assert r.returncode == 1 and "problem  configuration      " in r.stdout, r.stdout
    r = doctor("--user", "no-such-user-here")
    assert r.returncode == 2 and "--user: no such user" in r.stderr


def test_wrong_configurations_and_options(tmp_path, tiny_model):
    status, checks = check(tmp_path, {**fine_config(tmp_path, tiny_model), "listn": "x"})
    assert status == 2 and "listn" in checks["configuration"]["figure"]
    assert checks["cpu.cores"]  # the machine is checked all the same
    assert doctor("--config", tmp_path / "none.json").returncode == 2
    assert doctor("--nonsense").returncode == 2 and doctor("word").returncode == 2


def test_a_model_larger_than_its_device(tmp_path, tiny_model):
    """`inferd check` called it fine, and the daemon then failed."""
    large = tmp_path / "large.gguf"
    large.write_bytes(open(tiny_model, "rb").read())
    with open(large, "r+b") as f:
        f.truncate(300 << 20)
    status, checks = check(tmp_path, fine_config(tmp_path, str(large)))
    assert status == 0 and checks["configuration"]["level"] == "warning"
    assert "models[0].path: the file has 300MiB, and the device has 256MiB" in checks["configuration"]["advice"]
    assert check(tmp_path, fine_config(tmp_path, str(large)), "--strict")[0] == 1


def test_a_missing_state_folder_is_made_for_kv_disk(tmp_path, tiny_model, launch):
    """kv_disk needed the folder before quotas made it: "making the folder state/kv: No such file"."""
    d = launch(fine_config(tmp_path, tiny_model, state_dir=str(tmp_path / "state"), kv_disk="64MiB"))
    assert (tmp_path / "state" / "kv").is_dir()
    assert d.stop() == 0
