/* test_http_guard.c - raw bytes in, status and fate of the connection out.
 *
 * The numbers are those of the catalogue of bad inputs: each row is something that a client, a
 * scanner or a smuggler sends.  What must hold in every row: no route runs for a message whose end
 * is in doubt, the connection is closed after it, and every answer, also those to what
 * libmicrohttpd would have answered by itself (with two header blocks and a page of HTML), is
 * well-formed and ours. */
#include "http_client.h"
#include "http_guard.h"

static reply r;

typedef struct row {
    const char *name;
    const char *bytes;
    size_t n; // 0: strlen
    int status;
    bool closed;
    uint32_t n_handled;
    const char *has; // in the answer, or NULL
    int then;        // the status of a second answer, or 0
} row;

#define BYTES(text) text, sizeof(text) - 1
#define GET         "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" AUTH
#define POST        "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n" AUTH
#define X16         "xxxxxxxxxxxxxxxx"
#define X64         X16 X16 X16 X16
#define HIDDEN      "GET /v1/models HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n"

/* -- the end of the message is in doubt -- */
static const row framing[] = {
    {"H01 length and chunks, a request hidden in the body",
     BYTES(POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN), 400,
     true, 0, "malformed_request"},
    {"H01 chunks and length", BYTES(POST "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n"),
     400, true, 0},
    {"H02 two lengths", BYTES(POST "Content-Length: 4\r\nContent-Length: 0\r\n\r\nabcd"), 400, true,
     0},
    {"H03 two equal lengths", BYTES(POST "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd"), 400,
     true, 0},
    {"H03 a list of lengths", BYTES(POST "Content-Length: 4, 4\r\n\r\nabcd"), 400, true, 0},
    {"H04 space before the colon", BYTES(POST "Content-Length : 4\r\n\r\nabcd" HIDDEN), 400, true,
     0, "malformed_request"},
    {"H04 tab before the colon", BYTES(POST "Content-Length\t: 4\r\n\r\nabcd"), 400, true, 0},
    {"H05 +4", BYTES(POST "Content-Length: +4\r\n\r\nabcd"), 400, true, 0},
    {"H05 -1", BYTES(POST "Content-Length: -1\r\n\r\nabcd"), 400, true, 0},
    {"H05 0x4", BYTES(POST "Content-Length: 0x4\r\n\r\nabcd"), 400, true, 0},
    {"H05 4 and a space", BYTES(POST "Content-Length: 4 \r\n\r\nabcd"), 400, true, 0},
    {"H05 empty", BYTES(POST "Content-Length: \r\n\r\nabcd"), 400, true, 0},
    {"H06 2^63", BYTES(POST "Content-Length: 9223372036854775808\r\n\r\n"), 413, true, 0},
    {"H06 2^64-1", BYTES(POST "Content-Length: 18446744073709551615\r\n\r\n"), 413, true, 0,
     "request_too_large"},
    {"H06 2^64", BYTES(POST "Content-Length: 18446744073709551616\r\n\r\n"), 413, true, 0},
    {"H06 thirty digits", BYTES(POST "Content-Length: 111111111122222222223333333333\r\n\r\n"), 413,
     true, 0},
    {"H07 gzip", BYTES(POST "Transfer-Encoding: gzip\r\n\r\n"), 400, true, 0},
    {"H07 chunked, identity", BYTES(POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
     400, true, 0},
    {"H07 identity, chunked", BYTES(POST "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"),
     400, true, 0},
    {"H07 xchunked", BYTES(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), 400, true, 0},
    {"H07 two encodings",
     BYTES(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400,
     true, 0},
    {"H07 a vertical tab",
     BYTES(POST "Transfer-Encoding: \x0b"
                "chunked\r\n\r\n0\r\n\r\n"),
     400, true, 0},
    {"H07 space before the colon", BYTES(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400,
     true, 0},
    {"H08 chunks on HTTP/1.0",
     BYTES("POST /v1/echo HTTP/1.0\r\n" AUTH "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400,
     true, 0},
    {"H09 no chunk size", BYTES(POST "Transfer-Encoding: chunked\r\n\r\n\r\nabc"), 400, true, 0},
    {"H09 chunk size -1", BYTES(POST "Transfer-Encoding: chunked\r\n\r\n-1\r\nabc"), 400, true, 0},
    {"H09 chunk size 0x10", BYTES(POST "Transfer-Encoding: chunked\r\n\r\n0x10\r\nabc"), 400, true,
     0},
    {"H09 chunk of seventeen digits",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\nabc"), 413, true, 0},
    {"H09 chunk size 2^64-1",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nabc"), 413, true, 0,
     "request_too_large"},
    {"H09 chunk size over the limit", BYTES(POST "Transfer-Encoding: chunked\r\n\r\n400001\r\n"),
     413, true, 0, "request_too_large"},
    {"H11 an extension without end",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n2;" X64 X64 X64 X64 "x"), 400, true, 0,
     "more than 256 bytes"},
    {"H12 bare LF behind a chunk size",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n"), 400, true, 0},
    {"H12 bare LF behind a chunk",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\n0\r\n\r\n"), 400, true, 0},
    {"H12 bare LF behind the last chunk",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\n\r\n"), 400, true, 0},
    {"H12 bare LF at the end of chunks",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\n"), 400, true, 0},
    {"H12 bare LF in a trailer", BYTES(POST "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n"),
     400, true, 0},
    {"H13 a trailer without a name",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-A: b\r\n: c\r\n\r\n" HIDDEN),
     400, true, 0, "malformed_request"},
    {"H12 no CRLF after a chunk",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabcXY0\r\n\r\n"), 400, true, 0},
    {"H16 more than the length says, and it is no request",
     BYTES(POST "Content-Length: 2\r\n\r\n{}xxxxxxxx\r\n\r\n"), 200, true, 1, NULL, 400},
    {"H21 TLS ClientHello", BYTES("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400,
     true, 0},
    {"H21 SSH", BYTES("SSH-2.0-OpenSSH_9.2\r\n\r\n"), 400, true, 0},
    {"H21 HTTP/2 preface", BYTES("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505, true, 0},
    {"H22 HTTP/0.9", BYTES("GET /health\r\n\r\n"), 400, true, 0},
    {"H22 HTTP/1.2", BYTES("GET /health HTTP/1.2\r\nHost: x\r\n\r\n"), 505, true, 0},
    {"H22 HTTP/2.0", BYTES("GET /health HTTP/2.0\r\nHost: x\r\n\r\n"), 505, true, 0},
    {"H22 HTTP/1.1x", BYTES("GET /health HTTP/1.1x\r\nHost: x\r\n\r\n"), 400, true, 0},
    {"H22 lower case", BYTES("GET /health http/1.1\r\nHost: x\r\n\r\n"), 400, true, 0},
    {"H23 no Host", BYTES("GET /health HTTP/1.1\r\n\r\n"), 400, true, 0},
    {"H23 two Hosts", BYTES("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400, true, 0},
    {"H23 empty Host", BYTES("GET /health HTTP/1.1\r\nHost:\r\n\r\n"), 400, true, 0},
    {"H23 Host with a query", BYTES("GET /health HTTP/1.1\r\nHost: a/?x=\r\n\r\n"), 400, true, 0},
    {"H23 Host with @", BYTES("GET /health HTTP/1.1\r\nHost: a@b\r\n\r\n"), 400, true, 0},
    {"H23 Host with #", BYTES("GET /health HTTP/1.1\r\nHost: a#b\r\n\r\n"), 400, true, 0},
    {"H23 Host with a space", BYTES("GET /health HTTP/1.1\r\nHost: a b\r\n\r\n"), 400, true, 0},
    {"H23 Host with a bad port", BYTES("GET /health HTTP/1.1\r\nHost: a:8a\r\n\r\n"), 400, true, 0},
    {"H24 absolute form", BYTES("GET http://x/health HTTP/1.1\r\nHost: x\r\n\r\n"), 400, true, 0},
    {"H24 authority form", BYTES("CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"), 400, true, 0},
    {"H29 a folded header", BYTES("GET /health HTTP/1.1\r\nHost: x\r\nX-A: ab\r\n cd\r\n\r\n"), 400,
     true, 0},
    {"H29 a fold that makes a second Host",
     BYTES("GET /health HTTP/1.1\r\nHost: x\r\nHo: ab\r\n st\r\n\r\n"), 400, true, 0},
    {"H12 bare LF", BYTES("GET /health HTTP/1.1\nHost: x\n\n"), 400, true, 0},
    {"H12 one bare LF", BYTES("GET /health HTTP/1.1\r\nHost: x\nX-A: b\r\n\r\n"), 400, true, 0},
    {"H12 bare LF at the end", BYTES("GET /health HTTP/1.1\r\nHost: x\r\n\n"), 400, true, 0},
    {"H12 bare CR", BYTES("GET /health HTTP/1.1\r\nHost: x\rX-A: b\r\n\r\n"), 400, true, 0},
    {"H30 ESC in a value", BYTES("GET /health HTTP/1.1\r\nHost: x\r\nX-A: \x1b[2J\r\n\r\n"), 400,
     true, 0},
    {"H30 high bytes in a value", BYTES("GET /health HTTP/1.1\r\nHost: x\r\nX-A: \xff\xfe\r\n\r\n"),
     200, false, 1},
    {"H30 NUL in a value",
     BYTES("GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " GOOD_KEY "\0x\r\n\r\n"),
     400, true, 0},
    {"H30 NUL in a name", BYTES("GET /health HTTP/1.1\r\nHost: x\r\nX\0-A: b\r\n\r\n"), 400, true,
     0},
    {"H30 NUL in the method", BYTES("GET\0\0 /health HTTP/1.1\r\nHost: x\r\n\r\n"), 400, true, 0},
    {"H30 NUL in the path", BYTES("GET /health\0/x HTTP/1.1\r\nHost: x\r\n\r\n"), 400, true, 0},
    {"H30 NUL in the query", BYTES("GET /health?a\0=b HTTP/1.1\r\nHost: x\r\n\r\n"), 400, true, 0},
    {"two spaces in the request line", BYTES("GET  /health HTTP/1.1\r\nHost: x\r\n\r\n"), 400, true,
     0},
    {"H30 NUL in the version", BYTES("GET /health HTTP/1.1\0\r\nHost: x\r\n\r\n"), 400, true, 0},
    {"H31 an empty name ends the block for the library, and hides a length",
     BYTES("POST /v1/echo HTTP/1.1\r\nHost: x\r\n" AUTH ": a\r\nContent-Length: 40\r\n\r\n" HIDDEN),
     400, true, 0},
    {"H31 an empty name without a value",
     BYTES("POST /v1/echo HTTP/1.1\r\nHost: x\r\n" AUTH ":\r\n" HIDDEN), 400, true, 0},
    {"H31 empty name", BYTES("GET /health HTTP/1.1\r\nHost: x\r\n: a\r\n\r\n"), 400, true, 0},
    {"H31 no colon", BYTES("GET /health HTTP/1.1\r\nHost: x\r\nabc\r\n\r\n"), 400, true, 0},
    {"H31 a name of spaces", BYTES("GET /health HTTP/1.1\r\nHost: x\r\nX Y: a\r\n\r\n"), 400, true,
     0},
    {"H38 another expectation", BYTES(POST "Expect: something\r\nContent-Length: 2\r\n\r\n{}"), 417,
     true, 0, "expectation_failed"},
    {"H43 two Authorizations", BYTES(GET AUTH "\r\n"), 400, true, 0},
};

/* -- routes and methods -- */
static const row routes[] = {
    {"a route", BYTES("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200, false, 1},
    {"a query is not part of it", BYTES("GET /health?a=b&/c HTTP/1.1\r\nHost: x\r\n\r\n"), 200,
     false, 1},
    {"nor are many parameters", BYTES("GET /health?a=b&&c==d&%00&e HTTP/1.1\r\nHost: x\r\n\r\n"),
     200, false, 1},
    {"HEAD has no body", BYTES("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200, false, 1},
    {"HTTP/1.0 needs no Host and closes", BYTES("GET /health HTTP/1.0\r\n\r\n"), 200, true, 1},
    {"one more segment", BYTES("GET /v1/models/small HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n"), 200,
     false, 1, "\r\n\r\nsmall"},
    {"a segment may hold an escaped slash",
     BYTES("GET /v1/models/org%2Fsmall HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n"), 200, false, 1,
     "\r\n\r\norg/small"},
    {"H26 %00 in a segment", BYTES("GET /v1/models/a%00b HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n"), 404,
     false, 0, "unknown_url"},
    {"H26 %00", BYTES("GET /health%00 HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0},
    {"H26 encoded letters", BYTES("GET /%68ealth HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0},
    {"H26 dots", BYTES("GET /v1/%2e%2e%2fhealth HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0},
    {"H26 dots unescaped", BYTES("GET /v1/../health HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0},
    {"H26 double slashes", BYTES("GET //health HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0},
    {"H26 slash at the end", BYTES("GET /health/ HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0},
    {"H26 empty segment", BYTES("GET /v1/models/ HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n"), 404, false,
     0},
    {"H26 two segments", BYTES("GET /v1/models/a/b HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n"), 404,
     false, 0},
    {"H26 ;x", BYTES("GET /health;x HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0},
    {"H26 %zz", BYTES("GET /v1/models/%zz HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n"), 404, false, 0},
    {"H26 overlong UTF-8", BYTES("GET /health\xc0\xaf HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0},
    {"H39 TRACE", BYTES("TRACE /health HTTP/1.1\r\nHost: x\r\n\r\n"), 405, false, 0,
     "\r\nAllow: GET, HEAD\r\n"},
    {"H39 OPTIONS", BYTES("OPTIONS /v1/echo HTTP/1.1\r\nHost: x\r\n\r\n"), 405, false, 0,
     "\r\nAllow: POST\r\n"},
    {"H39 OPTIONS *", BYTES("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"), 405, false, 0, "\r\nAllow: "},
    {"H39 an unknown method", BYTES("BREW /health HTTP/1.1\r\nHost: x\r\n\r\n"), 405, false, 0},
    {"H39 lower case", BYTES("get /health HTTP/1.1\r\nHost: x\r\n\r\n"), 405, false, 0},
    {"wrong method", BYTES("POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"), 405,
     true, 0, "method_not_allowed"},
    {"unknown path", BYTES("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false, 0,
     "{\"error\":{\"message\":\"There is nothing at "
     "/nothing.\",\"type\":\"invalid_request_error\","
     "\"param\":null,\"code\":\"unknown_url\"}}"},
    {"unknown path before the key", BYTES("POST /nothing HTTP/1.1\r\nHost: x\r\n\r\n"), 404, false,
     0},
};

/* -- keys: every kind of bad key gets the same answer -- */
#define KEYED(value) BYTES("GET /v1/models HTTP/1.1\r\nHost: x\r\n" value "\r\n")
#define BAD_KEY      401, false, 0, "\r\nWWW-Authenticate: Bearer\r\n"
static const row keys[] = {
    {"the key", KEYED(AUTH), 200, false, 1},
    {"H43 the scheme has no case", KEYED("Authorization: bEARER " GOOD_KEY "\r\n"), 200, false, 1},
    {"H43 missing", KEYED(""), BAD_KEY},
    {"H43 empty", KEYED("Authorization: \r\n"), BAD_KEY},
    {"H43 empty token", KEYED("Authorization: Bearer \r\n"), BAD_KEY},
    {"H43 Basic", KEYED("Authorization: Basic " GOOD_KEY "\r\n"), BAD_KEY},
    {"H43 no scheme", KEYED("Authorization: " GOOD_KEY "\r\n"), BAD_KEY},
    {"H43 wrong", KEYED("Authorization: Bearer test-key-0123456788\r\n"), BAD_KEY},
    {"H43 a prefix", KEYED("Authorization: Bearer test-key-012345678\r\n"), BAD_KEY},
    {"H43 longer", KEYED("Authorization: Bearer " GOOD_KEY "0\r\n"), BAD_KEY},
    {"H43 two spaces", KEYED("Authorization: Bearer  " GOOD_KEY "\r\n"), BAD_KEY},
    {"H44 in the query",
     BYTES("GET /v1/models?api_key=" GOOD_KEY "&access_token=" GOOD_KEY
           " HTTP/1.1\r\nHost: x\r\n\r\n"),
     BAD_KEY},
    {"H44 in another header", KEYED("x-key: " GOOD_KEY "\r\n"), BAD_KEY},
    {"as Anthropic's clients send it", KEYED("X-Api-Key: " GOOD_KEY "\r\n"), 200, false, 1},
    {"x-api-key is wrong", KEYED("x-api-key: " GOOD_KEY "0\r\n"), BAD_KEY},
    {"x-api-key twice", KEYED("x-api-key: " GOOD_KEY "\r\nx-api-key: " GOOD_KEY "\r\n"), BAD_KEY},
    {"two keys: Authorization counts", KEYED(AUTH "x-api-key: wrong\r\n"), 200, false, 1},
    {"two keys: Authorization is wrong",
     KEYED("Authorization: Bearer wrong\r\nx-api-key: " GOOD_KEY "\r\n"), BAD_KEY},
    {"no key needed", BYTES("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200, false, 1},
};

/* -- bodies -- */
static const row bodies[] = {
    {"no content type", BYTES(POST "Content-Length: 2\r\n\r\n{}"), 200, false, 1},
    {"json", BYTES(POST "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"), 200,
     false, 1},
    {"json in utf-8",
     BYTES(POST "Content-Type: Application/JSON; charset=UTF-8\r\nContent-Length: 2\r\n\r\n{}"),
     200, false, 1},
    {"H40 POST without a body", BYTES(POST "\r\n"), 200, false, 1},
    {"H40 GET with a body", BYTES(GET "Content-Length: 3\r\n\r\nabc"), 200, false, 1},
    {"H40 GET with a large body", BYTES(GET "Content-Length: 100000\r\n\r\n"), 413, true, 0},
    {"H41 utf-16",
     BYTES(POST "Content-Type: application/json; charset=utf-16\r\nContent-Length: 2\r\n\r\n{}"),
     415, true, 0, "unsupported_media_type"},
    {"H41 form data",
     BYTES(POST "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 2\r\n\r\n{}"),
     415, true, 0},
    {"H41 urlencoded",
     BYTES(POST "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n\r\n{}"),
     415, true, 0},
    {"H41 text", BYTES(POST "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}"), 415, true,
     0},
    {"H41 nearly json",
     BYTES(POST "Content-Type: application/jsonp\r\nContent-Length: 2\r\n\r\n{}"), 415, true, 0},
    {"H41 two types",
     BYTES(POST "Content-Type: application/json\r\nContent-Type: text/plain\r\nContent-Length: "
                "2\r\n\r\n{}"),
     400, true, 0},
    {"H42 gzip", BYTES(POST "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"), 415, true, 0},
    {"identity", BYTES(POST "Content-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}"), 200,
     false, 1},
    {"too large", BYTES(POST "Content-Length: 4194305\r\n\r\n"), 413, true, 0, "request_too_large"},
    {"a key comes before its size",
     BYTES("POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4194305\r\n\r\n"), 401, true, 0},
    {"a key comes before its type",
     BYTES("POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: "
           "2\r\n\r\n{}"),
     401, true, 0},
    {"H37 continue", BYTES(POST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"), 100, false,
     1, NULL, 200},
    {"H37 no continue without a body", BYTES(GET "Expect: 100-continue\r\n\r\n" HIDDEN), 200, false,
     2, NULL, 200},
    {"H37 nor with an empty one", BYTES(POST "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n"),
     200, false, 1},
    {"H37 no continue with a bad key",
     BYTES(
         "POST /v1/echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"),
     401, true, 0},
    {"H37 no continue when too large",
     BYTES(POST "Expect: 100-continue\r\nContent-Length: 4194305\r\n\r\n"), 413, true, 0},
    {"H13 trailers are ignored",
     BYTES("POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" AUTH
           "\r\n"),
     401, true, 0},
    {"H13 trailers and extensions are left away, and the next request is read",
     BYTES(POST "Transfer-Encoding: chunked\r\n\r\n2;a=b;c\r\n{}\r\n0;d\r\nX-A: b\r\n"
                "Content-Length: 99\r\n\r\n" HIDDEN),
     200, false, 2, "\r\n\r\n{}", 200},
    {"an empty line behind a body", BYTES(POST "Content-Length: 2\r\n\r\n{}\r\n" HIDDEN), 200,
     false, 2, NULL, 200},
    {"H45 forwarded headers are ignored",
     BYTES(GET "X-Forwarded-For: , ,\r\nForwarded: for=;;\r\nX-Real-IP: 127.0.0.1\r\n\r\n"), 200,
     false, 1},
    {"H46 ranges and conditions are ignored",
     BYTES(GET "Range: bytes=0-0\r\nIf-None-Match: *\r\nConnection: close, keep-alive\r\n\r\n"),
     200, true, 1},
    {"H47 the id is ours", BYTES(GET "x-request-id: mine\r\n\r\n"), 200, false, 1,
     "\r\nx-request-id: req-"},
};

/* The ways in which the bytes of a row come. */
typedef enum way {
    WAY_AT_ONCE,
    WAY_BYTE_BY_BYTE,
    WAY_BEHIND_A_REQUEST, // in one write with a good one before
    WAY_ON_A_KEPT_CONNECTION,
    N_WAYS
} way;

#define FIRST "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

static int client_in_way(const row *w, way how) {
    static char text[16 * 1024];
    int fd = client_connect();
    size_t piece = how == WAY_BYTE_BY_BYTE ? 1 : sizeof text, n = 0;
    if (how == WAY_ON_A_KEPT_CONNECTION) get_and_expect(fd, &r, 200);
    if (how == WAY_BEHIND_A_REQUEST) n = (size_t)sprintf(text, FIRST);
    EXPECT(n + w->n <= sizeof text);
    memcpy(text + n, w->bytes, w->n);
    n += w->n;
    seen.n_handled = 0;
    for (size_t at = 0; at < n; at += piece)
        if (!client_send(fd, text + at, size_min(piece, n - at))) break; // it was refused early
    return fd;
}

static void expect_answers(const row *w, way how) {
    int statuses[4] = {0}, expected[4], n = 0;
    if (how == WAY_BEHIND_A_REQUEST) expected[n++] = 200;
    expected[n++] = w->status;
    if (w->then != 0) expected[n++] = w->then;
    if (strncmp(w->bytes, "HEAD", 4) == 0) {
        size_t at = how == WAY_BEHIND_A_REQUEST ? answer_read(r.text, r.n, false, false).n : 0;
        answer a = answer_read(r.text + at, r.n - at, true, false);
        EXPECT(a.wrong == NULL && a.whole && at + a.n == r.n);
        EXPECT_EQ(a.status, w->status);
        return;
    }
    EXPECT_EQ(reply_statuses(&r, statuses, 4), n);
    for (int i = 0; i < n; i++) EXPECT_EQ(statuses[i], expected[i]);
}

static void run(const row *rows, size_t n, const char *listen) {
    http_options o = toy_options();
    o.listen = listen;
    start(&o);
    for (size_t i = 0; i < n * N_WAYS; i++) {
        const row *w = &rows[i / N_WAYS];
        way how = (way)(i % N_WAYS);
        int before = test_failures, fd = client_in_way(w, how);
        client_read_all(fd, &r, w->closed ? 0 : 10, 2000);
        expect_answers(w, how);
        EXPECT_EQ(r.closed, w->closed);
        EXPECT_EQ(seen.n_handled, w->n_handled + (how == WAY_BEHIND_A_REQUEST));
        EXPECT(!r.reset);
        if (w->has != NULL) EXPECT(reply_has(&r, w->has));
        if (w->status >= 400 && w->status < 500) EXPECT(!reply_has(&r, "x-should-retry"));
        if (test_failures != before)
            printf("  in row \"%s\", way %d:\n%.900s\n", w->name, how, r.text);
        close(fd);
    }
    iterate_for(5);
    EXPECT_EQ(http_n_open(server), 0);
    stop();
}

/* Over TCP and over a socket file. */
static void run_both(const row *rows, size_t n) {
    char folder[] = "/tmp/inferd-test-XXXXXX", listen[80];
    run(rows, n, "127.0.0.1:0");
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(listen, sizeof listen, "unix:%s/s", folder);
    run(rows, n, listen);
    rmdir(folder);
}

static void doubtful_framing_is_refused_and_closed(void) {
    run_both(framing, INFERD_COUNT(framing));
}
static void routes_match_the_raw_path(void) {
    run_both(routes, INFERD_COUNT(routes));
}
static void every_bad_key_gets_the_same_answer(void) {
    run_both(keys, INFERD_COUNT(keys));
}
static void bodies_are_checked_before_they_are_read(void) {
    run_both(bodies, INFERD_COUNT(bodies));
}

/* Without keys the daemon is for this machine only: a web page that resolves its own name to
 * 127.0.0.1, or posts across origins, is not on this machine. */
static void keyless_serves_loopback_names_only(void) {
    static const struct {
        const char *host, *origin;
        bool served;
    } tries[] = {
        {"localhost", NULL, true},
        {"LocalHost:8080", NULL, true},
        {"127.0.0.1:8080", NULL, true},
        {"127.8.9.1", NULL, true},
        {"[::1]:8080", NULL, true},
        {"a.localhost", NULL, true},
        {"evil.example", NULL, false},
        {"localhost.evil.example", NULL, false},
        {"127.0.0.1.evil.example", NULL, false},
        {"127.evil", NULL, false},
        {"192.168.0.1", NULL, false},
        {"[::2]", NULL, false},
        {"localhost", "http://localhost:8080", true},
        {"localhost", "https://127.0.0.1", true},
        {"localhost", "http://evil.example", false},
        {"localhost", "null", false},
        {"localhost", "http://", false},
        {"localhost", "http://localhost.evil.example", false},
        {"localhost", "http://localhost/", false},
    };
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        guard g;
        guard_refusal why = {0};
        guard_init(&g, "GET", "/", "HTTP/1.1");
        guard_header(&g, (bytes){"Host", 4}, (bytes){tries[i].host, strlen(tries[i].host)});
        if (tries[i].origin != NULL)
            guard_header(&g, (bytes){"Origin", 6},
                         (bytes){tries[i].origin, strlen(tries[i].origin)});
        EXPECT(guard_framing(&g, &why));
        guard_origin(&g, NULL, NULL);
        EXPECT_EQ(guard_host(&g, true, &why), tries[i].served);
        if (!tries[i].served) EXPECT_EQ(why.status, 403);
        EXPECT(guard_host(&g, false, &why)); // keys make the difference
    }
}

/* A socket of administrators may be forwarded to a port beside a browser. */
static void a_trusted_socket_serves_its_own_page_only(void) {
    static const struct {
        const char *host, *origin;
        bool served;
        const char *fetch_site;
    } tries[] = {
        {"localhost", NULL, true},
        {"localhost:8081", NULL, true, "same-origin"},
        {"localhost:8081", NULL, true, "none"},        // typed into the address bar
        {"localhost:8081", NULL, false, "cross-site"}, // a picture of another page
        {"localhost:8081", NULL, false, "same-site"},
        {"localhost:8081", "http://localhost:8081", false, "cross-site"},
        {"localhost:8081", "http://localhost:8081", true},
        {"LOCALHOST:8081", "http://localhost:8081", true},
        {"127.0.0.1:8081", "http://127.0.0.1:8081", true},
        {"[::1]:8081", "http://[::1]:8081", true},
        {"box", NULL, true},
        {"10.0.0.7:8081", NULL, true},
        {"localhost:8081", "http://localhost:3000", false}, // another page of this machine
        {"localhost:8081", "http://localhost", false},
        {"localhost:8081", "https://localhost:8081", false},
        {"localhost:8081", "http://evil.example", false},
        {"localhost:8081", "null", false},
        {"localhost:8081", "", false},
        {"evil.example:8081", NULL, false}, // a name that leads to this port
        {"evil.example:8081", "http://evil.example:8081", false},
        {"localhost.evil.example", NULL, false},
        {"127.evil", NULL, false},
    };
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        guard g;
        guard_refusal why = {0};
        guard_init(&g, "POST", "/admin/models/a/unload", "HTTP/1.1");
        guard_header(&g, (bytes){"Host", 4}, (bytes){tries[i].host, strlen(tries[i].host)});
        if (tries[i].origin != NULL)
            guard_header(&g, (bytes){"Origin", 6},
                         (bytes){tries[i].origin, strlen(tries[i].origin)});
        if (tries[i].fetch_site != NULL)
            guard_header(&g, (bytes){"Sec-Fetch-Site", 14},
                         (bytes){tries[i].fetch_site, strlen(tries[i].fetch_site)});
        EXPECT(guard_framing(&g, &why));
        EXPECT_EQ(guard_socket(&g, &why), tries[i].served);
        if (!tries[i].served) EXPECT_EQ(why.status, 403);
    }
}

static void timeout_hints_are_read_or_ignored(void) {
    static const struct {
        const char *name, *value;
        double seconds;
    } tries[] = {
        {"X-Stainless-Timeout", "600", 600},
        {"x-stainless-read-timeout", "59.5", 59.5},
        {"x-stainless-timeout", "-1", 0},
        {"x-stainless-timeout", "1e9", 0},
        {"x-stainless-timeout", "", 0},
        {"x-stainless-timeout", "not-given", 0},
        {"x-stainless-timeout", "9999999", 0},
        {"x-stainless-timeout", ".5", 0},
        {"x-timeout", "5", 0},
    };
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        guard g;
        guard_init(&g, "GET", "/", "HTTP/1.1");
        guard_header(&g, (bytes){tries[i].name, strlen(tries[i].name)},
                     (bytes){tries[i].value, strlen(tries[i].value)});
        EXPECT_NEAR(g.timeout_s, tries[i].seconds, 1e-9);
    }
}

static void tails_are_bounded(void) {
    static const http_route one = {"/m/*", HTTP_GET, HTTP_OPEN, false, false, NULL};
    char target[1024] = "/m/";
    guard_refusal why;
    guard g;
    memset(target + 3, 'a', 255);
    guard_init(&g, "GET", target, "HTTP/1.1");
    EXPECT(guard_route(&g, &one, 1, &why));
    EXPECT_EQ(strlen(g.tail), 255);
    target[3 + 255] = 'a';
    guard_init(&g, "GET", target, "HTTP/1.1");
    EXPECT(!guard_route(&g, &one, 1, &why));
    EXPECT_EQ(why.status, 404);
    guard_init(&g, "GET", "/m/%", "HTTP/1.1");
    EXPECT(!guard_route(&g, &one, 1, &why));
    guard_init(&g, "GET", "/m/%4", "HTTP/1.1");
    EXPECT(!guard_route(&g, &one, 1, &why));
    guard_init(&g, "GET", "/m/%41%7a", "HTTP/1.1");
    EXPECT(guard_route(&g, &one, 1, &why));
    EXPECT_STR(g.tail, "Az");
}

/* Refused when the bound is passed, with the rest still on its way: the sender reads the answer. */
static void long_lines_are_refused_at_once(void) {
    http_options o = toy_options();
    static char text[80 * 1024];
    o.limits.header_timeout_ms = 60000; // not by a deadline
    start(&o);
    for (int kind = 0; kind < 8; kind++) {
        bool ends = kind < 4; // or the sender waits for an answer
        size_t n = 0;
        if (kind % 4 == 0) { // H25: the target
            n = (size_t)sprintf(text, "GET /");
            memset(text + n, 'a', 70000), n += 70000;
            if (ends) n += (size_t)sprintf(text + n, " HTTP/1.1\r\nHost: x\r\n\r\n");
        } else if (kind % 4 == 1) { // H28: a value
            n = (size_t)sprintf(text, "GET /health HTTP/1.1\r\nHost: x\r\nX-A: ");
            memset(text + n, 'a', 64000), n += 64000;
            if (ends) n += (size_t)sprintf(text + n, "\r\n\r\n");
        } else if (kind % 4 == 2) { // H28: five thousand headers
            n = (size_t)sprintf(text, "GET /health HTTP/1.1\r\nHost: x\r\n");
            for (int i = 0; i < 5000; i++) n += (size_t)sprintf(text + n, "A: b\r\n");
            if (ends) n += (size_t)sprintf(text + n, "\r\n");
        } else { // a few more headers than are sensible, in few bytes
            n = (size_t)sprintf(text, "GET /health HTTP/1.1\r\nHost: x\r\n");
            for (int i = 0; i < 105; i++) n += (size_t)sprintf(text + n, "A: b\r\n");
            if (ends) n += (size_t)sprintf(text + n, "\r\n");
        }
        int fd = client_connect(), status = 0;
        client_send(fd, text, n);
        client_read_all(fd, &r, 0, 5000);
        EXPECT_EQ(reply_statuses(&r, &status, 1), 1);
        EXPECT_EQ(status, kind % 4 == 0 ? 414 : 431);
        EXPECT(r.closed && !r.reset);
        EXPECT(reply_has(&r, "request_too_large"));
        EXPECT_EQ(seen.n_handled, 0);
        close(fd);
    }
    stop();
}

/* A browser on this machine sends the cookies of every other server here.  The library keeps a copy
 * and a record of each, for which its buffer had no room; nothing here reads them. */
static void cookies_are_left_away(void) {
    http_options o = toy_options();
    static char text[16 * 1024];
    start(&o);
    int fd = client_connect();
    for (int kind = 0; kind < 3; kind++) {
        size_t n = (size_t)sprintf(text, "GET /health HTTP/1.1\r\nHost: x\r\nCookie: ");
        for (int i = 0; i < 15000; i++) text[n++] = kind == 0 ? 'a' : "a=b;"[i % 4];
        n += (size_t)sprintf(text + n, "\r\nCOOKIE: c\r\n\r\n");
        client_send(fd, text, n);
        client_read(fd, &r, 2000);
        EXPECT_EQ(reply_status(&r), 200);
        EXPECT(!r.closed);
    }
    close(fd);
    stop();
}

/* Long ones that make the library move its buffer, ones that come byte by byte, and ones behind
 * another request. */
static void honest_blocks_pass_however_they_come(void) {
    http_options o = toy_options();
    static char text[32 * 1024];
    start(&o);
    for (int n_headers = 0; n_headers <= 95; n_headers += 5) {
        size_t n = (size_t)sprintf(text, "GET /v1/models/a?b=c HTTP/1.1\r\nHost: x\r\n" AUTH
                                         "Cookie: a=b; c=d\r\nX-Empty:\r\nX-Tab:\t \tv \r\n");
        for (int i = 0; i < n_headers; i++)
            n += (size_t)sprintf(text + n, "X-Header-%d: %0*d\r\n", i, i % 7 == 0 ? 600 : 60, i);
        n += (size_t)sprintf(text + n, "\r\n");
        size_t pieces[] = {n, 1000, 100, 1};
        int fd = client_connect();
        for (size_t p = 0; p < INFERD_COUNT(pieces); p++) {
            if (pieces[p] == 1 && n_headers > 16) continue;
            for (size_t at = 0; at < n; at += pieces[p])
                client_send(fd, text + at, size_min(pieces[p], n - at));
            client_read(fd, &r, 1000);
            EXPECT_EQ(reply_status(&r), n <= 16384 ? 200 : 431);
            if (r.closed) break;
        }
        close(fd);
    }
    stop();
}

/* A request whose head has as many headers and arguments as are allowed. */
typedef struct fullest {
    size_t limit;                                                  // of its head,
    enum { FILL_NOTHING, FILL_TARGET, FILL_HEADER, N_FILLS } fill; // and what reaches it
    bool chunked;
    size_t n_body;
} fullest;

static size_t fill(char *text, char c, size_t n) {
    memset(text, c, n);
    return n;
}

/* Returns the bytes of the head. */
static size_t write_fullest_head(char *text, const fullest *f) {
    static const char end[] = "c:\r\n\r\n";
    enum { N_OTHERS = 5 }; // Host, Connection, Authorization, of the body, c
    char headers[1024], of_body[64] = "Transfer-Encoding: chunked\r\n";
    if (!f->chunked) sprintf(of_body, "Content-Length: %zu\r\n", f->n_body);
    size_t n_headers = (size_t)sprintf(
        headers, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" AUTH "%s", of_body);
    for (int i = N_OTHERS; i < GUARD_HEADERS_MAX; i++)
        n_headers += (size_t)sprintf(headers + n_headers, "a:\r\n");
    size_t n = (size_t)sprintf(text, "POST /v1/big?");
    n += fill(text + n, '&', GUARD_ARGUMENTS_MAX - 1);
    size_t n_more = f->limit - n - 1 - n_headers - strlen(end);
    n += fill(text + n, 'b', 1 + (f->fill == FILL_TARGET ? n_more : 0));
    memcpy(text + n, headers, n_headers);
    n += n_headers;
    n += (size_t)sprintf(text + n, "c:");
    n += fill(text + n, 'z', f->fill == FILL_HEADER ? n_more : 0);
    return n + (size_t)sprintf(text + n, "%s", end + 2);
}

static size_t write_blank_body(char *text, const fullest *f) {
    size_t n = f->chunked ? (size_t)sprintf(text, "%zx\r\n", f->n_body) : 0;
    n += fill(text + n, ' ', f->n_body);
    return f->chunked ? n + (size_t)sprintf(text + n, "\r\n0\r\n\r\n") : n;
}

static void expect_fullest_passes(char *text, const fullest *f, way how) {
    enum { SLOW_BYTES = 16 * 1024, PIECE_BYTES = 4093, OF_BODY = 30 };
    int before = test_failures, fd = client_connect(), statuses[3];
    size_t at = 0, n = how == WAY_BEHIND_A_REQUEST ? (size_t)sprintf(text, FIRST) : 0;
    size_t n_head = write_fullest_head(text + n, f);
    EXPECT(f->fill == FILL_NOTHING ? n_head < f->limit : n_head == f->limit);
    n += n_head;
    size_t piece = f->limit > SLOW_BYTES ? PIECE_BYTES : 1, cut_until = n + OF_BODY;
    n += write_blank_body(text + n, f);
    for (; how == WAY_BYTE_BY_BYTE && at < cut_until; at += piece)
        EXPECT(client_send(fd, text + at, piece));
    EXPECT(client_send(fd, text + at, n - at));
    client_read_all(fd, &r, 0, 5000);
    int n_answers = reply_statuses(&r, statuses, 3);
    EXPECT_EQ(n_answers, how == WAY_BEHIND_A_REQUEST ? 2 : 1);
    EXPECT(n_answers > 0 && statuses[n_answers - 1] == 200);
    EXPECT(r.closed && !r.reset);
    if (test_failures != before)
        printf("  header_bytes_max %zu, fill %d, chunked %d, way %d\n", f->limit, (int)f->fill,
               f->chunked, (int)how);
    close(fd);
}

static void add_long_line(void *ctx, const http_request *rq, char out[HTTP_LINES_BYTES]) {
    (void)ctx, (void)rq;
    snprintf(out, HTTP_LINES_BYTES, "x-long: %0*d\n", HTTP_LINES_BYTES - 10, 0);
}

/* The library keeps its records of headers and arguments in the memory that body bytes behind the
 * head had already taken: the API or a page of HTML of the library answered the same request, as
 * its packets were cut.  Each head that the limits allow has room, and so has its answer. */
static void every_head_has_room_however_it_is_cut(void) {
    static const struct {
        size_t limit, n_body; // more than the library's pool
    } rows[] = {{4096, 40000}, {5000, 40000}, {16 * 1024, 70000}, {1024 * 1024, 1500000}};
    char *text = malloc(4 * 1024 * 1024);
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        http_options o = toy_options();
        o.limits.header_bytes_max = (uint32_t)rows[i].limit;
        o.limits.header_timeout_ms = o.limits.body_timeout_ms = 60000;
        o.reply_lines = add_long_line;
        start(&o);
        for (int k = 0; k < N_FILLS * 2; k++) {
            fullest f = {rows[i].limit, (unsigned)k / 2, k % 2 == 0, rows[i].n_body};
            expect_fullest_passes(text, &f, WAY_AT_ONCE);
            expect_fullest_passes(text, &f, WAY_BYTE_BY_BYTE);
            expect_fullest_passes(text, &f, WAY_BEHIND_A_REQUEST);
        }
        stop();
    }
    free(text);
}

/* H33: in order, and the first bad one ends it. */
static void pipelined_requests_are_answered_in_order(void) {
    http_options o = toy_options();
    static char text[16 * 1024];
    size_t n = 0;
    int n_ok = 0;
    start(&o);
    for (int i = 0; i < 100; i++)
        n += (size_t)sprintf(text + n, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n",
                             i == 60 ? "a b" : "x");
    int fd = client_connect();
    client_send(fd, text, n);
    r.n = 0, r.closed = r.reset = false;
    for (int i = 0; i < 500 && !r.closed; i++) {
        iterate_for(1);
        client_read_some(fd, &r);
    }
    for (char *p = r.text; (p = strstr(p, "HTTP/1.1 200 OK")) != NULL; p++) n_ok++;
    EXPECT_EQ(n_ok, 60);
    EXPECT(reply_has(&r, "HTTP/1.1 400 Bad Request"));
    EXPECT(r.closed);
    EXPECT_EQ(seen.n_handled, 60);
    close(fd);
    stop();
}

static uint32_t n_ticks;
static void on_tick(uv_timer_t *t) {
    (void)t;
    n_ticks++;
}

/* The answer behind another one came 100 ms late, with the next event of any kind: the connection
 * to be read again was marked when the loop was about to sleep. */
static void no_answer_waits_for_another_event(void) {
    static const char *const texts[] = {
        FIRST FIRST FIRST, FIRST POST "Content-Length: 2\r\n\r\n{}" FIRST,
        FIRST POST "Transfer-Encoding: chunked\r\n\r\n\r\n",
        FIRST POST "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nz\n", FIRST "GET /\n"};
    http_options o = toy_options();
    uv_timer_t tick;
    start(&o);
    uv_timer_init(&loop, &tick);
    uv_timer_start(&tick, on_tick, 5000, 5000); // keeps a turn from waiting for ever
    n_ticks = 0;
    for (size_t i = 0; i < INFERD_COUNT(texts); i++) {
        int fd = client_connect(), statuses[4];
        for (int k = 0; k < 3; k++) uv_run(&loop, UV_RUN_NOWAIT);
        EXPECT_EQ(send(fd, texts[i], strlen(texts[i]), MSG_NOSIGNAL), (ssize_t)strlen(texts[i]));
        r.n = 0, r.closed = r.reset = false;
        int wanted = i == 2 || i == 4 ? 2 : 3, n = 0;
        while (n < wanted && n_ticks == 0) {
            uv_run(&loop, UV_RUN_ONCE);
            client_read_some(fd, &r);
            n = 0;
            for (const char *p = r.text; (p = strstr(p, "HTTP/1.1 ")) != NULL; p++) n++;
        }
        EXPECT_EQ(n_ticks, 0);
        EXPECT_EQ(reply_statuses(&r, statuses, 4), wanted);
        close(fd);
    }
    uv_close((uv_handle_t *)&tick, NULL);
    stop();
}

/* Two requests with bodies, cut at every byte: what is behind a message never gets into it. */
static void bodies_arrive_however_they_are_cut(void) {
    static const char *const texts[] = {
        POST "Content-Length: 11\r\n\r\nhello world" POST "Content-Length: 3\r\n\r\nabc",
        POST "Transfer-Encoding: chunked\r\n\r\n6;x=y\r\nhello \r\n5\r\nworld\r\n0\r\nA: b\r\n"
             "\r\n" POST "Content-Length: 3\r\n\r\nabc",
        POST "Expect: 100-continue\r\nContent-Length: 11\r\n\r\nhello world" POST
             "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    };
    http_options o = toy_options();
    start(&o);
    int fd = client_connect();
    for (size_t i = 0; i < INFERD_COUNT(texts); i++) {
        size_t n = strlen(texts[i]);
        for (size_t cut = 0; cut < n; cut++) {
            seen.n_handled = 0;
            client_send(fd, texts[i], cut);
            iterate(), iterate();
            client_send(fd, texts[i] + cut, n - cut);
            r.n = 0, r.text[0] = 0, r.closed = r.reset = false;
            for (int k = 0; k < 2000 && strstr(r.text, "\r\n\r\nabc") == NULL && !r.closed; k++) {
                iterate();
                client_read_some(fd, &r);
                usleep(k < 100 ? 0 : 1000);
            }
            int statuses[3], n_answers = reply_statuses(&r, statuses, 3);
            EXPECT(n_answers >= 2 && statuses[n_answers - 1] == 200);
            EXPECT(reply_has(&r, "\r\n\r\nhello worldHTTP/1.1 200 OK\r\n"));
            EXPECT_EQ(seen.n_handled, 2);
        }
    }
    close(fd);
    stop();
}

/* SHUT_WR behind a request once cancelled it without a word.  An answer that is ready at once
 * comes, all of them when several were asked for; one that has to wait is cancelled, because a
 * client that left looks the same, and told so. */
static void half_closed_clients_are_answered_or_told(void) {
    http_options o = toy_options();
    int statuses[4];
    start(&o);
    for (int early = 0; early < 2;
         early++) { // the end is there with the bytes, or comes after them
        int fd = client_with(FIRST POST "Content-Length: 2\r\n\r\n{}" FIRST);
        if (early) iterate(), iterate();
        shutdown(fd, SHUT_WR);
        client_read_all(fd, &r, 0, 3000);
        EXPECT_EQ(reply_statuses(&r, statuses, 4), 3);
        EXPECT(r.closed && !r.reset);
        EXPECT_EQ(statuses[0] + statuses[1] + statuses[2], 600);
        close(fd);
        uint32_t n_gone = seen.n_gone;
        fd =
            client_with("POST /v1/wait HTTP/1.1\r\nHost: x\r\n" AUTH "Content-Length: 2\r\n\r\n{}");
        if (early) iterate(), iterate();
        shutdown(fd, SHUT_WR);
        client_read_all(fd, &r, 0, 3000);
        EXPECT_EQ(reply_statuses(&r, statuses, 4), 1);
        EXPECT_EQ(statuses[0], 499);
        EXPECT(reply_has(&r, "\"code\":\"client_closed_request\""));
        EXPECT(r.closed && !r.reset);
        EXPECT_EQ(seen.n_gone, n_gone + 1);
        iterate_until_open(0);
        EXPECT_EQ(seen.last_status, 499);
        close(fd);
    }
    /* Half a head, half a body: the request never was. */
    static const char *const halves[] = {"GET /health HTTP/1.1\r\nHost: x\r\n",
                                         POST "Content-Length: 9\r\n\r\n{}",
                                         POST "Transfer-Encoding: chunked\r\n\r\n2\r\n{"};
    for (size_t i = 0; i < INFERD_COUNT(halves); i++) {
        uint32_t n_finished = seen.n_finished;
        int fd = client_with(halves[i]);
        shutdown(fd, SHUT_WR);
        client_read_all(fd, &r, 0, 3000);
        EXPECT(r.closed && r.n == 0);
        EXPECT_EQ(seen.n_finished, n_finished + 1);
        EXPECT_EQ(seen.last_status, 499);
        close(fd);
    }
    stop();
}

/* The sender has not come to an end, but the answer is certain: it comes now, not with a deadline.
 */
static void answers_are_known_before_the_end(void) {
    static const row rows[] = {
        {"no method", BYTES("\x16\x03\x01"), 400},
        {"no version", BYTES("GET /health\r\n"), 400},
        {"another version", BYTES("GET /health HTTP/2.0\r\n"), 505},
        {"a bare LF", BYTES("GET /health HTTP/1.1\r\nHost: x\nA"), 400},
        {"a fold", BYTES("GET /health HTTP/1.1\r\nHost: x\r\n "), 400},
        {"too many arguments",
         BYTES("GET /?&&&&&&&&" X64 "&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&"
               "&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&"),
         414},
        {"a chunk over the limit", BYTES(POST "Transfer-Encoding: chunked\r\n\r\n400001"), 413},
        {"chunks over the limit", BYTES(POST "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n400000"),
         413},
        {"chunks that nothing reads, without a key",
         BYTES("POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nF"), 401},
        {"a bad chunk, without a key", // the key is asked for first, however the bytes come
         BYTES("POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nz"), 401},
    };
    http_options o = toy_options();
    int statuses[2];
    o.limits.header_timeout_ms = o.limits.body_timeout_ms = 60000;
    start(&o);
    for (size_t i = 0; i < 2 * INFERD_COUNT(rows); i++) {
        const row *w = &rows[i / 2];
        int before = test_failures;
        int fd = client_in_way(w, i % 2 == 0 ? WAY_AT_ONCE : WAY_BYTE_BY_BYTE);
        client_read_all(fd, &r, 0, 5000);
        EXPECT_EQ(reply_statuses(&r, statuses, 2), 1);
        EXPECT_EQ(statuses[0], w->status);
        EXPECT(r.closed && !r.reset);
        EXPECT_EQ(seen.n_handled, 0);
        if (test_failures != before) printf("  in row \"%s\"\n", w->name);
        close(fd);
    }
    stop();
}

/* -- administrators -- */

static http_admin asking_role;

static http_admin admin_of_key(void *ctx, bytes key) {
    (void)ctx, (void)key;
    return asking_role;
}

static int write_own_error(buf *out, const http_error *e) {
    buf_add_format(out, "<%d %s %s>", e->status, e->type, e->request_id);
    return e->status == 413 ? 529 : e->status;
}

/* A route whose protocol has another form of errors writes them itself, also where it never runs,
 * and in the middle of a body, past the library. */
static void a_route_may_write_its_errors_itself(void) {
    static const http_route own[] = {
        {"/own", HTTP_POST, HTTP_KEYED, true, true, handle_echo, write_own_error}};
    static const struct {
        const char *bytes, *has, *code;
    } rows[] = {
        {"POST /own HTTP/1.1\r\nHost: x\r\n\r\n", "<401 authentication_error req-", "HTTP/1.1 401"},
        {"POST /own HTTP/1.1\r\nHost: x\r\n" AUTH "Content-Length: 99999999\r\n\r\n",
         "<413 invalid_request_error req-", "HTTP/1.1 529"},
        {"POST /own HTTP/1.1\r\nHost: x\r\n" AUTH "Transfer-Encoding: chunked\r\n\r\n5\r\n123456",
         "<400 invalid_request_error req-", "HTTP/1.1 400"},
        /* they reach no route */
        {"GET /own HTTP/1.1\r\nHost: x\r\n\r\n", "<405 ", "HTTP/1.1 405"},
        {"GET /own/more?a HTTP/1.1\r\nHost: x\r\n\r\n", "<404 ", "HTTP/1.1 404"},
        {"GET /ownmore HTTP/1.1\r\nHost: x\r\n\r\n", "{\"error\":", "HTTP/1.1 404"},
        {"GET /own/../x HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "<400 ", "HTTP/1.1 400"},
        {"POST /own HTTP/1.1\r\nHost: x\r\nExpect: foo\r\n\r\n", "<417 ", "HTTP/1.1 417"},
        {"\r\nPOST /own?a=b HTTP/3.0\r\nHost: x\r\n\r\n", "<505 ", "HTTP/1.1 505"},
        {"POST /own HTTP/1.1\r\n: x\r\n\r\n", "<400 ", "HTTP/1.1 400"},
        {"POST /own\x01 HTTP/1.1\r\n\r\n", "{\"error\":", "HTTP/1.1 400"}};
    http_options o = toy_options();
    o.routes = own;
    o.n_routes = 1;
    start(&o);
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        int fd = client_connect();
        client_text(fd, rows[i].bytes);
        client_read_all(fd, &r, 10, 2000);
        EXPECT(reply_has(&r, rows[i].has));
        EXPECT(reply_has(&r, rows[i].code));
        close(fd);
    }
    stop();
    o.tenant_of_key = NULL; // a keyless server is reached by names of this machine only
    start(&o);
    int fd = client_connect();
    client_text(fd, "POST /own HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    client_read_all(fd, &r, 10, 2000);
    EXPECT(reply_has(&r, "<403 "));
    close(fd);
    stop();
}

/* Where all are trusted, as on a socket file of one owner, only a tenant's key is refused. */
static void a_route_of_administrators_is_for_them(void) {
    static const http_route admin_routes[] = {
        {"/admin/do", HTTP_GET, HTTP_ADMIN, false, false, handle_health}};
    static const struct {
        http_admin role;
        int status, trusted_status;
    } rows[] = {{HTTP_ADMIN_YES, 200, 200},
                {HTTP_ADMIN_NO_KEYS, 403, 200},
                {HTTP_ADMIN_TENANT, 403, 403},
                {HTTP_ADMIN_UNKNOWN, 401, 200}};
    for (int trusted = 0; trusted <= 1; trusted++) {
        http_options o = toy_options();
        o.routes = admin_routes;
        o.n_routes = 1;
        o.trusted = trusted;
        for (int known = 0; known <= 1; known++) { // NULL: nobody is an administrator
            o.admin_of_key = known ? admin_of_key : NULL;
            start(&o);
            for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
                asking_role = rows[i].role;
                int fd = client_with("GET /admin/do HTTP/1.1\r\nHost: x\r\n\r\n");
                client_read(fd, &r, 1000);
                int status = trusted ? rows[i].trusted_status : rows[i].status;
                EXPECT_EQ(reply_status(&r), known ? status : trusted ? 200 : 403);
                close(fd);
            }
            stop();
        }
    }
}

static const test_case cases[] = {
    TEST(doubtful_framing_is_refused_and_closed),   TEST(routes_match_the_raw_path),
    TEST(every_bad_key_gets_the_same_answer),       TEST(bodies_are_checked_before_they_are_read),
    TEST(keyless_serves_loopback_names_only),       TEST(a_trusted_socket_serves_its_own_page_only),
    TEST(timeout_hints_are_read_or_ignored),        TEST(tails_are_bounded),
    TEST(long_lines_are_refused_at_once),           TEST(cookies_are_left_away),
    TEST(no_answer_waits_for_another_event),        TEST(bodies_arrive_however_they_are_cut),
    TEST(half_closed_clients_are_answered_or_told), TEST(answers_are_known_before_the_end),
    TEST(honest_blocks_pass_however_they_come),     TEST(every_head_has_room_however_it_is_cut),
    TEST(pipelined_requests_are_answered_in_order), TEST(a_route_of_administrators_is_for_them),
    TEST(a_route_may_write_its_errors_itself),
};
TEST_MAIN(cases)
