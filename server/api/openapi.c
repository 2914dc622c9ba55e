/* openapi.c - see openapi.h. */
#include "openapi.h"

#include <string.h>

#include "api_schema.h"
#include "json_out.h"

/* ---- statuses ---- */

enum { // bits, in the order of `statuses`
    S400 = 1,
    S401 = 1 << 1,
    S403 = 1 << 2,
    S404 = 1 << 3,
    S408 = 1 << 4,
    S409 = 1 << 5,
    S413 = 1 << 6,
    S414 = 1 << 7,
    S415 = 1 << 8,
    S417 = 1 << 9,
    S429 = 1 << 10,
    S431 = 1 << 11,
    S499 = 1 << 12,
    S500 = 1 << 13,
    S503 = 1 << 14,
    S504 = 1 << 15,
    S505 = 1 << 16,
    S529 = 1 << 17,
    /* The transport answers these on every route, and S408 where it waits for a body. */
    OF_TRANSPORT = S400 | S403 | S413 | S414 | S415 | S417 | S431 | S503 | S505,
    OF_WORK = S404 | S499 | S500, // routes that work on a body beside the loop
    OF_GENERATION = OF_WORK | S429 | S504,
};

static const struct status {
    int status;
    const char *name, *what;
} statuses[] = {
    {400, "BadRequest",
     "The request is malformed, or a field is missing, out of range, not supported, or larger than "
     "a limit: param names it."},
    {401, "Unauthorized", "There is no key, or it is wrong."},
    {403, "Forbidden",
     "Without keys: Host is not this machine's loopback, or Origin is not allowed by cors.  Routes "
     "of administrators: the "
     "key is a tenant's, or there are no keys for them; drills: the daemon was started without "
     "--allow-faults."},
    {404, "NotFound", "There is no such model, tenant or device, or not for this key."},
    {408, "RequestTimeout", "The request was not complete in time."},
    {409, "Conflict", "The change breaks a rule, or another one is under way."},
    {413, "TooLarge", "The body is too large."},
    {414, "TargetTooLong", "The path is too long, or the query has too many arguments."},
    {415, "UnsupportedMediaType", "The body is not application/json in UTF-8, or is compressed."},
    {417, "ExpectationFailed", "Expect is not 100-continue."},
    {429, "TooManyRequests", "A limit of the tenant is reached."},
    {431, "HeadersTooLarge", "The headers are too long, or too many."},
    {499, "ClientClosedRequest", "The client closed its sending side before the answer was ready."},
    {500, "InternalError", "The engine failed, or memory was short."},
    {503, "Unavailable",
     "The queue is full, the model cannot be served now, the daemon drains, or a device is lost."},
    {504, "DeadlineExceeded", "It waited too long in the queue, or ran too long."},
    {505, "VersionNotSupported", "The HTTP version is not 1.0 or 1.1."},
    {529, "Overloaded", "As 503 of other routes, where waiting helps."},
};

/* ---- operations ---- */

typedef enum operation_kind {
    ANSWERS_JSON,
    ANSWERS_STREAM, // or JSON
    ANSWERS_TEXT,
    ANSWERS_STATE,  // its answer comes with status 503, too
    ANSWERS_COMMAND // 202 with the same; 200 if the client waited
} operation_kind;

typedef struct operation {
    const char *path; // of the route
    http_method method;
    const char *tag, *id, *summary;
    const char *body; // schema; NULL: none, or `fields`
    api_route fields; // its body has these fields; 0: none
    operation_kind kind;
    const char *answer; // schema; ANSWERS_TEXT: content type
    unsigned statuses;  // of the handler, beside those that follow from the route
} operation;

/* clang-format off */
#define COMMAND(name, id, what, body) \
    {"/admin/models/*/" name, HTTP_POST, "admin", id, what, body, 0, ANSWERS_COMMAND, "CommandState", S404 | S409 | S504}
static const char text_type[] = "text/plain; charset=utf-8";

