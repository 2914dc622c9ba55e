/* The template engine against jinja2: small cases (jinja_cases.h), 350 renders of real templates,
 * limits, and who wrote which byte. */
#include <pthread.h>

#include "jinja_cases.h"
#include "models/chat.h"
#include "test.h"

static const struct tm now = {
    .tm_year = 126, .tm_mday = 15, .tm_hour = 9, .tm_min = 30, .tm_wday = 4, .tm_yday = 14};

static bytes text_bytes(const char *s) {
    return (bytes){s, strlen(s)};
}

static json_t *read_json(const char *text) {
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    if (json == NULL) printf("bad JSON in a test: %s\n", error.text);
    EXPECT(json != NULL);
    return json;
}

/* Open, render, close. */
static inferd_status render(bytes source, const chat_limits *limits, json_t *trusted, json_t *vars,
                            chat_text *out, inferd_err *err) {
    chat_template *t;
    *out = (chat_text){0};
    inferd_status s = chat_template_open(source, limits, &t, err);
    if (s != INFERD_OK) return s;
    s = chat_template_render(t, trusted, vars, &now, out, err);
    chat_template_close(t);
    return s;
}

static void expect_spans_cover(const chat_text *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->n_spans; i++) {
        EXPECT(text->spans[i].n > 0);
        EXPECT(i == 0 || text->spans[i].specials != text->spans[i - 1].specials ||
               text->messages[i] != text->messages[i - 1]);
        n += text->spans[i].n;
    }
    EXPECT_EQ(n, text->n);
    EXPECT_EQ(strlen(text->text) <= text->n, 1);
}

static void check_examples(const example *examples, size_t n) {
    json_t *vars = read_json(example_vars);
    for (size_t i = 0; i < n; i++) {
        chat_text text;
        inferd_err err = {0};
        const char *wanted = examples[i].expected;
        inferd_status s = render(text_bytes(examples[i].source), NULL, NULL, vars, &text, &err);
        bool same = wanted == NULL
                        ? s == INFERD_EINVAL || s == INFERD_EFORMAT || s == INFERD_ETOOLONG
                        : s == INFERD_OK && strcmp(text.text, wanted) == 0;
        if (!same) {
            printf("template: %s\n  gives: %s\n  jinja2: %s\n", examples[i].source,
                   s == INFERD_OK ? text.text : err.text, wanted == NULL ? "raises" : wanted);
            test_failures++;
        }
        if (s == INFERD_OK) expect_spans_cover(&text);
        chat_text_deinit(&text);
    }
    json_decref(vars);
}

static void expressions_are_those_of_jinja2(void) {
    check_examples(expressions, INFERD_COUNT(expressions));
}

static void statements_are_those_of_jinja2(void) {
    check_examples(statements, INFERD_COUNT(statements));
}

/* ---- real templates ---- */

static const char *shared_folder(void) {
    const char *folder = getenv("INFERD_SHARED");
    return folder != NULL ? folder : INFERD_SOURCE_DIR "/../shared";
}

static char *read_shared(const char *name, size_t *n) {
    char path[600];
    snprintf(path, sizeof path, "%s/templates/%s", shared_folder(), name);
    FILE *f = fopen(path, "rb");
    char *p = malloc(1 << 20);
    *n = f != NULL && p != NULL ? fread(p, 1, 1 << 20, f) : 0;
    if (f != NULL) fclose(f);
    return p;
}

/* Each content that the text shows once is of its message. */
static void expect_contents_named(const chat_text *text, json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *content = json_object_get(json_array_get(messages, i), "content");
        size_t n = json_string_length(content);
        const char *at = n < 4 ? NULL : strstr(text->text, json_string_value(content));
        if (at == NULL || strstr(at + 1, json_string_value(content)) != NULL) continue;
        size_t from = (size_t)(at - text->text);
        EXPECT_EQ(chat_text_message_at(text, from), i);
        EXPECT_EQ(chat_text_message_at(text, from + n - 1), i);
    }
}

