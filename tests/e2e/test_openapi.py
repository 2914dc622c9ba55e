"""GET /openapi.json and the daemon say the same: schemathesis makes requests from the document, valid ones and invalid
ones, and compares each answer with it; here is also what it does not do: whether answers have members that the document
does not know."""

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import httpx
import jsonschema_rs
import pytest
import scripted

from conftest import BUILD

KEY, ADMIN = "sk-tenant-openapi-0001", "sk-admin-openapi-00001"
SAY = [{"role": "user", "content": "hi"}]
# Of what is generated, these break rules between fields, which no schema has.  The others need links between operations.
LEFT_OUT = "positive_data_acceptance,use_after_free,ensure_resource_availability"


def config(**more):
    """Answers end soon: they have 256 tokens at most."""
    return {"devices": [{"kind": "cpu", "memory": "256MiB"}],
            "models": [{"name": "m", "path": "dummy:tiny?seed=1", "max_context": 256}],
            **more}


@pytest.fixture(scope="module")
def daemon(launch):
    return launch(config(tenants=[{"name": "t", "keys": [KEY]}], admin={"keys": [ADMIN]}), args=["--allow-dummy"])


@pytest.fixture(scope="module")
def document(daemon):
    return httpx.get(daemon.url + "/openapi.json").json()


def operations(document):
    return {(method, path): o for path, item in document["paths"].items() for method, o in item.items()}


def schema(document, name):
    return {"$ref": "#/components/schemas/" + name, "components": document["components"]}


# ---- the document ----

def test_it_is_read_without_a_key_and_is_json(daemon):
    answer = httpx.get(daemon.url + "/openapi.json")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    head = httpx.head(daemon.url + "/openapi.json")
    assert head.status_code == 200 and head.content == b""
    assert head.headers["content-length"] == str(len(answer.content))
    assert httpx.post(daemon.url + "/openapi.json").status_code == 405
    assert "/openapi.json" in httpx.get(daemon.url + "/").text
    assert "did you mean /openapi.json" in httpx.get(daemon.url + "/openapi.jsn").json()["error"]["message"]


def test_it_is_openapi_and_its_schemas_are_json_schema(document):
    import schemathesis

    assert document["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(copy.deepcopy(document)).validate()
    for name, one in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **one}), name
    assert document["info"]["version"] in subprocess.check_output([BUILD / "inferd", "--version"], text=True)


def test_bodies_have_the_numbers_of_the_reader(launch):
    d = launch(config(), args=["--allow-dummy"])
    stop = d.http.get("/openapi.json").json()["components"]["schemas"]["ChatRequest"]["properties"]["stop"]
    valid = jsonschema_rs.Draft202012Validator(stop).is_valid
    for value, allowed in ((["a"] * 16, True), (["a"] * 17, False), ("b" * 1024, True), ("b" * 1025, False)):
        assert valid(value) == allowed
        body = {"messages": SAY, "max_tokens": 1, "stop": value}
        assert d.http.post("/v1/chat/completions", json=body).status_code == (200 if allowed else 400)


def test_routes_of_administrators_are_listed_where_they_can_be_used(document, launch):
    assert ("get", "/admin/state") in operations(document)
    assert operations(document)["get", "/admin/state"]["security"] == [{"adminKey": []}]
    d = launch(config(), args=["--allow-dummy"])
    listed = operations(d.http.get("/openapi.json").json())
    assert not any(o["tags"] == ["admin"] for o in listed.values())
    assert not any(o["security"] or "401" in o["responses"] for o in listed.values())  # nor keys where there are none


# ---- answers ----

def closed(node):
    """The schema without room for members that it does not name."""
    if isinstance(node, list):
        return [closed(x) for x in node]
    if not isinstance(node, dict):
        return node
    out = {k: closed(v) for k, v in node.items()}
    if isinstance(node.get("properties"), dict) and "type" in node and "additionalProperties" not in node:
        out["additionalProperties"] = False
    return out


@pytest.fixture(scope="module")
def check(document):
    strict = closed(document)

    def is_as_described(name, value):
        jsonschema_rs.validate(schema(strict, name), value)

    return is_as_described


def ask(daemon, path, body):
    answer = daemon.http.post(path, json=body, headers={"Authorization": "Bearer " + KEY})
    assert answer.status_code == 200, answer.text
    return answer


CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
EVERYTHING = {"max_tokens": 5, "n": 2, "usage_details": True, "return_token_ids": True, "seed": 1, "temperature": 1}