static const operation operations[] = {
    {"/v1/chat/completions", HTTP_POST, "inference", "createChatCompletion", "A conversation, through the model's chat template", NULL, API_CHAT, ANSWERS_STREAM, "ChatCompletion", OF_GENERATION},
    {"/v1/completions", HTTP_POST, "inference", "createCompletion", "Text as it is; also scoring (echo with max_tokens 0)", NULL, API_COMPLETION, ANSWERS_STREAM, "Completion", OF_GENERATION},
    {"/v1/messages", HTTP_POST, "inference", "createMessage", "A conversation, in the form of Anthropic's Messages", "MessagesRequest", 0, ANSWERS_STREAM, "Message", OF_GENERATION | S529},
    {"/v1/messages/count_tokens", HTTP_POST, "inference", "countTokens", "The tokens of the prompt of such a conversation", "CountTokensRequest", 0, ANSWERS_JSON, "MessageTokens", OF_WORK | S529},
    {"/v1/responses", HTTP_POST, "inference", "createResponse", "A conversation as OpenAI's Responses API has it", "ResponsesRequest", 0, ANSWERS_STREAM, "ModelResponse", OF_GENERATION},
    {"/v1/responses/*", HTTP_GET, "inference", "getResponse", "A response that was kept (store, state_dir)", NULL, 0, ANSWERS_JSON, "ModelResponse", S404 | S499 | S500},
    {"/v1/responses/*", HTTP_DELETE, "inference", "deleteResponse", "Deletes a response that was kept", NULL, 0, ANSWERS_JSON, "ModelResponseDeleted", S404 | S499 | S500},
    {"/v1/models", HTTP_GET, "models", "listModels", "The models this key may use, aliases behind their model", NULL, 0, ANSWERS_JSON, "ModelList", 0},
    {"/v1/models/*", HTTP_GET, "models", "getModel", "One of them", NULL, 0, ANSWERS_JSON, "Model", S404},
    {"/tokenize", HTTP_POST, "inference", "tokenize", "Text or messages to token ids", NULL, API_TOKENIZE, ANSWERS_JSON, "Tokens", OF_WORK},
    {"/detokenize", HTTP_POST, "inference", "detokenize", "Token ids to text", NULL, API_DETOKENIZE, ANSWERS_JSON, "Text", OF_WORK},
    {"/health", HTTP_GET, "operation", "getHealth", "200 while the process is alive, 503 when it has lost its device", NULL, 0, ANSWERS_STATE, "Health", 0},
    {"/ready", HTTP_GET, "operation", "getReady", "200 when requests can be served, else 503", NULL, 0, ANSWERS_STATE, "Ready", 0},
    {"/version", HTTP_GET, "operation", "getVersion", "The version", NULL, 0, ANSWERS_JSON, "Version", 0},
    {"/openapi.json", HTTP_GET, "operation", "getOpenApi", "This document", NULL, 0, ANSWERS_JSON, "Document", 0},
    {"/", HTTP_GET, "operation", "getRoot", "What this is, for people", NULL, 0, ANSWERS_TEXT, text_type, 0},
    {"/metrics", HTTP_GET, "operation", "getMetrics", "Prometheus text: a tenant's own figures, all with a key of administrators", NULL, 0, ANSWERS_TEXT, "text/plain; version=0.0.4; charset=utf-8", 0},
    {"/debug/audit", HTTP_GET, "operation", "getAudit", "The engines check their internal counts", NULL, 0, ANSWERS_JSON, "Audit", S500 | S504},
    {"/ui", HTTP_GET, "operation", "getPage", "The page for administrators", NULL, 0, ANSWERS_TEXT, "text/html; charset=utf-8", S404},
    {"/ui/*", HTTP_GET, "operation", "getPageFile", "A file of the page", NULL, 0, ANSWERS_TEXT, "text/javascript; charset=utf-8", S404},
    {"/admin/watch", HTTP_GET, "admin", "watch", "The state as a stream: all of it, then what changes", NULL, 0, ANSWERS_TEXT, "text/event-stream", 0},
    {"/admin/state", HTTP_GET, "admin", "getState", "The whole state", NULL, 0, ANSWERS_JSON, "State", 0},
    {"/admin/config", HTTP_GET, "admin", "getConfig", "The running configuration, keys masked", NULL, 0, ANSWERS_JSON, "Configuration", S409},
    {"/admin/config", HTTP_PUT, "admin", "putConfig", "Another configuration, as a whole", "Configuration", 0, ANSWERS_JSON, "Applied", S409},
    {"/admin/plan", HTTP_POST, "admin", "plan", "Whether a model or tenant would fit, and what would be evicted", "PlanQuestion", 0, ANSWERS_JSON, "Plan", S404 | S409},
    {"/admin/tenants/*", HTTP_GET, "admin", "getTenant", "One tenant", NULL, 0, ANSWERS_JSON, "TenantState", S404},
    {"/admin/tenants/*", HTTP_PATCH, "admin", "patchTenant", "Change a tenant's guarantees and limits", "Patch", 0, ANSWERS_JSON, "Applied", S404 | S409},
    {"/admin/models/*", HTTP_GET, "admin", "getModelState", "One model of the state, by name or alias", NULL, 0, ANSWERS_JSON, "ModelState", S404},
    {"/admin/models/*", HTTP_PATCH, "admin", "patchModel", "Change a model's guarantees and settings", "Patch", 0, ANSWERS_JSON, "Applied", S404 | S409},
    COMMAND("load", "loadModel", "To the device, also when no request waits; ends a drain", "Command"),
    COMMAND("unload", "unloadModel", "Off the device; running requests end first", "Command"),
    COMMAND("drop", "dropModel", "Off the device and out of host memory", "Command"),
    COMMAND("prefetch", "prefetchModel", "To host memory", "Command"),
    COMMAND("pin", "pinModel", "It stays on the device, or in host memory", "PinCommand"),
    COMMAND("unpin", "unpinModel", "It may be evicted again", "Command"),
    COMMAND("drain", "drainModel", "Present requests end, new ones are refused, then it leaves the device", "Command"),
    COMMAND("undrain", "undrainModel", "The same as load", "Command"),
    {"/admin/devices/*/lose", HTTP_POST, "admin", "loseDevice", "A drill, with --allow-faults: the device seems lost at its next step", NULL, 0, ANSWERS_JSON, "Drill", S404},
    {"/admin/devices/*/slow", HTTP_POST, "admin", "slowDevice", "A drill, with --allow-faults: steps take longer, or hang", "SlowCommand", 0, ANSWERS_JSON, "Drill", S404},
    {"/running", HTTP_GET, "admin", "getRunning", "Models on the device, as llama-swap has it", NULL, 0, ANSWERS_JSON, "Running", 0},
    {"/unload", HTTP_GET, "admin", "getUnload", "Idle models leave the device", NULL, 0, ANSWERS_TEXT, text_type, 0},
    {"/unload", HTTP_POST, "admin", "postUnload", "Idle models leave the device", NULL, 0, ANSWERS_TEXT, text_type, 0},
    {"/api/models/unload", HTTP_POST, "admin", "unloadAll", "Idle models leave the device", NULL, 0, ANSWERS_JSON, "Done", 0},
    {"/api/models/unload/**", HTTP_POST, "admin", "unloadOne", "One model leaves the device; running requests end first", NULL, 0, ANSWERS_JSON, "Done", S404},
};
/* clang-format on */

