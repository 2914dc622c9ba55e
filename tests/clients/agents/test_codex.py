"""Codex: `codex exec`, the Responses API."""

import json

import codex_cli_bin
import pytest
from talk import KEY, TAIL, call

PACKAGES = ["openai-codex-cli-bin"]

TASK = "Fix the typo in hello.txt, please."
CALL = call("exec_command", cmd="sed -i s/wrld/world/ hello.txt")


def configure(s, home, more=""):
    (home / "config.toml").write_text(f"""
model = "m"
model_provider = "inferd"
model_context_window = 131072
[model_providers.inferd]
name = "inferd"
base_url = "{s.v1}"
wire_api = "responses"
{more}
""")


@pytest.fixture
def codex(s, program, work):
    """A function that gives Codex a task; it works in the folder `work`."""
    configure(s, program.home)

    def run(task, *more):
        # It runs what the script of the test says, and its sandbox needs rights that a container may not have.
        return program([codex_cli_bin.bundled_codex_path(), "exec", "--skip-git-repo-check",
                        "--dangerously-bypass-approvals-and-sandbox", "-C", work, *more, task],
                       cwd=work, CODEX_HOME=str(program.home))

    return run


def test_codex_edits_a_file(s, codex, work):
    """`codex exec` runs a command that edits a file, and gives the answer"""
    s.loop(TASK, CALL, "Process exited with code 0", "The typo is gone.")
    assert "The typo is gone." in codex(TASK)
    assert (work / "hello.txt").read_text() == "hello world\n"


def test_codex_applies_a_patch(s, codex, work):
    """its own apply_patch edits a file"""
    patch = "*** Begin Patch\n*** Update File: hello.txt\n@@\n-hello wrld\n+hello patch\n*** End Patch\n"
    s.loop("Patch hello.txt.", call("exec_command", cmd=f"apply_patch <<'EOF'\n{patch}EOF\n"), "Success", "It is patched.")
    assert "It is patched." in codex("Patch hello.txt.")
    assert (work / "hello.txt").read_text() == "hello patch\n"


def test_codex_patches_with_a_custom_tool(s, codex, work):
    """its tool apply_patch with a text as input: for models that it knows by name"""
    patch = "*** Begin Patch\n*** Update File: hello.txt\n@@\n-hello wrld\n+hello custom\n*** End Patch\n"
    s.loop("Patch it as text.", call("apply_patch", input=patch), "Success", "It is patched.")
    assert "It is patched." in codex("Patch it as text.", "-m", "gpt-5.5")
    assert (work / "hello.txt").read_text() == "hello custom\n"


def test_codex_output_schema(s, codex, tmp_path):
    """`--output-schema`: the last answer follows a JSON schema"""
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"typos": {"type": "integer"}}, "required": ["typos"],
                                  "additionalProperties": False}))
    s.say("Count the typos.", '{"typos": 1}')
    assert json.loads(codex("Count the typos.", "--output-schema", schema).strip()) == {"typos": 1}


def test_codex_resumes(s, codex):
    """`codex exec resume --last` goes on with a session"""
    s.say(["Remember seven.", "And which number?"], "It was seven.")
    s.say("Remember seven.", "Noted.")
    codex("Remember seven.")
    assert "It was seven." in codex("And which number?", "resume", "--last")


def test_codex_calls_a_tool_of_a_namespace(s, codex):
    """a tool of a namespace is called, here one that starts another agent"""
    s.loop("Split the work.", call("multi_agent_v1__spawn_agent", message="Do the half of it."), "agent_id", "It is split.")
    s.say("Do the half of it.", "Half done.")
    assert "It is split." in codex("Split the work.")


def test_codex_with_a_key(keyed, program, work):
    """a key, in the variable that `env_key` names"""
    keyed.say("Say hello.", "Hello there.", tail=TAIL)
    configure(keyed, program.home, 'env_key = "INFERD_KEY"')
    said = program([codex_cli_bin.bundled_codex_path(), "exec", "--skip-git-repo-check", "Say hello."], work,
                   CODEX_HOME=str(program.home), INFERD_KEY=KEY)
    assert "Hello there." in said