@pytest.mark.parametrize("path,name,body", [
    (CHAT, "ChatCompletion", {"messages": SAY, "max_tokens": 1}),
    (CHAT, "ChatCompletion", {"messages": SAY, "logprobs": True, "top_logprobs": 2, **EVERYTHING}),
    (MESSAGES, "Message", {"messages": SAY, "max_tokens": 1}),
    (MESSAGES + "/count_tokens", "MessageTokens", {"messages": SAY}),
    (TEXT, "Completion", {"prompt": "a"}),
    (TEXT, "Completion", {"prompt": ["a", "bc"], "logprobs": 3, "echo": True, **EVERYTHING}),
    (TEXT, "Completion", {"prompt": "ab", "logprobs": 1, "echo": True, "max_tokens": 0}),
    (TEXT, "Completion", {"prompt": "a", "ignore_eos": True, "stop_token_ids": list(range(256)), "max_tokens": 200}),
    (RESPONSES, "ModelResponse", {"input": "hi", "max_output_tokens": 3}),
    (RESPONSES, "ModelResponse", {"input": SAY, "instructions": "x", "metadata": {"a": "b"}, "temperature": 1, "top_p": 0.5}),
    ("/tokenize", "Tokens", {"prompt": "hi"}),
    ("/tokenize", "Tokens", {"messages": SAY, "return_token_strs": True}),
    ("/detokenize", "Text", {"tokens": [1, 2]}),
])
def test_answers_have_the_members_that_are_documented(daemon, check, path, name, body):
    check(name, ask(daemon, path, body).json())


@pytest.mark.parametrize("path,name,body", [
    (CHAT, "ChatCompletionChunk", {"messages": SAY}),
    (CHAT, "ChatCompletionChunk", {"messages": SAY, "logprobs": True, "top_logprobs": 1, **EVERYTHING}),
    (TEXT, "CompletionChunk", {"prompt": "a", "echo": True}),
    (TEXT, "CompletionChunk", {"prompt": "a", "logprobs": 1, **EVERYTHING}),
])
@pytest.mark.parametrize("options", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
def test_events_of_a_stream_have_the_members_that_are_documented(daemon, document, check, path, name, body, options):
    answer = ask(daemon, path, {"max_tokens": 5, **body, "stream": True, "stream_options": options})
    content = operations(document)["post", path]["responses"]["200"]["content"]
    assert answer.headers["content-type"] == "text/event-stream" and "text/event-stream" in content
    events = [line[len("data: "):] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]" and len(events) > 2
    for event in events:
        check(name, json.loads(event))


def test_events_of_a_response_have_the_members_that_are_documented(daemon, check):
    lines = ask(daemon, RESPONSES, {"input": "hi", "max_output_tokens": 5, "stream": True}).text.splitlines()
    events = [json.loads(line[len("data: "):]) for line in lines if line.startswith("data: ")]
    assert events[-1]["type"] in ("response.completed", "response.incomplete") and len(events) > 5
    for event in events:
        check("ModelResponseChunk", event)


@pytest.mark.parametrize("path,name", [("/v1/models", "ModelList"), ("/v1/models/m", "Model"), ("/health", "Health"),
                                       ("/ready", "Ready"), ("/version", "Version"), ("/running", "Running")])
def test_other_answers_have_the_members_that_are_documented(daemon, check, path, name):
    key = ADMIN if path == "/running" else KEY
    check(name, daemon.http.get(path, headers={"Authorization": "Bearer " + key}).json())


def test_errors_have_the_members_that_are_documented(daemon, check):
    for answer in (daemon.http.get("/v1/models"), daemon.http.get("/nothing"), daemon.http.post(CHAT, json={}),
                   daemon.http.put("/admin/config", content="{}", headers={"Authorization": "Bearer " + ADMIN})):
        assert answer.status_code >= 400
        check("Error", answer.json())


def test_messages_have_events_and_errors_of_their_own(daemon, document, check):
    answer = ask(daemon, MESSAGES, {"messages": SAY, "max_tokens": 5, "stream": True})
    for line in answer.text.splitlines():
        if line.startswith("data: "):
            check("MessageChunk", json.loads(line[len("data: "):]))
    check("MessageError", daemon.http.post(MESSAGES, json={}).json())
    check("MessageError", daemon.http.get(MESSAGES).json())
    check("MessageError", daemon.http.get(MESSAGES + "/batches").json())
    assert "529" in operations(document)["post", MESSAGES]["responses"]


# ---- answers of a model that reasons and calls tools ----

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
SHELL = {"name": "shell", "description": "runs a command"}
FILES = {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]}
ALL = {
    CHAT: ("ChatCompletion", {"tools": [{"type": "function", "function": WEATHER}, {"type": "custom", "custom": SHELL}]}),
    CHAT + "#functions": ("ChatCompletion", {"functions": [WEATHER]}),
    RESPONSES: ("ModelResponse", {"tools": [{"type": "function", **WEATHER}, {"type": "custom", **SHELL}, FILES],
                                  "include": ["reasoning.encrypted_content"]}),
    MESSAGES: ("Message", {"max_tokens": 500, "tools": [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]}),
}