static const operation *find(const char *path, http_method method) {
    for (size_t i = 0; i < INFERD_COUNT(operations); i++)
        if (operations[i].method == method && strcmp(operations[i].path, path) == 0)
            return &operations[i];
    return NULL;
}

bool openapi_has(const char *path, http_method method) {
    return find(path, method) != NULL;
}

size_t openapi_n_rows(void) {
    return INFERD_COUNT(operations);
}

/* ---- writing ---- */

typedef struct writer {
    const openapi_input *in;
    buf *out;
} writer;

static void text(writer *w, const char *s) {
    api_schema_add_text(w->out, s);
}

static void string(writer *w, const char *s) {
    json_add_string(w->out, s, strlen(s));
}

static void ref(writer *w, const char *schema) {
    text(w, "{'$ref':'#/components/schemas/");
    buf_add_str(w->out, schema);
    text(w, "'}");
}

static const char *body_name(api_route fields) {
    return fields == API_CHAT         ? "ChatRequest"
           : fields == API_COMPLETION ? "CompletionRequest"
           : fields == API_TOKENIZE   ? "TokenizeRequest"
                                      : "DetokenizeRequest";
}

/* The name of a path's variable. */
static const char *variable(const char *path) {
    return strstr(path, "/tenants/") != NULL     ? "tenant"
           : strstr(path, "/devices/") != NULL   ? "device"
           : strstr(path, "/responses/") != NULL ? "response_id"
                                                 : "model";
}

