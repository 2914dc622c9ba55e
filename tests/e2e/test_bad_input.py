"""Bad input on the running daemon: each row is tried, then a canary must give its exact answer, and at
the end the audit is clean and nothing was lost.

A row of HTTP is (name, what is sent, status, code of the error or None, the connection is closed).  All
of it is exact: each answer is one status line and one header block with each header once, and each error
is our JSON object with an x-request-id, also where libmicrohttpd would answer by itself."""

import json
import os
import random
import re
import resource
import socket
import threading
import time

import httpx
import pytest

from conftest import SANITIZE, SLOW, model_config

LIMITS = {"client_timeout_ms": 1500, "body_bytes_max": "1MiB"}


@pytest.fixture(scope="module")
def d(launch, tiny_model):
    d = launch({**model_config(tiny_model, "tiny"), "limits": LIMITS})
    d.canary = ask_canary(d)
    yield d
    assert ask_canary(d) == d.canary
    body = d.settled()
    assert body["pages"]["quarantine"] == 0
    assert d.stop() == 0


@pytest.fixture(autouse=True)
def canary_is_exact(d):
    yield
    assert d.alive()
    assert ask_canary(d) == d.canary


def ask_canary(d):
    r = d.http.post("/v1/completions", json={
        "model": "tiny", "prompt": "the canary sings", "max_tokens": 12, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True})
    assert r.status_code == 200, r.text
    return r.json()["choices"][0]["token_ids"]


# -- HTTP --------------------------------------------------------------------------------------------

def talk(d, data, wait=6.0, pieces=None, gap=0.0, quiet=0.1):
    """Send bytes, read until closed or quiet; the statuses of all answers that came, each well-formed."""
    got = b""
    with socket.create_connection(("127.0.0.1", d.port)) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.settimeout(wait * SLOW)
        try:
            for part in pieces if pieces is not None else [data]:
                s.sendall(part)
                if gap:
                    time.sleep(gap)
        except (BrokenPipeError, ConnectionResetError):
            pass
        to_head = (data or b"".join(pieces or [])).startswith(b"HEAD ")
        try:
            while True:
                part = s.recv(65536)
                if not part:
                    return statuses(got, to_head), True, got
                got += part
                if answers(got, to_head)[1] == b"":
                    s.settimeout(quiet * SLOW)
        except (TimeoutError, socket.timeout):
            return statuses(got, to_head), False, got
        except ConnectionResetError:
            return statuses(got, to_head), True, got


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body


def answers(got, to_head=False):
    """The whole answers in these bytes, and what is left of them."""
    out = []
    while got:
        head, sep, rest = got.partition(b"\r\n\r\n")
        if not sep:
            break
        line, *fields = head.split(b"\r\n")
        assert re.fullmatch(rb"HTTP/1\.1 [1-5][0-9][0-9] [ -~]+", line), got[:300]
        status, headers = int(line[9:12]), {}
        for field in fields:
            name, colon, value = field.partition(b": ")
            assert colon and re.fullmatch(rb"[A-Za-z0-9-]+", name), got[:600]
            assert name.lower() not in headers, (b"a header stands twice", name, got[:600])
            headers[name.lower()] = value
        if status < 200 or to_head:
            n = 0
        elif b"content-length" in headers:
            n = int(headers[b"content-length"])
        else:
            assert headers.get(b"transfer-encoding") == b"chunked", got[:300]
            end = rest.find(b"0\r\n\r\n")
            n = end + 5 if end >= 0 else len(rest) + 1
        if n > len(rest):
            break
        out.append(Answer(status, headers, rest[:n]))
        got = rest[n:]
    return out, got


def statuses(got, to_head=False):
    found, rest = answers(got, to_head)
    assert rest == b"", (b"an answer is cut off", rest[:300])
    for a in found:
        if a.status >= 200:
            assert re.fullmatch(rb"req-[0-9a-f]{32}", a.headers[b"x-request-id"]), a.headers
        if a.status >= 400 and not to_head:
            assert a.headers[b"content-type"] == b"application/json"
            body = json.loads(a.body)
            assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
            assert body["error"]["message"] and body["error"]["type"]
    return [a.status for a in found]


BODY = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 1}).encode()


def post(headers=b"", body=BODY, line=b"POST /v1/completions HTTP/1.1", length=True, host=b"Host: localhost\r\n",
         kind=b"Content-Type: application/json\r\n"):
    n = b"Content-Length: %d\r\n" % len(body) if length else b""
    return line + b"\r\n" + host + kind + n + headers + b"\r\n" + body


HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
MALFORMED, TOO_LARGE, NO_URL = "malformed_request", "request_too_large", "unknown_url"


def chunked(body):
    return post(CHUNKED, body, length=False)


def sized(value, body=b"{}  "):
    return post(b"Content-Length: " + value + b"\r\n", body, length=False)


