"""What tests of clients share: the daemon, and how the model writes a tool call."""

import json

TAIL = 200000  # bytes: Claude Code writes long messages behind that of the user
KEY = "sk-of-a-tenant-0001"
CALL = "<tool_call>\n{}\n</tool_call>"


def call(name, /, **arguments):
    """What the model writes to call a tool."""
    return CALL.format(json.dumps({"name": name, "arguments": arguments}))


class Scripts:
    """The daemon and its model m, with what conversations with tools need."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.v1 = daemon.url + "/v1"

    def __getattr__(self, name):
        return getattr(self.daemon, name)

    def loop(self, ask, calls, result, answer):
        """To a prompt that contains `ask` the model writes `calls`, and when the result is there, `answer`."""
        self.say([ask, "<tool_response>", result], answer, tail=TAIL)
        self.say(ask, calls, tail=TAIL)