/* The path with {model} for "*" and "**". */
static void add_path(writer *w, const char *path) {
    size_t n = strcspn(path, "*");
    buf_add_char(w->out, '"');
    buf_add(w->out, path, n);
    if (path[n] != 0) buf_add_format(w->out, "{%s}", variable(path));
    while (path[n] == '*') n++;
    buf_add_str(w->out, path + n);
    text(w, "':{");
}

static void add_parameters(writer *w, const operation *o) {
    bool one = strchr(o->path, '*') != NULL, generates = o->kind == ANSWERS_STREAM;
    if (!one && !generates) return;
    text(w, ",'parameters':[");
    if (one)
        buf_add_format(w->out,
                       "{\"name\":\"%s\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":"
                       "\"string\",\"minLength\":1}}",
                       variable(o->path));
    if (o->method == HTTP_PATCH)
        text(w, ",{'name':'persist','in':'query','description':'write the file, too','schema':{"
                "'enum':['true','false','1','0']}}");
    if (generates)
        text(w, "{'$ref':'#/components/parameters/Class'},{'$ref':'#/components/parameters/"
                "Explain'},{'$ref':'#/components/parameters/"
                "TtftTarget'},{'$ref':'#/components/parameters/TpotTarget'}");
    buf_add_char(w->out, ']');
}

static void add_body(writer *w, const operation *o) {
    if (o->body == NULL && o->fields == 0) return;
    /* Only administrators' commands may leave it out. */
    bool required = o->kind != ANSWERS_COMMAND && o->method != HTTP_PATCH;
    buf_add_format(w->out, ",\"requestBody\":{\"required\":%s,", required ? "true" : "false");
    text(w, "'content':{'application/json':{'schema':");
    ref(w, o->body != NULL ? o->body : body_name(o->fields));
    buf_add_str(w->out, "}}}");
}

/* The schema of the last event of a stream that fails; NULL: it is one of the others. */
static const char *failure_event(const operation *o) {
    if (o->fields != 0) return "Error";
    return strcmp(o->answer, "Message") == 0 ? "MessageError" : NULL;
}

/* One event of a stream; its data is JSON in a string. */
static void ref_event(writer *w, const operation *o) {
    text(w,
         "{'type':'object','description':'each event, with stream; lines that begin with a colon "
         "are heartbeats','required':['data'],'properties':{'data':{'anyOf':[");
    if (o->fields != 0) text(w, "{'const':'[DONE]','description':'the last event'},");
    text(w, "{'type':'string','contentMediaType':'application/json','contentSchema':"
            "{'$ref':'#/components/schemas/");
    buf_add_str(w->out, o->answer);
    text(w, "Chunk'}}");
    if (failure_event(o) != NULL) {
        text(w, ",{'type':'string','contentMediaType':'application/json','contentSchema':"
                "{'$ref':'#/components/schemas/");
        buf_add_str(w->out, failure_event(o));
        text(w, "'},'description':'a failure ends the stream'}");
    }
    buf_add_str(w->out, "]}}}");
}

/* "200":{...} of an operation. */
static void add_success(writer *w, const operation *o, int status, const char *what) {
    buf_add_format(w->out, "\"%d\":{\"description\":\"%s\",\"headers\":{", status, what);
    text(w, "'x-request-id':{'$ref':'#/components/headers/RequestId'}},'content':{");
    if (o->kind == ANSWERS_TEXT) {
        string(w, o->answer);
        /* A validator sees an event of a stream as an object of its fields. */
        bool events = strcmp(o->answer, "text/event-stream") == 0;
        text(w, events ? ":{'schema':{'type':'object'}}}}" : ":{'schema':{'type':'string'}}}}");
        return;
    }
    text(w, "'application/json':{'schema':");
    ref(w, o->answer);
    buf_add_char(w->out, '}');
    if (o->kind == ANSWERS_STREAM) {
        text(w, ",'text/event-stream':{'schema':");
        ref_event(w, o);
        buf_add_char(w->out, '}');
    }
    buf_add_str(w->out, "}}");
}