/* True when the record {template, context, output | error} comes out as it says. */
static bool check_record(json_t *record) {
    size_t n;
    chat_text text;
    inferd_err err = {0};
    const char *name = json_string_value(json_object_get(record, "template"));
    json_t *wanted = json_object_get(record, "output");
    const char *error = json_string_value(json_object_get(record, "error"));
    bool more = error != NULL && (strstr(error, "attribute 'append' of 'list'") != NULL ||
                                  strstr(error, "generator is not JSON") != NULL);
    char *source = read_shared(name, &n);
    inferd_status s =
        render((bytes){source, n}, NULL, NULL, json_object_get(record, "context"), &text, &err);
    bool same = more             ? s == INFERD_OK // see methods_list.c and run_tojson
                : wanted == NULL ? s == INFERD_EINVAL
                                 : s == INFERD_OK && text.n == json_string_length(wanted) &&
                                       memcmp(text.text, json_string_value(wanted), text.n) == 0;
    if (!same)
        printf("%s\n  gives: %s\n  jinja2: %s\n", name, s == INFERD_OK ? text.text : err.text,
               wanted == NULL ? json_string_value(json_object_get(record, "error"))
                              : json_string_value(wanted));
    json_t *messages = json_object_get(json_object_get(record, "context"), "messages");
    if (s == INFERD_OK) expect_spans_cover(&text);
    if (s == INFERD_OK) expect_contents_named(&text, messages);
    chat_text_deinit(&text);
    free(source);
    return same;
}

static void real_templates_render_exactly(void) {
    char command[700], *line = NULL;
    size_t capacity = 0, n_records = 0, n_same = 0;
    snprintf(command, sizeof command, "%s/templates/vectors.jsonl.xz", shared_folder());
    FILE *f = fopen(command, "rb");
    if (f == NULL) SKIP("no shared/templates");
    fclose(f);
    snprintf(command, sizeof command, "xz -dc '%s/templates/vectors.jsonl.xz'", shared_folder());
    FILE *xz = popen(command, "r");
    EXPECT(xz != NULL);
    if (xz == NULL) return;
    while (getline(&line, &capacity, xz) > 0) {
        json_error_t error;
        json_t *record = json_loads(line, 0, &error);
        n_same += check_record(record);
        n_records++;
        json_decref(record);
    }
    free(line);
    EXPECT_EQ(pclose(xz), 0);
    EXPECT_EQ(n_records, 350);
    EXPECT_EQ(n_same, 350);
}

/* ---- failing ---- */

static void expect_failure(const char *source, inferd_status status, const char *words) {
    chat_text text;
    inferd_err err = {0};
    json_t *vars = read_json(example_vars);
    inferd_status s = render(text_bytes(source), NULL, NULL, vars, &text, &err);
    EXPECT_EQ(s, status);
    EXPECT_EQ(err.status, status);
    EXPECT_STR(err.text, words);
    EXPECT(text.text == NULL);
    chat_text_deinit(&text);
    json_decref(vars);
}

static void errors_say_the_line(void) {
    expect_failure("a\n{{ nope.x }}", INFERD_EINVAL, "line 2: 'nope' is undefined");
    expect_failure("a\n\n{% if x\n == 5 %}{{ d.zz.y }}{% endif %}", INFERD_EINVAL,
                   "line 4: 'dict object' has no attribute 'zz'");
    expect_failure("{{ m[7].role }}", INFERD_EINVAL, "line 1: list object has no element 7");
    expect_failure("\n{% for i in x %}{% endfor %}", INFERD_EINVAL,
                   "line 2: 'int' object is not iterable");
    expect_failure("a\n{% endif %}", INFERD_EFORMAT, "line 2: unknown tag 'endif'");
    expect_failure("{% if x %}\n{% endfor %}", INFERD_EFORMAT,
                   "line 2: unknown tag 'endfor' inside of 'if'");
    expect_failure("{{ x\n\n", INFERD_EFORMAT, "line 2: expected '}}', got end of template");
    expect_failure("{% include 'x' %}", INFERD_EFORMAT,
                   "line 1: the tag 'include' is not available in chat templates");
    expect_failure("{{ l.append(4) }}", INFERD_EINVAL,
                   "line 1: access to attribute 'append' of 'list' object is unsafe");
    expect_failure("\xff", INFERD_EFORMAT, "line 1: the template is not UTF-8 at byte 0");
}