@pytest.fixture(scope="module")
def thinker(launch, tmp_path_factory):
    """It reasons, and writes all kinds of calls that it was offered."""
    s = scripted.start(launch, tmp_path_factory.mktemp("thinker"), dataclasses.replace(
        scripted.HERMES, template=scripted.HERMES.template.replace(
            "{%- if add_generation_prompt %}", "{%- if false %}<think></think>{% endif %}{%- if add_generation_prompt %}")))
    call = lambda name, **arguments: f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    thought = "<think>\nI think.\n</think>\n\nI look.\n"
    s.say(["files__read", "all of it"], thought + "\n".join((call("get_weather", city="Rome"), call("shell", input="ls"),
                                                             call("files__read"))), tail=5000)
    s.say(["shell", "all of it"], thought + call("get_weather", city="Rome") + "\n" + call("shell", input="ls"), tail=5000)
    s.say("all of it", thought + call("get_weather", city="Rome"))
    return s


@pytest.mark.parametrize("path", ALL)
def test_reasoning_and_calls_have_the_members_that_are_documented(thinker, check, path):
    name, more = ALL[path]
    path = path.partition("#")[0]
    asked = [{"role": "user", "content": "all of it"}]
    body = {"model": "m", "input" if path == RESPONSES else "messages": asked, **more}
    whole = thinker.http.post(path, json=body)
    assert whole.status_code == 200, whole.text
    check(name, whole.json())
    for word in ("think", "get_weather") + (("shell",) if path in (CHAT, RESPONSES) and "functions" not in more else ()):
        assert word in json.dumps(whole.json().get("choices") or whole.json().get("output") or whole.json()["content"])
    events = [json.loads(line[6:]) for line in thinker.http.post(path, json={**body, "stream": True}).text.splitlines()
              if line.startswith("data: {")]
    for event in events:
        check("MessageChunk" if path == MESSAGES else name + "Chunk", event)
    kinds = {e.get("type") for e in events}
    if path == RESPONSES:
        assert {"response.reasoning_text.delta", "response.output_text.delta", "response.function_call_arguments.done",
                "response.custom_tool_call_input.done", "response.completed"} <= kinds
    if path == MESSAGES:
        assert {e["delta"]["type"] for e in events if e["type"] == "content_block_delta"} == {
            "thinking_delta", "signature_delta", "text_delta", "input_json_delta"}


def test_a_stream_that_fails_ends_as_documented(launch, tmp_path, check):
    s = scripted.start(launch, tmp_path, config=lambda model: scripted.config_of(
        model, limits={"client_timeout_ms": 600, "queue_timeout_ms": 1500, "total_timeout_ms": 1500}))
    s.say("talk on", "word " * 60_000)
    asked = [{"role": "user", "content": "talk on"}]
    for path, body, name in ((CHAT, {"messages": asked}, "Error"), (MESSAGES, {"messages": asked, "max_tokens": 90_000}, "MessageError"),
                             (RESPONSES, {"input": asked}, "ModelResponseChunk")):
        lines = s.http.post(path, json={"model": "m", "stream": True, **body}).text.splitlines()
        last = json.loads([line[6:] for line in lines if line.startswith("data: {")][-1])
        assert "error" in last or last["type"] == "response.failed", last
        check(name, last)


def test_events_of_each_protocol_have_its_own_failure(document):
    for path, names in ((CHAT, ["ChatCompletionChunk", "Error"]), (MESSAGES, ["MessageChunk", "MessageError"]),
                        (RESPONSES, ["ModelResponseChunk"])):
        event = operations(document)["post", path]["responses"]["200"]["content"]["text/event-stream"]["schema"]
        kinds = event["properties"]["data"]["anyOf"]
        assert [k["contentSchema"]["$ref"].rpartition("/")[2] for k in kinds if "const" not in k] == names
        assert ("[DONE]" in str(kinds)) == (path == CHAT)