static unsigned statuses_of(const writer *w, const http_route *r, const operation *o) {
    unsigned s = OF_TRANSPORT | o->statuses;
    if (o->method != HTTP_GET) s |= S408;
    if (r->access == HTTP_ADMIN || (r->access != HTTP_OPEN && w->in->keyed)) s |= S401;
    return s;
}

static void add_responses(writer *w, const http_route *r, const operation *o) {
    unsigned set = statuses_of(w, r, o);
    text(w, ",'responses':{");
    add_success(w, o, 200,
                o->kind == ANSWERS_COMMAND ? "with wait: the command is complete" : "the answer");
    if (o->kind == ANSWERS_COMMAND) {
        buf_add_char(w->out, ',');
        add_success(w, o, 202, "the command is under way");
    }
    for (size_t i = 0; i < INFERD_COUNT(statuses); i++) {
        if ((set >> i & 1) == 0) continue;
        buf_add_format(w->out, ",\"%d\":", statuses[i].status);
        if (o->kind == ANSWERS_STATE && statuses[i].status == 503) {
            text(w, "{'description':'the answer is no, or the server is overloaded','content':{"
                    "'application/json':{'schema':{'anyOf':[");
            ref(w, o->answer);
            buf_add_char(w->out, ',');
            ref(w, "Error");
            buf_add_str(w->out, "]}}}}");
            continue;
        }
        if (r->write_error != NULL) { // in a form of its own
            text(w, "{'description':");
            string(w, statuses[i].what);
            text(w, ",'content':{'application/json':{'schema':");
            ref(w, "MessageError");
            buf_add_str(w->out, "}}}");
            continue;
        }
        text(w, "{'$ref':'#/components/responses/");
        buf_add_str(w->out, statuses[i].name);
        text(w, "'}");
    }
    buf_add_char(w->out, '}');
}

static void add_security(writer *w, const http_route *r) {
    bool key = w->in->keyed && (r->access == HTTP_KEYED || r->access == HTTP_WATCH);
    bool admin = r->access == HTTP_ADMIN || (r->access == HTTP_WATCH && key && w->in->admin);
    text(w, ",'security':[");
    if (key) text(w, "{'key':[]},{'xApiKey':[]}");
    if (key && admin) buf_add_char(w->out, ',');
    if (admin) text(w, "{'adminKey':[]}");
    buf_add_char(w->out, ']');
}

static void add_operation(writer *w, const http_route *r, const operation *o) {
    static const char *const names[] = {[HTTP_GET] = "get",
                                        [HTTP_POST] = "post",
                                        [HTTP_PUT] = "put",
                                        [HTTP_PATCH] = "patch",
                                        [HTTP_DELETE] = "delete"};
    buf_add_format(w->out, "\"%s\":{\"tags\":[\"%s\"],\"operationId\":\"%s\",\"summary\":",
                   names[o->method], o->tag, o->id);
    string(w, o->summary);
    add_parameters(w, o);
    add_body(w, o);
    add_responses(w, r, o);
    add_security(w, r);
    buf_add_char(w->out, '}');
}

static bool is_listed(const writer *w, const http_route *r) {
    return r->access != HTTP_ADMIN || w->in->admin;
}

/* Routes of one path, which are neighbours in the table, become one member. */
static void add_paths(writer *w) {
    static const http_method methods[] = {HTTP_GET, HTTP_POST, HTTP_PUT, HTTP_DELETE, HTTP_PATCH};
    const http_route *all = w->in->routes, *before = NULL;
    text(w, "'paths':{");
    for (const http_route *r = all; r < all + w->in->n_routes; r++) {
        if (!is_listed(w, r)) continue;
        bool same = before != NULL && strcmp(before->path, r->path) == 0;
        if (before != NULL) buf_add_str(w->out, same ? "," : "},");
        if (!same) add_path(w, r->path);
        bool first = true;
        for (size_t m = 0; m < INFERD_COUNT(methods); m++) {
            const operation *o = find(r->path, methods[m]);
            if ((r->methods & methods[m]) == 0 || o == NULL) continue;
            if (!first) buf_add_char(w->out, ',');
            add_operation(w, r, o);
            first = false;
        }
        before = r;
    }
    buf_add_str(w->out, before == NULL ? "}" : "}}");
}