static void raised_words_stand_alone(void) {
    expect_failure("\n{{ raise_exception('no ' ~ m[0].role ~ ' here') }}", INFERD_EINVAL,
                   "no user here");
    expect_failure("{{ raise_exception('two\nlines') }}", INFERD_EINVAL, "two lines");
}

/* ---- limits ---- */

static void expect_limit(const char *source, const chat_limits *limits, const char *vars_json) {
    chat_text text;
    inferd_err err = {0};
    json_t *vars = read_json(vars_json);
    inferd_status s = render(text_bytes(source), limits, NULL, vars, &text, &err);
    if (s != INFERD_ETOOLONG || strncmp(err.text, "template_limit: ", 16) != 0) {
        printf("template: %.200s\n  gives: %d %s\n", source, (int)s, err.text);
        test_failures++;
    }
    chat_text_deinit(&text);
    json_decref(vars);
}

static void limits_end_a_render(void) {
    static const char *const greedy[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ range(100001) }}",
        "{{ range(-9223372036854775807, 9223372036854775807) }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 'x' * 9000000000000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%.999999999f' % 1.5 }}",
        "{{ '{:999999999}'.format('x') }}",
        "{{ 'x'.center(999999999) }}",
        "{{ 'x'|center(999999999) }}",
        "{{ 'x'|indent(999999999) }}",
        "{{ [1]|tojson(indent=999999999) }}",
        "{{ [1]|slice(999999999)|list }}",
        "{{ strftime_now('%c' * 4096) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}"
        "{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}"
        "{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}"
        "{% endfor %}{{ ns.s|tojson }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}"
        "{% endfor %}{{ ns.s == [ns.s] }}",
        "{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns }}",
        "{% set s = 'ab' * 1000000 %}{% for i in range(99999) %}{{ 'c' in s }}{% endfor %}",
        "{% set s = 'ab' * 1000000 %}{% for i in range(99999) %}{{ s[-1] }}{% endfor %}",
        "{% set s = 'ab' * 1000000 %}{% for i in range(99999) %}{{ s|length }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s.rfind('b' * 9999) }}"
        "{% endfor %}",
    };
    for (size_t i = 0; i < INFERD_COUNT(greedy); i++) expect_limit(greedy[i], NULL, "{}");
}

static void limits_can_be_set(void) {
    chat_limits limits = chat_limits_default;
    limits.source_bytes_max = 10;
    expect_limit("12345678901", &limits, "{}");
    limits = chat_limits_default;
    limits.output_bytes_max = 10;
    expect_limit("{{ 'x' * 11 }}", &limits, "{}");
    expect_limit("{% for i in range(11) %}x{% endfor %}", &limits, "{}");
    limits = chat_limits_default;
    limits.steps_max = 100;
    expect_limit("{% for i in range(100) %}{% endfor %}", &limits, "{}");
    limits = chat_limits_default;
    limits.depth_max = 3;
    expect_limit("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
                 &limits, "{}");
    limits = chat_limits_default;
    limits.memory_bytes_max = 1 << 20;
    expect_limit("{% for i in range(99999) %}{% set x = [i, i, i, i] %}{% endfor %}", &limits,
                 "{}");
}

