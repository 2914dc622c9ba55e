"""aider: `aider --message`, which reads edits in the text of the answer; chat completions."""

import sys
from pathlib import Path

import pytest

PACKAGES = ["aider-chat"]

BLOCK = "hello.txt\n```\n<<<<<<< SEARCH\nhello wrld\n=======\nhello world\n>>>>>>> REPLACE\n```\n"
QUIET = ["--yes-always", "--no-git", "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings",
         "--no-analytics", "--map-tokens", "0", "--no-detect-urls"]
WHOLE = "hello.txt\n```\nhello world\n```\n"


SLOW = pytest.mark.slow  # each takes ten seconds to start


@pytest.mark.parametrize("edit_format, said, stream", [
    pytest.param("diff", BLOCK, "--stream", id="diff-stream"),
    pytest.param("diff", BLOCK, "--no-stream", id="diff", marks=SLOW),
    pytest.param("whole", WHOLE, "--stream", id="whole-stream", marks=SLOW),
    pytest.param("whole", WHOLE, "--no-stream", id="whole", marks=SLOW)])
def test_aider_edits_a_file(s, program, work, edit_format, said, stream):
    """it edits a file: formats diff and whole, with and without a stream"""
    task = f"Fix the typo by {edit_format}."
    s.say(task, "The typo is here.\n\n" + said, tail=20000)
    out = program([Path(sys.executable).with_name("aider"), "--model", "openai/m", "--openai-api-base", s.v1,
                   "--openai-api-key", "none", "--edit-format", edit_format, stream, *QUIET, "--message", task, "hello.txt"],
                  cwd=work)
    assert "Applied edit to hello.txt" in out
    assert (work / "hello.txt").read_text() == "hello world\n"