static void add_error_responses(writer *w) {
    text(w, "'responses':{");
    for (size_t i = 0; i < INFERD_COUNT(statuses); i++) {
        int status = statuses[i].status;
        if (i > 0) buf_add_char(w->out, ',');
        string(w, statuses[i].name);
        text(w, ":{'description':");
        string(w, statuses[i].what);
        text(w, ",'headers':{'x-request-id':{'$ref':'#/components/headers/RequestId'}");
        if (status == 429 || status == 503)
            text(w, ",'Retry-After':{'description':'seconds; absent where waiting does not "
                    "help','schema':{"
                    "'type':'integer','minimum':1}}");
        text(w,
             "},'content':{'application/json':{'schema':{'$ref':'#/components/schemas/Error'}}}}");
    }
    buf_add_str(w->out, "},");
}

static void add_schemas(writer *w) {
    static const api_route bodies[] = {API_CHAT, API_COMPLETION, API_TOKENIZE, API_DETOKENIZE};
    size_t n;
    const openapi_schema *rows = openapi_schemas(&n);
    text(w, "'schemas':{");
    for (size_t i = 0; i < INFERD_COUNT(bodies); i++) {
        string(w, body_name(bodies[i]));
        buf_add_char(w->out, ':');
        api_schema_add_body(w->out, bodies[i]);
        buf_add_char(w->out, ',');
    }
    for (size_t i = 0; i < n; i++) {
        if (i > 0) buf_add_char(w->out, ',');
        string(w, rows[i].name);
        buf_add_char(w->out, ':');
        text(w, rows[i].text);
    }
    buf_add_str(w->out, "}");
}

static void add_target(writer *w, const char *name, const char *header, const char *of) {
    buf_add_format(w->out,
                   ",\"%s\":{\"name\":\"%s\",\"in\":\"header\",\"description\":\"target for the "
                   "time %s, milliseconds\",\"schema\":{\"type\":\"integer\",\"minimum\":1,"
                   "\"maximum\":%d}}",
                   name, header, of, API_TARGET_MS_MAX);
}

static void add_components(writer *w) {
    text(
        w,
        "'components':{'securitySchemes':{"
        "'key':{'type':'http','scheme':'bearer','description':'a key of a tenant'},"
        "'xApiKey':{'type':'apiKey','in':'header','name':'x-api-key','description':'the same, as "
        "clients of Anthropic send it'},"
        "'adminKey':{'type':'http','scheme':'bearer','description':'a key of admin'}},"
        "'headers':{'RequestId':{'description':'names the request in the "
        "log','schema':{'type':'string'}}},"
        "'parameters':{'Class':{'name':'x-inferd-class','in':'header','description':'the class, "
        "where the body names none','schema':{'enum':['system','high','normal','batch']}},"
        "'Explain':{'name':'x-inferd-explain','in':'header','description':'1: a header of the same "
        "name in the answer says where the prompt left the cached "
        "one','schema':{'enum':['0','1']}}");
    add_target(w, "TtftTarget", "x-slo-ttft-ms", "to the first token");
    add_target(w, "TpotTarget", "x-llm-d-slo-tpot-ms", "of each further token");
    buf_add_str(w->out, "},");
    add_error_responses(w);
    add_schemas(w);
    buf_add_char(w->out, '}');
}

void openapi_write(const openapi_input *in, buf *out) {
    writer w = {.in = in, .out = out};
    text(&w, "{'openapi':'3.1.0','info':{'title':'inferd','version':");
    string(&w, in->version);
    text(&w,
         ",'summary':'Language models over an OpenAI-compatible API','description':'Every answer "
         "carries x-request-id.  HEAD is answered for every GET.  Another path is answered 404 "
         "unknown_url, another method 405 method_not_allowed, both with an Error, and with a "
         "MessageError at /v1/messages and below it.  Fields of a "
         "body that are not listed are accepted, have no effect, and are named in the header "
         "x-inferd-ignored.'},'servers':[{'url':'/'}],'tags':[{'name':'inference'},"
         "{'name':'models'},{'name':'operation'}");
    if (in->admin)
        text(&w, ",{'name':'admin','description':'with a key of admin, or without a key on the "
                 "socket admin.listen'}");
    buf_add_str(out, "],");
    add_paths(&w);
    buf_add_char(out, ',');
    add_components(&w);
    buf_add_char(out, '}');
}