HTTP_ROWS = [
    ("H01 length and chunked, hidden request", post(CHUNKED, b"0\r\n\r\n" + HIDDEN), 400, MALFORMED, True),
    ("H02 two lengths", post(b"Content-Length: 0\r\n"), 400, MALFORMED, True),
    ("H03 two equal lengths", post(b"Content-Length: %d\r\n" % len(BODY)), 400, MALFORMED, True),
    ("H03 list of lengths", sized(b"4, 4"), 400, MALFORMED, True),
    ("H03 list of small lengths", sized(b"1, 1"), 400, MALFORMED, True),
    ("H04 space before colon", post(b"Content-Length : 4\r\n", b"{}  ", length=False), 400, MALFORMED, True),
    ("H05 length +5", sized(b"+5"), 400, MALFORMED, True),
    ("H05 length -1", sized(b"-1"), 400, MALFORMED, True),
    ("H05 length 0x10", sized(b"0x10"), 400, MALFORMED, True),
    ("H05 length empty", sized(b""), 400, MALFORMED, True),
    ("H06 length 2^63", sized(b"9223372036854775808", b""), 413, TOO_LARGE, True),
    ("H06 length 2^64-1", sized(b"18446744073709551615", b""), 413, TOO_LARGE, True),
    ("H06 length 30 digits", sized(b"9" * 30, b""), 413, TOO_LARGE, True),
    ("H07 gzip coding", post(b"Transfer-Encoding: gzip\r\n", b"", length=False), 400, MALFORMED, True),
    ("H07 two codings", post(b"Transfer-Encoding: chunked, identity\r\n", b"", length=False), 400, MALFORMED, True),
    ("H07 xchunked", post(b"Transfer-Encoding: xchunked\r\n", b"", length=False), 400, MALFORMED, True),
    ("H07 two coding headers", post(CHUNKED + CHUNKED, b"0\r\n\r\n", length=False), 400, MALFORMED, True),
    ("H08 chunked on 1.0", post(CHUNKED, b"0\r\n\r\n", length=False, line=b"POST /v1/completions HTTP/1.0"),
     400, MALFORMED, True),
    ("H09 no chunk size", chunked(b"\r\nxx\r\n0\r\n\r\n"), 400, MALFORMED, True),
    ("H09 chunk size -1", chunked(b"-1\r\nxx\r\n0\r\n\r\n"), 400, MALFORMED, True),
    ("H09 chunk size 0x10", chunked(b"0x10\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n"), 400, MALFORMED, True),
    ("H09 chunk size 17 digits", chunked(b"1" * 17 + b"\r\nxx\r\n0\r\n\r\n"), 413, TOO_LARGE, True),
    ("H09 chunk size 2^64-1", chunked(b"F" * 16 + b"\r\nxx\r\n0\r\n\r\n"), 413, TOO_LARGE, True),
    ("H09 chunk size 2^64", chunked(b"1" + b"0" * 16 + b"\r\nxx\r\n0\r\n\r\n"), 413, TOO_LARGE, True),
    ("H09 chunk over the limit", chunked(b"100001\r\n"), 413, TOO_LARGE, True),
    ("H10 chunks over the limit together", chunked(b"80000\r\n" + b" " * 0x80000 + b"\r\n80001\r\n"),
     413, TOO_LARGE, True),
    ("H11 chunk extension 60 KB", chunked(b"2;" + b"e" * 60000 + b"\r\n{}\r\n0\r\n\r\n"), 400, MALFORMED, True),
    ("H11 chunk extension", chunked(b"%x;a=b\r\n%s\r\n0;c\r\n\r\n" % (len(BODY), BODY)), 200, None, False),
    ("H12 missing CRLF after chunk", chunked(b"2\r\n{}0\r\n\r\n"), 400, MALFORMED, True),
    ("H12 bare LF behind a chunk size", chunked(b"%x\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)), 400, MALFORMED, True),
    ("H12 bare LF behind a chunk", chunked(b"%x\r\n%s\n0\r\n\r\n" % (len(BODY), BODY)), 400, MALFORMED, True),
    ("H12 bare LF behind the last chunk", chunked(b"%x\r\n%s\r\n0\n\r\n" % (len(BODY), BODY)), 400, MALFORMED, True),
    ("H12 bare LF at the end of chunks", chunked(b"%x\r\n%s\r\n0\r\n\n" % (len(BODY), BODY)), 400, MALFORMED, True),
    ("H12 bare LF in the head", GET.replace(b"\r\n", b"\n") + b"\n", 400, MALFORMED, True),
    ("H12 one bare LF", GET + b"A: b\nC: d\r\n\r\n", 400, MALFORMED, True),
    ("H12 bare LF at the end", GET + b"\n", 400, MALFORMED, True),
    ("H12 bare CR", GET + b"A: b\rC: d\r\n\r\n", 400, MALFORMED, True),
    ("H13 trailers", chunked(b"%x\r\n%s\r\n0\r\nAuthorization: Bearer x\r\nContent-Length: 3\r\n\r\n"
                             % (len(BODY), BODY)), 200, None, False),
    ("H13 a trailer without a name", chunked(b"%x\r\n%s\r\n0\r\n: x\r\n\r\n" % (len(BODY), BODY)),
     400, MALFORMED, True),
    ("H13 5 KB of trailers", chunked(b"%x\r\n%s\r\n0\r\na: " % (len(BODY), BODY) + b"b" * 5000 + b"\r\n\r\n"),
     431, TOO_LARGE, True),
    ("H14 no final chunk", chunked(b"2\r\n{}\r\n"), 408, "request_timeout", True),
    ("H14 half a head", GET, 408, "request_timeout", True),
    ("H15 half a body", post()[:-5], 408, "request_timeout", True),
    ("H21 TLS hello", bytes.fromhex("1603010200010001fc0303") + bytes(500), 400, MALFORMED, True),
    ("H21 SSH banner", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 400, MALFORMED, True),
    ("H21 HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, MALFORMED, True),
    ("H21 websocket", GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 200, None, False),
    ("H22 HTTP/0.9", b"GET /v1/models\r\n\r\n", 400, MALFORMED, True),
    ("H22 HTTP/2.0", b"GET /v1/models HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, MALFORMED, True),
    ("H22 HTTP/1.1x", b"GET /v1/models HTTP/1.1x\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H22 a broken request line", b"GET /v1 /models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H22 two spaces", b"GET  /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H23 no host", b"GET /v1/models HTTP/1.1\r\n\r\n", 400, MALFORMED, True),
    ("H23 two hosts", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, MALFORMED, True),
    ("H23 foreign host", b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "host_not_allowed", False),
    ("H23 host with path", b"GET /v1/models HTTP/1.1\r\nHost: a/?x=\r\n\r\n", 400, MALFORMED, True),
    ("H23 host with at", b"GET /v1/models HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, MALFORMED, True),
    ("H23 host with space", b"GET /v1/models HTTP/1.1\r\nHost: a b\r\n\r\n", 400, MALFORMED, True),
    ("H24 absolute form", b"GET http://x/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H24 authority form", b"CONNECT x:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H24 asterisk", b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed", False),
    ("H25 70 KB target", b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, TOO_LARGE, True),
    ("H25 a target without end", b"GET /" + b"a" * 20000, 414, TOO_LARGE, True),
    ("H26 NUL in path", b"GET /v1%00/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, NO_URL, False),
    ("H26 escaped dots", b"GET /v1/%2e%2e%2fv1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, NO_URL, False),
    ("H26 double slashes", b"GET //v1//models HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, NO_URL, False),
    ("H26 trailing slash", b"GET /v1/models/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, NO_URL, False),
    ("H26 semicolon", b"GET /v1/models;x HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, NO_URL, False),
    ("H26 bad escape", b"GET /v1/models%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, NO_URL, False),
    ("H26 overlong UTF-8", b"GET /v1%c0%afmodels HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, NO_URL, False),
    ("H27 long query", b"GET /v1/models?" + b"a=b&" * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
     414, TOO_LARGE, True),
    ("H27 65 arguments", b"GET /v1/models?" + b"&" * 64 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, TOO_LARGE, True),
    ("H27 64 arguments", b"GET /v1/models?" + b"a=b&" * 63 + b"c HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, None, False),
    ("H28 5,000 headers", GET + b"a: b\r\n" * 5000 + b"\r\n", 431, TOO_LARGE, True),
    ("H28 100 headers", GET + b"a: b\r\n" * 99 + b"\r\n", 200, None, False),
    ("H28 101 headers", GET + b"a: b\r\n" * 100 + b"\r\n", 431, TOO_LARGE, True),
    ("H28 64 KB header", GET + b"A: " + b"b" * 65536 + b"\r\n\r\n", 431, TOO_LARGE, True),
    ("H28 20 KB name", GET + b"n" * 20000 + b": b\r\n\r\n", 431, TOO_LARGE, True),
    ("H28 15 KB of cookies", GET + b"Cookie: " + b"a=b;" * 3750 + b"\r\n\r\n", 200, None, False),
    ("H29 folded header", GET + b"X-A: b\r\n cd\r\n\r\n", 400, MALFORMED, True),
    ("H30 NUL in value", GET + b"X-A: b\0c\r\n\r\n", 400, MALFORMED, True),
    ("H30 NUL in name", GET + b"X\0A: b\r\n\r\n", 400, MALFORMED, True),
    ("H30 NUL in method", b"GE\0T /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H30 NUL in target", b"GET /v1/models\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H30 NUL in version", b"GET /v1/models HTTP/1.1\0\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H30 ESC in value", GET + b"X-A: b\x1bc\r\n\r\n", 400, MALFORMED, True),
    ("H31 empty name", GET + b": b\r\n\r\n", 400, MALFORMED, True),
    ("H31 no colon", GET + b"abc\r\n\r\n", 400, MALFORMED, True),
    ("H32 bad UTF-8 in body", post(body=b'{"model": "tiny", "prompt": "\xff\xfe"}'), 400, None, False),
    ("H37 expect, too large", post(b"Expect: 100-continue\r\nContent-Length: 99999999\r\n", b"", length=False),
     413, TOO_LARGE, True),
    ("H38 expect something", post(b"Expect: something\r\n"), 417, "expectation_failed", True),
    ("H39 unknown method", b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed", False),
    ("H39 lower case method", b"get /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed", False),
    ("H39 bad method", b"G(T /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H39 long method", b"G" * 33 + b" /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, MALFORMED, True),
    ("H39 TRACE", b"TRACE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed", False),
    ("H39 GET on POST", b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed", False),
    ("H39 DELETE", b"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed", False),
    ("H40 GET with body", GET + b"Content-Length: 5\r\n\r\nhello", 200, None, False),
    ("H40 POST without body", post(body=b""), 400, None, False),
    ("H41 text/plain", post(kind=b"Content-Type: text/plain\r\n"), 415, "unsupported_media_type", True),
    ("H41 form", post(kind=b"Content-Type: application/x-www-form-urlencoded\r\n"), 415, "unsupported_media_type", True),
    ("H41 multipart", post(kind=b"Content-Type: multipart/form-data; boundary=x\r\n"), 415, "unsupported_media_type", True),
    ("H41 utf-16", post(kind=b"Content-Type: application/json; charset=utf-16\r\n"), 415, "unsupported_media_type", True),
    ("H41 utf-8", post(kind=b"Content-Type: application/json; charset=utf-8\r\n"), 200, None, False),
    ("H41 no type", post(kind=b""), 200, None, False),
    ("H42 gzip body", post(b"Content-Encoding: gzip\r\n"), 415, "unsupported_media_type", True),
    ("H45 forwarded", post(b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=x\r\n"), 200, None, False),
    ("H46 range", GET + b"Range: bytes=0-1\r\nIf-None-Match: *\r\n\r\n", 200, None, False),
    ("H47 long request id", post(b"X-Request-Id: " + b"a" * 5000 + b"\r\n"), 200, None, False),
]


def test_many_arguments_are_answered_at_once(d):
    """Sixteen of these, eight at a time, ended the process: each stalled until its deadline, and the
    answer of 408 left a freed connection on a list of the HTTP library."""
    query = b"GET /health?" + b"a=b&" * 500 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answers = []
    for _ in range(2):
        asking = [threading.Thread(target=lambda: answers.append(talk(d, query))) for _ in range(8)]
        begin = time.monotonic()
        for t in asking:
            t.start()
        for t in asking:
            t.join()
        assert time.monotonic() - begin < LIMITS["client_timeout_ms"] / 1000
    assert [(codes, closed) for codes, closed, _ in answers] == [([414], True)] * 16
    for _, _, got in answers:
        error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "request_too_large" and error["type"] == "invalid_request_error"
        assert got.lower().count(b"x-request-id: req-") == 1
    time.sleep(LIMITS["client_timeout_ms"] / 1000 + 0.2)  # the deadline that they once met
    assert d.alive()


@pytest.mark.parametrize("name,data,status,code,closes", HTTP_ROWS, ids=[r[0] for r in HTTP_ROWS])
def test_http(d, name, data, status, code, closes):
    """At once, byte by byte, and behind a good request: libmicrohttpd answered some of these with two
    header blocks and HTML, and some only with a deadline."""
    ways = [(0, [data]), (1, [GET + b"\r\n" + data])]
    if len(data) < 600 and status != 408:
        ways.append((0, [data[i:i + 1] for i in range(len(data))]))
    for n_before, pieces in ways:
        began = time.monotonic()
        got, closed, raw = talk(d, None, pieces=pieces, quiet=4 if status == 408 else 0.1)
        assert got == [200] * n_before + [status], (got, raw[:600])
        assert closed == closes
        last = answers(raw)[0][-1]
        if status >= 400:
            error = json.loads(last.body)["error"]
            assert error["code"] == code, error
            assert error["type"] == {403: "permission_error", 408: "timeout_error"}.get(status, "invalid_request_error")
        if status != 408 and closes:
            assert time.monotonic() - began < LIMITS["client_timeout_ms"] / 1000, "a deadline answered"


def test_a_half_closed_connection_is_answered_or_told(d):
    """SHUT_WR behind a request cancelled it without a word.  What is ready at once is answered; a request
    that has to wait is cancelled, because a client that left looks the same, and its client is told."""
    def half_closed(data):
        with socket.create_connection(("127.0.0.1", d.port)) as s:
            s.settimeout(20 * SLOW)
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            got = b""
            while part := s.recv(65536):
                got += part
        found, rest = answers(got)
        assert rest == b""
        return found
    assert [a.status for a in half_closed((GET + b"\r\n") * 3)] == [200] * 3
    long = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 1000, "ignore_eos": True}).encode()
    (told,) = half_closed(post(body=long))
    assert told.status == 499 and json.loads(told.body)["error"]["code"] == "client_closed_request"
    assert half_closed(GET) == [] and half_closed(post()[:-5]) == []
    d.settled()


def test_h15_half_a_body_then_gone(d):
    before = d.metric("inferd_requests_total")
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", d.port)) as s:
            s.sendall(post()[:-5])
    time.sleep(0.2)
    assert d.metric("inferd_prompt_tokens_total") >= 0 and d.metric("inferd_requests_total") - before <= 21


def test_h17_h18_h20_slow_clients_meet_deadlines(d):
    """Headers or a body that trickle in are cut by an absolute deadline, not by inactivity."""
    def trickle(data):
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", d.port)) as s:
            s.settimeout(0.25)
            for i in range(len(data)):
                try:
                    s.sendall(data[i:i + 1])
                    if not s.recv(1000):
                        return time.monotonic() - began
                except (TimeoutError, socket.timeout):
                    pass
                except OSError:
                    return time.monotonic() - began
                if time.monotonic() - began > 15 * SLOW:
                    break
        return None

    took = {}
    jobs = {"header": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 200,
            "body": post(body=b" " * 200)[:-190], "silent": b""}

    def run(name, data):
        if name == "silent":
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", d.port)) as s:
                s.settimeout(15 * SLOW)
                try:
                    s.recv(1)
                except OSError:
                    return
                took[name] = time.monotonic() - began
        elif name == "body":
            head, _, _ = data.partition(b"\r\n\r\n")
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", d.port)) as s:
                s.sendall(head + b"\r\n\r\n")
                s.settimeout(0.25)
                while time.monotonic() - began < 15 * SLOW:
                    try:
                        s.sendall(b" ")
                        if b"" == s.recv(1000):
                            break
                    except (TimeoutError, socket.timeout):
                        continue
                    except OSError:
                        break
            took[name] = time.monotonic() - began
        else:
            took[name] = trickle(data)

    threads = [threading.Thread(target=run, args=x) for x in jobs.items()]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(took)
    assert took["header"] and took["header"] < 8 * SLOW
    assert took["body"] < 8 * SLOW
    assert took.get("silent") and took["silent"] < 8 * SLOW


def test_h33_pipelined_requests_come_in_order(d):
    data = b"".join(post() if i % 2 else b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" for i in range(10))
    got, _, _ = talk(d, data, wait=3)
    assert got == [200] * 10
    got, closed, _ = talk(d, post() + post(b"Content-Length: 0\r\n") + post(), wait=3)
    assert got == [200, 400] and closed


def test_h36_resets(d):
    import struct
    for _ in range(100 if SANITIZE else 1000):
        s = socket.create_connection(("127.0.0.1", d.port))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.sendall(post())
        s.close()
    d.settled()


def test_h40_head_has_no_body(d):
    for path in ("/v1/models", "/health", "/metrics", "/version"):
        r = d.http.request("HEAD", path)
        assert r.status_code == 200 and r.content == b""


# -- JSON --------------------------------------------------------------------------------------------

def raw_post(d, body, path="/v1/completions"):
    return d.http.post(path, content=body, headers={"Content-Type": "application/json"})


def good_body(**more):
    return json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 1, **more}).encode()


J_BAD = {
    "J01 empty": b"", "J01 spaces": b"   ", "J01 null": b"null", "J01 number": b"1", "J01 string": b'"x"',
    "J01 array": b"[]", "J01 true": b"true",
    "J02 depth 65": b'{"a":' * 65 + b"1" + b"}" * 65, "J02 depth 2048": b"[" * 2048, "J02 depth 100000": b"[" * 100000,
    "J03 objects": b'{"x":[' + b",".join([b"{}"] * 300000) + b"]}",
    "J04 many keys": b"{" + b",".join(b'"k%d":1' % i for i in range(90000)) + b"}",
    "J05 duplicate": b'{"model":"tiny","model":"tiny","prompt":"x"}',
    "J06 too big": b'{"model":"tiny","prompt":"x","seed":9223372036854775808}',
    "J06 10k digits": b'{"model":"tiny","prompt":"x","seed":' + b"9" * 10000 + b"}",
    "J07 400 digits": b'{"model":"tiny","prompt":"x","user":' + b"9" * 400 + b"}",
    "J07 1e309": b'{"model":"tiny","prompt":"x","temperature":1e309}',
    "J08 NaN": b'{"model":"tiny","prompt":"x","temperature":NaN}',
    "J08 Infinity": b'{"model":"tiny","prompt":"x","temperature":Infinity}',
    "J08 hex": b'{"model":"tiny","prompt":"x","seed":0x10}', "J08 01": b'{"model":"tiny","prompt":"x","seed":01}',
    "J08 +1": b'{"model":"tiny","prompt":"x","seed":+1}',
    "J11 lone surrogate": b'{"model":"tiny","prompt":"\\ud800"}',
    "J12 NUL": b'{"model":"tiny","prompt":"a\\u0000b"}', "J12 NUL key": b'{"model":"tiny","prompt":"a","k\\u0000":1}',
    "J13 C0 80": b'{"model":"tiny","prompt":"\xc0\x80"}', "J13 ED A0 80": b'{"model":"tiny","prompt":"\xed\xa0\x80"}',
    "J14 control": b'{"model":"tiny","prompt":"a\nb"}', "J14 BOM": b"\xef\xbb\xbf" + good_body(),
    "J14 UTF-16": good_body().decode().encode("utf-16"),
    "J15 trailing comma": b'{"model":"tiny","prompt":"x",}', "J15 comment": b'{"model":"tiny"/*c*/,"prompt":"x"}',
    "J15 quotes": b"{'model':'tiny'}", "J15 two": good_body() + good_body(), "J15 garbage": good_body() + b"x",
}


@pytest.mark.parametrize("name", J_BAD)
def test_json_that_is_refused(d, name):
    r = raw_post(d, J_BAD[name])
    assert r.status_code in (400, 413), (r.status_code, r.text)
    error = r.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 600


def test_j16_truncated_at_every_byte(d):
    body = good_body(stop=["a"], logit_bias={"1": 2})
    for n in range(len(body)):
        assert raw_post(d, body[:n]).status_code == 400, n


def test_j17_bit_flips(d):
    body = good_body(stop=["a"])
    rng = random.Random(1)
    for bit in rng.sample(range(len(body) * 8), 120):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        assert raw_post(d, bytes(flipped)).status_code in (200, 400, 404)


def test_j18_big_strings(d):
    for text in (b"a" * 900000, b"\\u0041" * 150000):
        r = raw_post(d, b'{"model":"tiny","prompt":"' + text + b'"}')
        assert r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded"
    assert raw_post(d, b" " * 900000 + good_body()).status_code == 200
    assert raw_post(d, b" " * (1 << 21)).status_code == 413


def test_j19_unknown_fields_are_accepted(d):
    body = {"__proto__": 1, "": 2, "some_field": {"a": [1, 2]}}
    assert raw_post(d, good_body(**body)).status_code == 200


# -- every field, every kind ---------------------------------------------------------------------------

KINDS = [True, False, -1, 0, 1.5, "x", "", [], [1.5], {}, {"a": 1}]
# field: the kinds of value (by example) that are right
FIELDS = {
    "temperature": [0, 1.5], "top_p": [], "n": [], "max_tokens": [], "seed": [-1, 0],
    "frequency_penalty": [-1, 0, 1.5], "presence_penalty": [-1, 0, 1.5], "stop": ["x", []],
    "stream": [True, False], "logit_bias": [{}], "top_k": [-1, 0], "min_p": [0],
    "repetition_penalty": [1.5], "ignore_eos": [True, False], "min_tokens": [0], "stop_token_ids": [[]],
    "echo": [True, False], "stream_options": [], "best_of": [], "priority": [-1, 0], "user": KINDS,
    "cache_salt": ["x"], "return_token_ids": [True, False],
}


@pytest.mark.parametrize("field", FIELDS)
def test_j09_wrong_kinds(d, field):
    for value in KINDS:
        right = any(value == x and type(value) is type(x) for x in FIELDS[field])
        r = raw_post(d, good_body(**{field: value}))
        if right and field != "stream":
            assert r.status_code == 200, (field, value, r.text)
        elif not right:
            assert r.status_code == 400, (field, value, r.status_code, r.text)
            assert r.json()["error"]["param"] is not None and \
                r.json()["error"]["param"].startswith(field), (field, value, r.text)


@pytest.mark.parametrize("field", FIELDS)
def test_j10_null_is_absent(d, field):
    assert raw_post(d, good_body(**{field: None})).status_code == 200, field


P_BAD = [
    ("max_tokens", -1), ("max_tokens", 10 ** 18), ("max_tokens", 10 ** 30), ("seed", 2 ** 63), ("max_tokens", 2.5), ("max_tokens", "5"), ("max_tokens", 5000),
    ("n", 0), ("n", -1), ("n", 129), ("n", 10 ** 9), ("temperature", -0.1), ("temperature", 2.1),
    ("temperature", 1e308), ("top_p", -1), ("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("top_k", 2 ** 31),
    ("min_p", -0.1), ("min_p", 1.1), ("presence_penalty", -2.1), ("presence_penalty", 2.1),
    ("frequency_penalty", 2.1), ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", 1e30),
    ("seed", 1.5), ("logprobs", -1), ("logprobs", 21), ("logit_bias", {"abc": 1}), ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1.5": 1}), ("logit_bias", {" 1": 1}), ("logit_bias", {"1000000": 1}),
    ("logit_bias", {"4294967296": 1}), ("logit_bias", {"18446744073709551616": 1}), ("logit_bias", {"1": 100.1}),
    ("logit_bias", {"1": "x"}), ("stop", [""]), ("stop", ["a"] * 1000), ("stop", ["a" * 100000]), ("stop", [1]),
    ("stop_token_ids", [-1]), ("stop_token_ids", [10 ** 9]), ("stop_token_ids", ["1"]), ("stream", "true"),
    ("stream", 1), ("stream_options", {"include_usage": True}), ("best_of", 0), ("best_of", 3), ("suffix", "x"),
    ("min_tokens", 5), ("cache_salt", 5), ("cache_salt", ""), ("priority", "urgent"), ("echo", "yes"),
    ("prompt", []), ("prompt", ""), ("prompt", [[]]), ("prompt", [1, "a"]), ("prompt", ["a", 1]), ("prompt", [-1]),
    ("prompt", [10 ** 6]), ("prompt", [2 ** 31]), ("prompt", [1.5]), ("prompt", {"a": 1}), ("prompt", None),
    ("prompt", [["a"]]), ("prompt", ["x"] * 10000), ("model", ""), ("model", 5), ("model", "../x"),
    ("model", "m" * 100000), ("service_tier", "gold"),
]


@pytest.mark.parametrize("field,value", P_BAD, ids=[f"{f}={str(v)[:24]}" for f, v in P_BAD])
def test_parameters_out_of_range(d, field, value):
    r = raw_post(d, good_body(**{field: value}))
    assert r.status_code in ((404, 400) if field == "model" else (400,)), r.text
    error = r.json()["error"]
    assert error["type"] == "invalid_request_error" and error["code"]
    assert len(r.text) < 1000, "an error echoes too much"
    if field in ("max_tokens", "prompt") and error["code"] == "context_length_exceeded":
        assert "2048" in error["message"]
    else:
        assert error["param"] and error["param"].startswith(field), error


P_GOOD = [
    ("max_tokens", 1), ("max_tokens", 1.0), ("max_tokens", 1e0), ("n", 1), ("n", 128), ("temperature", 0),
    ("temperature", 1e-9), ("temperature", 1e-45), ("temperature", 2), ("top_p", 1e-12), ("top_p", 1), ("top_k", -1),
    ("top_k", 1), ("top_k", 511), ("top_k", 512), ("min_p", 1), ("presence_penalty", -2), ("presence_penalty", 2),
    ("repetition_penalty", 0.01), ("seed", -1), ("seed", 2 ** 63 - 1), ("seed", -2 ** 63), ("logprobs", 0),
    ("logprobs", 5), ("logit_bias", {str(i): -100 for i in range(512)}), ("stop", "a"), ("stop", ["a"] * 4),
    ("stop", "\u20ac"), ("stop_token_ids", [5]), ("best_of", 1), ("metadata", {"a": "b"}), ("user", "u" * 100000),
    ("service_tier", "auto"), ("service_tier", "flex"), ("priority", 5), ("ignore_eos", True),
    ("prompt", [1, 2, 3]), ("prompt", ["a", "b"]),
]


@pytest.mark.parametrize("field,value", P_GOOD, ids=[f"{f}={str(v)[:24]}" for f, v in P_GOOD])
def test_parameters_at_their_edges(d, field, value):
    r = raw_post(d, good_body(**{field: value}))
    assert r.status_code == 200, r.text


# -- meaning -------------------------------------------------------------------------------------------

def chat(d, **more):
    return d.http.post("/v1/chat/completions", json={
        "model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **more})


S_BAD = {
    "S01 no messages": {"messages": []}, "S01 null": {"messages": None}, "S01 string": {"messages": "hi"},
    "S02 role": {"messages": [{"role": "king", "content": "x"}]},
    "S02 no role": {"messages": [{"content": "x"}]}, "S02 role null": {"messages": [{"role": None, "content": "x"}]},
    "S02 content null": {"messages": [{"role": "user", "content": None}]},
    "S02 content number": {"messages": [{"role": "user", "content": 5}]},
    "S02 message string": {"messages": ["hi"]},
    "S04 image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    "S04 audio": {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
    "S04 part without type": {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
    "P11 top_logprobs alone": {"top_logprobs": 3}, "P11 top_logprobs 21": {"logprobs": True, "top_logprobs": 21},
    "P11 top_logprobs -1": {"logprobs": True, "top_logprobs": -1}, "P11 logprobs number": {"logprobs": 5},
    "P17 options without stream": {"stream_options": {"include_usage": True}},
    "P20 no schema": {"response_format": {"type": "json_schema"}},
    "P20 two": {"response_format": {"type": "json_object"}, "guided_regex": "a"},
    "P20 unknown format": {"response_format": {"type": "xml"}}, "P21 tools": {"tools": [{"type": "function"}]},
    "P22 tool_choice": {"tool_choice": "required"}, "P28 functions": {"functions": [{}]},
    "P28 function_call": {"function_call": {"name": "f"}},
    "template kwargs": {"chat_template_kwargs": 5}, "max_tokens 0": {"max_tokens": 0},
    "both continue and generation": {"continue_final_message": True, "add_generation_prompt": True},
    "max both out of range": {"max_completion_tokens": -1},
}


@pytest.mark.parametrize("name", S_BAD)
def test_chat_that_is_refused(d, name):
    r = chat(d, **S_BAD[name])
    assert r.status_code == 400, r.text
    assert r.json()["error"]["param"]


def test_s06_context_borders(d):
    ids = [(i * 7) % 250 for i in range(2100)]
    code = lambda n, out: d.http.post("/v1/completions", json={
        "model": "tiny", "prompt": ids[:n], "max_tokens": out, "ignore_eos": True})
    assert code(2047, 1).status_code == 200
    for n, out in ((2048, 1), (2047, 2), (2049, 1), (1, 2048)):
        r = code(n, out)
        assert r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded", (n, out, r.text)
        assert "2048" in r.json()["error"]["message"]


def test_s07_long_texts_take_linear_time(d):
    for text in ("a" * 900000, " " * 500000, "\u0301" * 200000, "7" * 26000, "\U0001f469\u200d" * 50000):
        began = time.monotonic()
        r = d.http.post("/v1/completions", json={"model": "tiny", "prompt": text, "max_tokens": 1})
        assert r.status_code == 400 and time.monotonic() - began < 3 * SLOW


def test_s09_prompt_of_many_ids(d):
    r = d.http.post("/v1/completions", json={"model": "tiny", "prompt": [1] * 200000, "max_tokens": 1})
    assert r.status_code == 400


def test_s22_same_request_twice_is_the_same(d):
    a = chat(d, temperature=0).json()["choices"]
    assert a == chat(d, temperature=0).json()["choices"]


def test_p30_pairs_of_options(d):
    options = {"stream": True, "n": 3, "logprobs": 2, "stop": ["e"], "presence_penalty": 1, "seed": 4, "echo": True,
               "top_k": 5, "min_tokens": 2, "logit_bias": {"7": 3}, "ignore_eos": True, "return_token_ids": True}
    names = list(options)
    for i, a in enumerate(names):
        for b in names[i:]:
            r = raw_post(d, good_body(max_tokens=4, **{a: options[a], b: options[b]}))
            assert r.status_code == 200, (a, b, r.text)
            if "stream" in (a, b):
                assert r.text.rstrip().endswith("data: [DONE]") and '"error"' not in r.text


def test_l10_all_sequences_near_the_end_of_the_pool(launch, tiny_model):
    """More work than pages: everybody still gets an answer."""
    d = launch(model_config(tiny_model, "tiny", memory="4MiB"))
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        codes = list(pool.map(lambda i: httpx.post(d.url + "/v1/completions", timeout=120 * SLOW, json={
            "model": "tiny", "prompt": f"{i}", "max_tokens": 600, "ignore_eos": True}).status_code, range(24)))
    assert codes == [200] * 24
    d.settled()
    assert d.stop() == 0


# -- keys ------------------------------------------------------------------------------------------------

def test_h43_h44_keys(launch, tiny_model):
    key = "sk-0123456789abcdef"
    d = launch({**model_config(tiny_model, "tiny"), "tenants": [{"name": "a", "keys": [key]}]})
    get = lambda **h: httpx.get(d.url + "/v1/models", headers=h)
    assert get(Authorization=f"Bearer {key}").status_code == 200
    assert get(Authorization=f"bearer {key}").status_code == 200
    texts = set()
    for value in ("", "Bearer", "Basic " + key, f"Bearer {key}x", f"Bearer {key[:-1]}", key,
                  f"Bearer {key.upper()}", "Bearer " + "k" * 8000, f"Bearer  {key} {key}"):
        r = get(Authorization=value)
        assert r.status_code == 401, value
        assert r.headers["www-authenticate"].startswith("Bearer")
        assert r.json()["error"]["code"] == "invalid_api_key"
        texts.add(r.text)
    assert len(texts) == 1, "answers to bad keys differ"
    assert httpx.get(d.url + f"/v1/models?api_key={key}").status_code == 401
    for path in ("/health", "/ready", "/version"):
        assert httpx.get(d.url + path).status_code == 200
    for path in ("/metrics", "/debug/audit"):
        assert httpx.get(d.url + path).status_code == 401
    both, _, _ = talk(d, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
                         b"Authorization: Bearer %b\r\n\r\n" % (key.encode(), key.encode()))
    assert both[0] in (400, 401)
    assert key not in d.stderr()
    assert d.stop() == 0


# -- configuration -----------------------------------------------------------------------------------------

def config_rows(model):
    m = [{"name": "m", "path": model}]
    return {
        "C01 empty": "", "C01 not JSON": "{", "C01 BOM": "\ufeff{}", "C01 comment": "{} // x",
        "C02 unknown key": json.dumps({"modles": m}), "C03 duplicate key": '{"models": [], "models": []}',
        "C03 duplicate name": json.dumps({"models": m + m}), "C04 wrong type": json.dumps({"models": "x"}),
        "C04 unit": json.dumps({"models": m, "devices": [{"kind": "cpu", "memory": "10 bananas"}]}),
        "C04 range": json.dumps({"models": m, "limits": {"running_max": 0.5}}),
        "C05 directory": json.dumps({"models": [{"name": "m", "path": "/"}]}),
        "C05 missing": json.dumps({"models": [{"name": "m", "path": "nowhere.gguf"}]}),
        "C06 open without keys": json.dumps({"models": m, "listen": "0.0.0.0:0"}),
        "C07 address": json.dumps({"models": m, "listen": "no-port"}),
        "C07 port": json.dumps({"models": m, "listen": "127.0.0.1:99999"}),
        "C15 contradiction": json.dumps({"models": m, "limits": {"queue_timeout_ms": 1000, "total_timeout_ms": 10}}),
        "no models": json.dumps({}), "device": json.dumps({"models": m, "devices": [{"kind": "abacus"}]}),
        "tenant without keys": json.dumps({"models": m, "tenants": [{"name": "t"}]}),
        "same key twice": json.dumps({"models": m, "tenants": [{"name": "t", "keys": ["sk-aaaaaaaaaaaa"]},
                                                               {"name": "u", "keys": ["sk-aaaaaaaaaaaa"]}]}),
    }


def test_configurations_that_are_refused(tmp_path, tiny_model):
    import subprocess
    from conftest import BUILD
    for name, text in config_rows(tiny_model).items():
        f = tmp_path / "c.json"
        f.write_text(text)
        for command in (["check"], ["serve"]):
            r = subprocess.run([BUILD / "inferd", *command, "--config", f], capture_output=True, text=True,
                               timeout=30 * SLOW)
            assert r.returncode == 2, (name, command, r.returncode, r.stderr)
            assert "c.json" in r.stderr + r.stdout, (name, r.stderr)
            assert "sk-" not in r.stderr + r.stdout


# -- the machine ---------------------------------------------------------------------------------------------

def test_r03_descriptors_run_out(launch, tiny_model):
    """With few descriptors left the daemon refuses or waits, and serves again when some come back."""
    d = launch(model_config(tiny_model, "tiny"))
    used = d.n_fds()
    resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, (used + 8, used + 8))
    many = []
    for _ in range(60):
        s = socket.socket()
        s.setblocking(False)
        try:
            s.connect(("127.0.0.1", d.port))
        except BlockingIOError:
            pass
        many.append(s)
    time.sleep(0.5)
    for s in many:
        s.close()
    end = time.monotonic() + 20 * SLOW
    while True:
        try:
            if httpx.get(d.url + "/health", timeout=5).status_code == 200:
                break
        except httpx.HTTPError:
            pass
        assert time.monotonic() < end
    assert d.stop() == 0


def test_g13_second_daemon_on_the_same_port_says_so(launch, tiny_model, tmp_path):
    import subprocess
    from conftest import BUILD
    d = launch(model_config(tiny_model, "tiny"))
    r = subprocess.run([BUILD / "inferd", "serve", "--model", tiny_model, "--listen", f"127.0.0.1:{d.port}"],
                       capture_output=True, text=True, timeout=60 * SLOW)
    assert r.returncode != 0 and str(d.port) in r.stderr
    assert d.stop() == 0


def test_g01_g05_g07_g08_signals(launch, tiny_model):
    import signal
    d = launch(model_config(tiny_model, "tiny"))
    d.process.send_signal(signal.SIGPIPE)
    for _ in range(100):
        d.process.send_signal(signal.SIGHUP)
    d.process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    d.process.send_signal(signal.SIGCONT)
    assert d.http.get("/health").status_code == 200
    began = time.monotonic()
    assert d.stop(signal.SIGINT) == 0
    assert time.monotonic() - began < 3 * SLOW


def test_g09_killed_and_started_again(launch, tiny_model, tmp_path):
    import signal
    sock = tmp_path / "s"
    for _ in range(3):
        d = launch({**model_config(tiny_model, "tiny"), "listen": f"unix:{sock}"}, wait=None)
        end = time.monotonic() + 30 * SLOW
        while True:
            try:
                with httpx.Client(transport=httpx.HTTPTransport(uds=str(sock)), base_url="http://localhost") as c:
                    if c.get("/ready").status_code == 200:
                        break
            except httpx.HTTPError:
                pass
            assert time.monotonic() < end and d.alive(), d.stderr()
            time.sleep(0.02)
        d.process.send_signal(signal.SIGKILL)
        d.process.wait()