static void deep_sources_are_refused(void) {
    enum { N = 20000 };
    static const char *const nests[][3] = {
        {"{{ ", "(", "1"},    {"{{ ", "[", "1"},     {"{{ ", "{1:", "1"},    {"{{ ", "-", "1"},
        {"{{ ", "not ", "1"}, {"{{ ", "x if ", "1"}, {"", "{% if 1 %}", ""}, {"{{ x", "|e", "}}"},
        {"{{ x", ".a", "}}"}, {"{{ x", "()", "}}"},  {"{{ ", "f(", "1"},     {"{{ x", "[0]", "}}"},
    };
    for (size_t i = 0; i < INFERD_COUNT(nests); i++) {
        char *source = malloc(N * 12 + 20);
        size_t n = (size_t)sprintf(source, "%s", nests[i][0]);
        chat_template *t;
        inferd_err err = {0};
        for (int k = 0; k < N; k++) n += (size_t)sprintf(source + n, "%s", nests[i][1]);
        n += (size_t)sprintf(source + n, "%s", nests[i][2]);
        inferd_status s = chat_template_open((bytes){source, n}, NULL, &t, &err);
        if (s != INFERD_ETOOLONG) printf("%s..: %d %s\n", nests[i][1], (int)s, err.text);
        EXPECT_EQ(s, INFERD_ETOOLONG);
        free(source);
    }
}

/* Long chains of one operator are one node, not a deep tree. */
static void long_chains_are_fine(void) {
    char source[9000] = "{{ ''";
    chat_text text;
    inferd_err err = {0};
    for (int i = 0; i < 1000; i++) strcat(source, " ~ 1");
    strcat(source, " }}");
    EXPECT_EQ(render(text_bytes(source), NULL, NULL, NULL, &text, &err), INFERD_OK);
    EXPECT_EQ(text.n, 1000);
    chat_text_deinit(&text);
}

/* A prompt that grows piece by piece must not cost the square of its length. */
static void growing_a_text_is_linear(void) {
    chat_text text;
    inferd_err err = {0};
    json_t *vars = read_json("{\"w\": \"0123456789012345678901234567890123456789\"}");
    const char *source = "{% set ns = namespace(t='') %}{% for i in range(50000) %}"
                         "{% set ns.t = ns.t + w %}{% endfor %}{{ ns.t }}";
    EXPECT_EQ(render(text_bytes(source), NULL, NULL, vars, &text, &err), INFERD_OK);
    EXPECT_EQ(text.n, 2000000);
    chat_text_deinit(&text);
    json_decref(vars);
}

/* Whatever the bound, a render ends well or with a limit, and frees what it took (under ASan). */
static void every_memory_bound_is_survived(void) {
    json_t *vars = read_json(example_vars);
    const char *source =
        "{% macro f(a) %}{{ a|upper }}{% endmacro %}{% for k, v in d|dictsort %}{{ f(k ~ v) }}"
        "{% endfor %}{{ m|tojson(indent=2) }}{{ '[1, {\"a\": \"b\"}]'|from_json }}{{ words|sort }}"
        "{% set q %}{{ '%s|%5d' % (s, x) }}{% endset %}{{ q.split('|')|join(',') }}";
    size_t n_ok = 0, n_limits = 0;
    for (size_t bound = 0; bound < 60000; bound += 97) {
        chat_limits limits = chat_limits_default;
        chat_text text;
        inferd_err err = {0};
        limits.memory_bytes_max = bound;
        inferd_status s = render(text_bytes(source), &limits, NULL, vars, &text, &err);
        EXPECT(s == INFERD_OK || s == INFERD_ETOOLONG);
        if (s == INFERD_OK)
            n_ok++;
        else
            n_limits++;
        chat_text_deinit(&text);
    }
    EXPECT(n_ok > 0);
    EXPECT(n_limits > 0);
    json_decref(vars);
}

/* ---- who wrote it ---- */

/* The text with « » around what specials are matched in. */
static void expect_marked(const char *source, const char *vars_json, const char *wanted) {
    char marked[2000] = "";
    size_t at = 0, n = 0;
    chat_text text;
    inferd_err err = {0};
    json_t *vars = read_json(vars_json), *trusted = read_json("{\"bos_token\": \"<s>\"}");
    inferd_status s = render(text_bytes(source), NULL, trusted, vars, &text, &err);
    EXPECT_EQ(s, INFERD_OK);
    if (s != INFERD_OK) printf("%s: %s\n", source, err.text);
    for (size_t i = 0; i < text.n_spans; i++) {
        n += (size_t)snprintf(marked + n, sizeof marked - n, "%s%.*s%s",
                              text.spans[i].specials ? "«" : "", (int)text.spans[i].n,
                              text.text + at, text.spans[i].specials ? "»" : "");
        at += text.spans[i].n;
    }
    if (s == INFERD_OK && strcmp(marked, wanted) != 0) {
        printf("template: %s\n  gives: %s\n  expected: %s\n", source, marked, wanted);
        test_failures++;
    }
    chat_text_deinit(&text);
    json_decref(vars);
    json_decref(trusted);
}