def test_fields_that_are_listed_are_not_reported_as_ignored(daemon, document):
    """And those of another form of a chat are checked as a chat's."""
    asked = {RESPONSES: ("ResponsesRequest", {"input": "hi", "max_output_tokens": 1}),
             MESSAGES: ("MessagesRequest", {"messages": SAY, "max_tokens": 1})}
    values = {"seed": 1, "stop": ["x"], "keep_alive": "5m", "priority": 1, "cache_salt": "s", "chat_template_kwargs": {}, "top_k": 3,
              "min_tokens": 1, "thinking_token_budget": 5, "ignore_eos": False, "cache_prompt": True}
    for path, (name, body) in asked.items():
        listed = document["components"]["schemas"][name]["properties"]
        for field, of in listed.items():
            if of == {"description": "no effect"}:
                value = "x"
            elif "$ref" in of:
                value = values.get(field, 1)
            else:
                continue
            answer = ask(daemon, path, {**body, field: value})
            assert "x-inferd-ignored" not in answer.headers, (path, field)
        refused = daemon.http.post(path, json={**body, "seed": "x"}, headers={"x-api-key": KEY})
        assert refused.status_code == 400 and "seed" in refused.text


# ---- schemathesis ----

def named(document):
    """With the names that this daemon has, so that requests reach more than a 404."""
    out = copy.deepcopy(document)
    for s in ("ChatRequest", "CompletionRequest", "ResponsesRequest", "TokenizeRequest", "DetokenizeRequest", "MessagesRequest",
              "CountTokensRequest"):
        out["components"]["schemas"][s]["properties"]["model"] = {"enum": ["m", None]}
    for _, o in operations(out).items():
        for p in o.get("parameters", []):
            if p.get("in") == "path":
                p["schema"] = {"enum": ["t" if p["name"] == "tenant" else "m"]}
    return out


def schemathesis(d, document, folder, key, *options):
    """Its status and report."""
    (folder / "document.json").write_text(json.dumps(document))
    # A wait that is over, and a place that is taken, are answers, too; that each is documented is another check.
    (folder / "schemathesis.toml").write_text("[checks.not_a_server_error]\n"
                                              'expected-statuses = ["2xx", "4xx", "503", "504", "529"]\n')
    done = subprocess.run(
        [Path(sys.executable).with_name("schemathesis"), "run", "document.json", "--url", d.url,
         "--header", "Authorization: Bearer " + key, "--seed", "1", "--generation-deterministic",
         "--phases", "coverage,fuzzing", "--checks", "all", "--exclude-checks", LEFT_OUT,
         "--continue-on-failure", "--request-timeout", "30", *options],
        cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def answers(d, route):
    """How many answers a route gave, by status."""
    page = httpx.get(d.url + "/metrics", headers={"Authorization": "Bearer " + ADMIN}).text
    lines = [x for x in page.splitlines() if x.startswith(f'inferd_http_responses_total{{route="{route}",')]
    return {int(x.split('status="')[1][:3]): float(x.rsplit(" ", 1)[1]) for x in lines}


def test_schemathesis_finds_no_difference_on_the_routes_of_clients(daemon, document, tmp_path):
    status, report = schemathesis(daemon, named(document), tmp_path, KEY, "--exclude-tag", "admin", "--max-examples", "25")
    assert status == 0, report
    for route in (CHAT, TEXT, MESSAGES, RESPONSES, "/tokenize", "/detokenize"):
        seen = answers(daemon, route)
        assert seen[200] > 5 and seen[400] > 20 and seen[401] > 0 and seen[415] > 0, (route, seen)
    assert daemon.alive()
    audit = httpx.get(daemon.url + "/debug/audit", headers={"Authorization": "Bearer " + ADMIN}).json()
    assert audit["ok"] and audit["front"]["generations"] == 0


def test_schemathesis_finds_no_difference_on_the_routes_of_administrators(launch, document, tmp_path):
    d = launch(config(tenants=[{"name": "t", "keys": [KEY]}], admin={"keys": [ADMIN]}), args=["--allow-dummy"])
    status, report = schemathesis(d, named(document), tmp_path, ADMIN, "--include-tag", "admin", "--max-examples", "10")
    assert status == 0, report
    for command in ("load", "unload", "drain", "pin"):
        seen = answers(d, f"/admin/models/*/{command}")
        assert seen[202] > 5 and seen[400] > 5, (command, seen)


@pytest.mark.parametrize("what", ["answer", "status", "range"])
def test_schemathesis_finds_a_difference(daemon, document, tmp_path, what):
    """What passes above is not passed because nothing is compared."""
    wrong = named(document)
    detokenize = wrong["paths"]["/detokenize"]["post"]
    if what == "answer":
        wrong["components"]["schemas"]["Text"]["properties"]["prompt"] = {"type": "integer"}
    elif what == "status":
        del detokenize["responses"]["400"]
    else:
        wrong["components"]["schemas"]["DetokenizeRequest"]["properties"]["tokens"]["anyOf"][0]["items"]["maximum"] = 3
    status, report = schemathesis(daemon, wrong, tmp_path, KEY, "--include-operation-id", "detokenize", "--max-examples", "30")
    assert status == 1 and "POST /detokenize" in report, report
