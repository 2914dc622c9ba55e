"""Real clients against the daemon of tests/e2e/scripted.py: a script says what the model writes; the client runs the
tools and sends their results.  scripts/client-check runs all of this.

    tests/clients/GROUP/requirements.txt   the packages of one virtual environment, pinned
    tests/clients/GROUP/test_*.py          one file for each client; the docstring of a test says what works, or its name does

A client that cannot work has an `xfail` with the reason, which the table of scripts/client-check shows."""

import json
import os
import subprocess

# Before a client is imported: none asks the network for prices, models, tokenizers or a newer version of itself.
os.environ.update({
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1", "HAYSTACK_TELEMETRY_ENABLED": "False", "AIDER_ANALYTICS": "false",
    "LANGSMITH_TRACING": "false", "ANONYMIZED_TELEMETRY": "False", "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"})

import pytest
import scripted
from talk import KEY, Scripts
from conftest import launch, tiny, tiny_model  # noqa: F401: fixtures

SECONDS = 180  # for a client that is a program


def scripts(launch, tmp_path_factory, **more):
    def config(path):
        return scripted.config_of(path, **more) | {"models": [{"name": "m", "path": str(path), "aliases": ["gpt-5.5"]}]}

    return Scripts(scripted.start(launch, tmp_path_factory.mktemp("scripted"), scripted.HERMES, config))


@pytest.fixture(scope="module")
def s(launch, tmp_path_factory):
    """One for each file: their prompts are alike."""
    return scripts(launch, tmp_path_factory)


@pytest.fixture(scope="module")
def kept(launch, tmp_path_factory):
    """One that keeps responses."""
    return scripts(launch, tmp_path_factory, state_dir=str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def keyed(launch, tmp_path_factory):
    """One that wants KEY."""
    return scripts(launch, tmp_path_factory, tenants=[{"name": "t", "keys": [KEY]}])


@pytest.fixture
def work(tmp_path):
    """A folder with a file that has a typo."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello wrld\n")
    return folder


@pytest.fixture
def program(tmp_path):
    """A function that runs a client that is a program, with a home folder of its own, and returns what it printed."""
    home = tmp_path / "home"
    home.mkdir()

    def run(command, cwd, **env):
        done = subprocess.run(command, cwd=cwd, env={**os.environ, "HOME": str(home), **env}, text=True, timeout=SECONDS,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    run.home = home
    return run


# ---- a model that writes random bytes (thing.py) ----

@pytest.fixture(scope="module")
def closing(tiny):
    """A bias that lets an object of any content end."""
    ids = lambda text: tiny.http.post("/tokenize", json={"model": "tiny", "prompt": text,
                                                         "add_special_tokens": False}).json()["tokens"]
    return {str(i): 12 for text in ('"', "}", "]") for i in ids(text)}


@pytest.fixture
def asked(tiny):
    """What the daemon counted as answered, and that it was all."""
    before = tiny.metric("inferd_requests_total")
    yield
    assert tiny.metric("inferd_requests_total") > before


@pytest.fixture(scope="module")
def tokenizer(tiny_model, tmp_path_factory):
    """A folder with the vocabulary of the tiny model, as transformers reads it."""
    import gguf
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    folder, fields = tmp_path_factory.mktemp("tokenizer"), gguf.GGUFReader(tiny_model).fields
    words = fields["tokenizer.ggml.tokens"].contents()
    pairs = fields["tokenizer.ggml.merges"].contents() if "tokenizer.ggml.merges" in fields else []
    of = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [tuple(p.split(" ")) for p in pairs]))
    of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of.decoder = decoders.ByteLevel()
    of.save(str(folder / "tokenizer.json"))
    end = words[fields["tokenizer.ggml.eos_token_id"].contents()]
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}))
    return str(folder)


# ---- lines for the table of scripts/client-check ----

def pytest_runtest_makereport(item, call):
    if call.when == "call" or (call.when == "setup" and call.excinfo):
        what = item.function.__doc__ or item.originalname.removeprefix("test_").replace("_", " ")
        item.user_properties.append(("what", what.strip().splitlines()[0].rstrip(".")))


def pytest_runtest_logreport(report):
    if "INFERD_CLIENTS_REPORT" not in os.environ or (report.when != "call" and report.passed):
        return
    if report.when == "teardown" and not report.failed:
        return
    line = {"test": report.nodeid, "outcome": report.outcome, "why": getattr(report, "wasxfail", ""), "s": report.duration,
            "what": dict(report.user_properties).get("what", "")}
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        line["why"] = (crash.message if crash else str(report.longrepr)).strip().splitlines()[0]
    with open(os.environ["INFERD_CLIENTS_REPORT"], "a") as f:
        f.write(json.dumps(line) + "\n")