static void provenance_is_exact(void) {
    const char *vars = "{\"u\": \" <|a|> \", \"n\": 7, \"l\": [\"x\", \"<|a|>\"]}";
    expect_marked("<|a|>{{ u }}<|b|>", vars, "«<|a|>» <|a|> «<|b|>»");
    expect_marked("{{ '<|a|>' }}{{ u|trim }}", vars, "«<|a|>»<|a|>");
    expect_marked("{{ bos_token }}{{ u.strip() }}", vars, "«<s>»<|a|>");
    expect_marked("{{ '[' + u[1:-1] + ']' }}", vars, "«[»<|a|>«]»");
    expect_marked("{{ '[' ~ u.strip()[::-1] ~ n ~ ']' }}", vars, "«[»>|a|<7«]»");
    expect_marked("{{ u.strip().replace('a', '-') }}", vars, "<|«-»|>");
    expect_marked("{{ 'a-b'|replace('-', u|trim) }}", vars, "«a»<|a|>«b»");
    expect_marked("{{ l|join(', ') }}", vars, "x«, »<|a|>");
    expect_marked("{{ ', '.join(l) }}", vars, "x«, »<|a|>");
    expect_marked("{{ l|tojson }}", vars, "[\"x\", \"<|a|>\"]");
    expect_marked("{{ ['<|b|>', u]|tojson }}", vars, "[\"«<|b|>»\", \" <|a|> \"]");
    expect_marked("{{ [u] }}", vars, "[' <|a|> ']");
    expect_marked("{% macro f(x) %}<|b|>{{ x }}{% endmacro %}{{ f(u)|trim }}", vars,
                  "«<|b|>» <|a|>");
    expect_marked("{% set q %}<|b|>{{ u }}{% endset %}{{ q }}", vars, "«<|b|>» <|a|> ");
    expect_marked("{% set q = namespace(t='<') %}{% set q.t = q.t ~ u|trim %}{{ q.t }}", vars,
                  "«<»<|a|>");
    expect_marked("{% filter upper %}b{{ u|trim }}{% endfilter %}", vars, "«B»<|A|>");
    expect_marked("{% macro f() %}({{ caller() }}){% endmacro %}{% call f() %}{{ u|trim }}"
                  "{% endcall %}",
                  vars, "«(»<|a|>«)»");
    expect_marked("{{ '%s|%d|%d' % (u|trim, n, 8) }}", vars, "<|a|>«|»7«|8»");
    expect_marked("{{ '{}|{:>6}'.format(u|trim, 'b') }}", vars, "<|a|>«|     b»");
    expect_marked("{{ n }}{{ nope|default(3) }}{{ n + 1 }}{{ u|length }}", vars, "7«3»8«7»");
    expect_marked("{{ u|trim|e }}", vars, "&lt;|a|&gt;");
    expect_marked("{{ ('<b>'|safe) + l[1] }}", vars, "«<b>»&lt;|a|&gt;");
    expect_marked("{{ u|upper|lower|title|capitalize|trim }}", vars, "<|a|>");
    expect_marked("{{ (u ~ '\n' ~ u)|indent(2) }}", vars, " <|a|> «\n  » <|a|> ");
    expect_marked("{{ 'a|b'.split('|')[0] }}{{ u.split('|')|join('!') }}", vars, "«a» <«!»a«!»> ");
    expect_marked("{{ l|map('upper')|list|last }}{{ l|first }}", vars, "<|A|>x");
    expect_marked("{% for c in l[1] %}{{ c }}.{% endfor %}", vars, "<«.»|«.»a«.»|«.»>«.»");
    expect_marked("{{ '[\"<|a|>\"]'|from_json|first }}{{ l|tojson|from_json|last }}", vars,
                  "«<|a|>»<|a|>");
    expect_marked("{{ u|truncate(4, true, '..', 0)|trim }}{{ u|trim|center(7) }}", vars,
                  "<«.. »<|a|>« »");
    expect_marked("{{ '<|%s|>' % 'a' }}{{ l[1]|string|safe }}", vars, "«<|a|>»<|a|>");
    expect_marked("{{ {'k': u}|tojson(indent=1) }}", "{\"u\": \"\\n\"}", "{\n \"«k»\": \"\\n\"\n}");
    expect_marked("{{ bos_token }}", "{\"bos_token\": \"<s>\"}", "<s>"); // the request's own
    expect_marked("{{ u * 2 }}{{ '-' * 2 }}", "{\"u\": \"<\"}", "<<«--»");
}

