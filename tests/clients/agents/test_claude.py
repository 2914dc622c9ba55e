"""Claude Code: `claude -p`, as claude-agent-sdk bundles it, and the package; Messages."""

import asyncio
import json
from pathlib import Path

import claude_agent_sdk as sdk
import pytest
from talk import KEY, TAIL, call

PACKAGES = ["claude-agent-sdk"]

CLAUDE = Path(sdk.__file__).parent / "_bundled/claude"
FIX = call("Bash", command="sed -i s/wrld/world/ hello.txt", description="Fix the typo")


def environment(s, home):
    return {"HOME": str(home), "ANTHROPIC_BASE_URL": s.url, "ANTHROPIC_API_KEY": "none", "IS_SANDBOX": "1",
            "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


@pytest.fixture
def claude(s, program, work):
    """A function that gives `claude -p` a task; it works in the folder `work`."""
    def run(task, *more):
        return program([CLAUDE, "-p", "--dangerously-skip-permissions", "--model", "m", *more, task], cwd=work,
                       **environment(s, program.home))

    return run


def test_claude_edits_a_file(s, claude, work):
    """`claude -p` runs a command that edits a file, and gives the answer"""
    s.loop("typo in hello.txt", FIX, "", "The typo is gone.")
    assert claude("Fix the typo in hello.txt").strip() == "The typo is gone."
    assert (work / "hello.txt").read_text() == "hello world\n"


def test_claude_reads_and_edits(s, claude, work):
    """the tools Read and Edit, two calls in a row"""
    path = str(work / "hello.txt")
    s.say(["Read and edit", "has been updated"], "It is edited.", tail=TAIL)
    s.loop("Read and edit", call("Read", file_path=path), "hello wrld",
           call("Edit", file_path=path, old_string="wrld", new_string="Claude"))
    assert claude("Read and edit hello.txt").strip() == "It is edited."
    assert (work / "hello.txt").read_text() == "hello Claude\n"


def test_claude_streams_json(s, claude):
    """`--output-format stream-json` with partial messages"""
    s.say("Say a few words", "These are a few words.", tail=TAIL)
    lines = claude("Say a few words", "--output-format", "stream-json", "--verbose", "--include-partial-messages").splitlines()
    events = [json.loads(line) for line in lines]
    deltas = [e["event"]["delta"]["text"] for e in events if e["type"] == "stream_event"
              and e["event"]["type"] == "content_block_delta"]
    assert "".join(deltas) == "These are a few words." and len(deltas) > 2
    assert events[-1]["type"] == "result" and events[-1]["usage"]["output_tokens"] > 3


def test_claude_json_schema(s, claude):
    """`--json-schema`: the answer is structured, through a tool"""
    schema = json.dumps({"type": "object", "properties": {"typos": {"type": "integer"}}, "required": ["typos"]})
    s.loop("Count the typos", call("StructuredOutput", typos=1), "", "Done.")
    said = json.loads(claude("Count the typos", "--output-format", "json", "--json-schema", schema))
    assert said["structured_output"] == {"typos": 1}


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_claude_with_a_key(keyed, program, work, variable):
    """a key, as x-api-key or as a bearer's"""
    keyed.say("Say hello", "Hello there.", tail=TAIL)
    env = environment(keyed, program.home)
    del env["ANTHROPIC_API_KEY"]
    assert program([CLAUDE, "-p", "--model", "m", "Say hello"], work, **env, **{
        "ANTHROPIC_API_KEY": "", variable: KEY}).strip() == "Hello there."


@sdk.tool("measure", "Measures a thing", {"thing": str})
async def measure(args):
    return {"content": [{"type": "text", "text": args["thing"] + " is 7 m long"}]}


def query(s, work, home, prompt, **env):
    """The last message of a query with the tool."""
    async def run():
        options = sdk.ClaudeAgentOptions(
            model="m", cwd=work, env=environment(s, home) | env, cli_path=CLAUDE, allowed_tools=["mcp__tools__measure"],
            mcp_servers={"tools": sdk.create_sdk_mcp_server("tools", tools=[measure])})
        return [m async for m in sdk.query(prompt=prompt, options=options)][-1]

    return asyncio.run(run())


def test_the_package_with_a_tool_of_its_own(s, work, tmp_path):
    """claude-agent-sdk: `query` with a Python function as a tool"""
    s.loop("How long is the boat?", call("mcp__tools__measure", thing="boat"), "boat is 7 m long", "Seven metres.")
    last = query(s, work, tmp_path, "How long is the boat?", ENABLE_TOOL_SEARCH="false")
    assert last.result == "Seven metres." and not last.is_error


def test_a_tool_that_is_found_by_search(s, work, tmp_path):
    """claude-agent-sdk: the model finds a deferred tool with ToolSearch, and calls it"""
    s.say(["How long is the ship?", "ship is 7 m long"], "It is short.", tail=TAIL)
    s.loop("How long is the ship?", call("ToolSearch", query="select:mcp__tools__measure", max_results=1), "",
           call("mcp__tools__measure", thing="ship"))
    last = query(s, work, tmp_path, "How long is the ship?", ENABLE_TOOL_SEARCH="true")
    assert last.result == "It is short." and not last.is_error