/* Text behind text, in place, must leave earlier slices and their marks as they were. */
static void shared_tails_keep_their_marks(void) {
    char vars[400], wanted[800];
    snprintf(vars, sizeof vars, "{\"u\": \"%0300d\"}", 0);
    snprintf(wanted, sizeof wanted, "%0300d", 0);
    expect_marked("{% set a = u + u[:0] %}{% set b = a + '<a>' %}{% set c = b + u %}{{ a }}", vars,
                  wanted);
    expect_marked("{% set b = u + '<a>' %}{% set c = b + u %}{{ c[303:] }}", vars, wanted);
    snprintf(wanted, sizeof wanted, "%0300d«<a>[»%0300d«<b>]»", 0, 0);
    expect_marked("{% set a = u + '<a>' %}{% set b = a[:-3] + '<b>' %}{{ a }}[{{ b }}]", vars,
                  wanted);
}

/* ---- threads ---- */

typedef struct worker {
    const chat_template *t;
    int n_same;
} worker;

static void *render_often(void *arg) {
    worker *w = arg;
    json_t *vars = read_json(example_vars);
    for (int i = 0; i < 200; i++) {
        chat_text text;
        inferd_err err = {0};
        if (chat_template_render(w->t, NULL, vars, &now, &text, &err) == INFERD_OK &&
            strcmp(text.text, "user:hi;assistant:yo <b>;[1, 2, 3]a=1,") == 0)
            w->n_same++;
        chat_text_deinit(&text);
    }
    json_decref(vars);
    return NULL;
}

static void one_template_serves_many_threads(void) {
    const char *source = "{% macro f(m) %}{{ m.role ~ ':' ~ m.content }};{% endmacro %}"
                         "{% for x in m %}{{ f(x) }}{% endfor %}{{ l|sort }}"
                         "{% set ns = namespace(t='') %}{% set ns.t = ns.t + 'a=' %}"
                         "{{ ns.t ~ d.a }},";
    chat_template *t;
    inferd_err err = {0};
    pthread_t threads[4];
    worker workers[4];
    EXPECT_EQ(chat_template_open(text_bytes(source), NULL, &t, &err), INFERD_OK);
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){.t = t};
        EXPECT_EQ(pthread_create(&threads[i], NULL, render_often, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(workers[i].n_same, 200);
    }
    chat_template_close(t);
}

static const test_case cases[] = {
    TEST(expressions_are_those_of_jinja2),
    TEST(statements_are_those_of_jinja2),
    TEST(real_templates_render_exactly),
    TEST(errors_say_the_line),
    TEST(raised_words_stand_alone),
    TEST(limits_end_a_render),
    TEST(limits_can_be_set),
    TEST(deep_sources_are_refused),
    TEST(long_chains_are_fine),
    TEST(growing_a_text_is_linear),
    TEST(every_memory_bound_is_survived),
    TEST(provenance_is_exact),
    TEST(shared_tails_keep_their_marks),
    TEST(one_template_serves_many_threads),
};

TEST_MAIN(cases)
