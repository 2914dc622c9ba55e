/* test_transcripts.c - conversations keep their tokens from turn to turn, and it is known where a
 * prompt leaves an earlier one. */
#include <pthread.h>
#include <unistd.h>

#include "test.h"
#include "tiny_gguf.h"
#include "transcripts.h"

enum { TEXT_MAX = 4096 };

typedef struct rig {
    model *m;
    const tokenizer *tok;
    transcripts *ts;
    transcript_options o;
    transcript_match match; // of the newest prompt
    tok_ids ids;            // its tokens
} rig;

static model *open_tiny(void) {
    char path[] = P_tmpdir "/inferd-transcripts-XXXXXX";
    int fd = mkstemp(path);
    INFERD_CHECK(fd >= 0);
    close(fd);
    tiny_model_write(path, 1, NULL);
    model *m = NULL;
    inferd_err err = {0};
    model_options o = {.path = path};
    EXPECT_EQ(model_open(&o, &m, &err), INFERD_OK);
    unlink(path);
    return m;
}

static rig open_rig(uint64_t bytes_max) {
    rig r = {.m = open_tiny(), .ts = transcripts_create(bytes_max)};
    r.tok = model_tokenizer(r.m);
    r.o = (transcript_options){.m = r.m,
                               .scope = {1, 2},
                               .context = 1 << 20,
                               .reasoning_open = "<think>",
                               .reasoning_close = "</think>"};
    return r;
}

static void verify(rig *r) {
    inferd_err err = {0};
    if (transcripts_verify(r->ts, &err) != INFERD_OK) printf("%s\n", err.text);
    EXPECT_EQ(err.status, INFERD_OK);
}

static void close_rig(rig *r) {
    verify(r);
    tok_ids_deinit(&r->ids);
    transcripts_forget(r->ts, r->m);
    transcripts_stats s;
    transcripts_get_stats(r->ts, &s);
    EXPECT_EQ(s.n_parts, 0);
    EXPECT_EQ(s.n_bytes, 0);
    transcripts_destroy(r->ts);
    model_close(r->m);
}

static void encode_plain(const rig *r, const char *text, tok_ids *out) {
    inferd_err err = {0};
    tok_span all = {strlen(text), true};
    EXPECT_EQ(tok_encode(r->tok, (bytes){text, strlen(text)}, &all, 1, NULL, out, &err), INFERD_OK);
}

static bool same_ids(const tok_ids *a, const tok_ids *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

static transcript *prompt(rig *r, const char *text) {
    transcript *t = NULL;
    inferd_err err = {0};
    tok_span all = {strlen(text), true};
    r->ids.n = 0;
    EXPECT_EQ(transcripts_encode(r->ts, &r->o, (bytes){text, strlen(text)}, &all, 1, &r->ids, &t,
                                 &r->match, &err),
              INFERD_OK);
    return t;
}

static bool has_plain_ids(const rig *r, const char *text) {
    tok_ids plain = {0};
    encode_plain(r, text, &plain);
    bool same = same_ids(&plain, &r->ids);
    tok_ids_deinit(&plain);
    return same;
}

/* The prompt, and an answer of the tokens of this text, or one token for each byte. */
static void turn(rig *r, const char *text, const char *answer, bool bytewise) {
    transcript *t = prompt(r, text);
    EXPECT(t != NULL);
    if (t == NULL) return;
    transcript_computed(t);
    tok_ids ids = {0};
    if (bytewise) {
        for (const char *p = answer; *p != 0; p++)
            tok_ids_push(&ids, TINY_BYTE_0 + (unsigned char)*p);
        tok_ids_push(&ids, TINY_IM_END);
    } else {
        encode_plain(r, answer, &ids);
    }
    transcript_answer(t, ids.ids, ids.n);
    tok_ids_deinit(&ids);
    transcript_release(t);
    verify(r);
}

/* The newest prompt leaves the one before at this byte, for this reason. */
#define EXPECT_MATCH(r, is_cause, is_at)                                                           \
    do {                                                                                           \
        EXPECT_STR((prefix_cause_name((r)->match.cause)), prefix_cause_name(is_cause));            \
        EXPECT_EQ((r)->match.at, (size_t)(is_at));                                                 \
    } while (0)

#define SYSTEM "<|im_start|>system\nYou help.<|im_end|>\n"
#define USER   "<|im_start|>user\nHi there<|im_end|>\n"
#define OPEN   "<|im_start|>assistant\n"
#define CLOSE  "<|im_end|>\n"

static void a_conversation_grows(void) {
    rig r = open_rig(1 << 20);
    const char *first = SYSTEM USER OPEN, *second = SYSTEM USER OPEN "Hello you" CLOSE USER OPEN;
    turn(&r, first, "Hello you<|im_end|>", false);
    EXPECT_MATCH(&r, PREFIX_FIRST, 0);
    EXPECT(has_plain_ids(&r, first));
    size_t n_first = r.ids.n;
    turn(&r, second, "Hello again<|im_end|>", false);
    EXPECT_MATCH(&r, PREFIX_GROWN, strlen(SYSTEM USER OPEN "Hello you<|im_end|>"));
    EXPECT(has_plain_ids(&r, second));
    EXPECT(r.match.n_ids > n_first);
    turn(&r, second, "Hello again<|im_end|>", false); // the same once more
    EXPECT_MATCH(&r, PREFIX_GROWN, strlen(second));
    EXPECT_EQ(r.match.n_ids, r.ids.n);
    transcripts_stats s;
    transcripts_get_stats(r.ts, &s);
    EXPECT_EQ(s.n_resent, 1);
    EXPECT_EQ(s.n_retokenised, 0);
    close_rig(&r);
}

static void an_answer_keeps_its_tokens(void) {
    rig r = open_rig(1 << 20);
    const char *second = SYSTEM USER OPEN "Hello there you" CLOSE USER OPEN;
    turn(&r, SYSTEM USER OPEN, "Hello there you", true);
    turn(&r, second, "Fine<|im_end|>", false);
    EXPECT_MATCH(&r, PREFIX_GROWN, strlen(SYSTEM USER OPEN "Hello there you<|im_end|>"));
    EXPECT(!has_plain_ids(&r, second));
    buf text = {0};
    for (size_t i = 0; i < r.ids.n; i++) {
        bytes piece = tok_piece(r.tok, r.ids.ids[i]);
        buf_add(&text, piece.p, piece.n);
    }
    EXPECT_STR(buf_cstr(&text), second);
    buf_deinit(&text);
    transcripts_stats s;
    transcripts_get_stats(r.ts, &s);
    EXPECT_EQ(s.n_resent, 1);
    EXPECT_EQ(s.n_retokenised, 1);
    close_rig(&r);
}

static void canonical_tokens_depend_on_the_text_only(void) {
    rig r = open_rig(1 << 20);
    const char *second = SYSTEM USER OPEN "Hello there you" CLOSE USER OPEN;
    turn(&r, SYSTEM USER OPEN, "Hello there you", true);
    r.o.canonical = true;
    transcript_release(prompt(&r, second));
    EXPECT_STR(prefix_cause_name(r.match.cause), "retokenised");
    EXPECT(r.match.at >= strlen(SYSTEM USER OPEN) &&
           r.match.at < strlen(SYSTEM USER OPEN "Hello there you"));
    EXPECT(has_plain_ids(&r, second));
    r.o.canonical = false; // what was drawn is still known
    transcript_release(prompt(&r, second));
    EXPECT(!has_plain_ids(&r, second));
    close_rig(&r);
}

static void a_scope_is_apart(void) {
    rig r = open_rig(1 << 20);
    turn(&r, SYSTEM USER OPEN, "Hello", true);
    r.o.scope[0] = 7;
    turn(&r, SYSTEM USER OPEN "Hello" CLOSE USER OPEN, "So", false);
    EXPECT_MATCH(&r, PREFIX_FIRST, 0);
    EXPECT(has_plain_ids(&r, SYSTEM USER OPEN "Hello" CLOSE USER OPEN));
    close_rig(&r);
}

static void causes_are_told_apart(void) {
    rig r = open_rig(1 << 20);
    turn(&r, SYSTEM USER OPEN, "<think>\nwell</think>\n\nHello<|im_end|>", false);
    const char *same = SYSTEM USER OPEN;
    transcript_release(prompt(&r, SYSTEM USER OPEN "Hello" CLOSE USER OPEN));
    EXPECT_MATCH(&r, PREFIX_REASONING, strlen(same));
    transcript_release(prompt(&r, SYSTEM USER OPEN "<think>\n\n</think>\n\nHello" CLOSE USER OPEN));
    EXPECT_MATCH(&r, PREFIX_REASONING, strlen(same) + strlen("<think>\n"));
    transcript_release(prompt(&r, SYSTEM USER OPEN "<think>\nwell</think>\n\nHallo" CLOSE));
    EXPECT_MATCH(&r, PREFIX_ANSWER, strlen(same) + strlen("<think>\nwell</think>\n\nH"));
    transcript_release(prompt(&r, SYSTEM USER OPEN "<think>\nwell</think>\n\nHell" CLOSE));
    EXPECT_MATCH(&r, PREFIX_ANSWER, strlen(same) + strlen("<think>\nwell</think>\n\nHell"));
    transcript_release(prompt(&r, SYSTEM "<|im_start|>user\nHi them<|im_end|>\n" OPEN));
    EXPECT_MATCH(&r, PREFIX_CHANGED, strlen(SYSTEM "<|im_start|>user\nHi the"));
    transcript_release(prompt(&r, "<|im_end|>" SYSTEM));
    EXPECT_MATCH(&r, PREFIX_CHANGED, strlen("<|im_"));
    /* What was refused before it was computed is not known. */
    transcript_release(prompt(&r, SYSTEM "<|im_start|>user\nHi them<|im_end|>\n" OPEN));
    EXPECT_MATCH(&r, PREFIX_CHANGED, strlen(SYSTEM "<|im_start|>user\nHi the"));
    close_rig(&r);
}

/* What stands behind the reasoning may begin like the mark of the reasoning. */
static void dropped_reasoning_is_known_by_a_part_of_its_mark(void) {
    static const char *const answers[] = {"<tool_call>\nx", "<table>x</table>", "<think", "Hello",
                                          "\n\n<t"};
    for (size_t i = 0; i < INFERD_COUNT(answers); i++) {
        rig r = open_rig(1 << 20);
        char text[TEXT_MAX];
        snprintf(text, sizeof text, "<think>\nwell</think>\n\n%s<|im_end|>", answers[i]);
        turn(&r, SYSTEM USER OPEN, text, false);
        snprintf(text, sizeof text, SYSTEM USER OPEN "%s" CLOSE USER OPEN, answers[i]);
        transcript_release(prompt(&r, text));
        EXPECT_STR(prefix_cause_name(r.match.cause), "reasoning_dropped");
        close_rig(&r);
    }
}

/* Templates of some models open the reasoning in the prompt. */
static void reasoning_that_the_prompt_opens_is_known(void) {
    rig r = open_rig(1 << 20);
    turn(&r, SYSTEM USER OPEN "<think>\n", "well</think>\n\n<t>Hello<|im_end|>", false);
    transcript_release(prompt(&r, SYSTEM USER OPEN "<t>Hello" CLOSE USER OPEN));
    EXPECT_MATCH(&r, PREFIX_REASONING, strlen(SYSTEM USER OPEN "<t"));
    transcript_release(prompt(&r, SYSTEM USER OPEN "</think>\n\n<t>Hello" CLOSE USER OPEN));
    EXPECT_MATCH(&r, PREFIX_REASONING, strlen(SYSTEM USER OPEN "<"));
    close_rig(&r);
}

/* As in harmony: the marks have control tokens, and words between them. */
static void marks_of_several_tokens_are_known(void) {
    rig r = open_rig(1 << 20);
    r.o.reasoning_open = "<|im_start|>analysis<|im_start|>";
    r.o.reasoning_close = "<|im_end|><|im_start|>assistant";
    const char *asked = SYSTEM USER "<|im_start|>assistant";
    turn(&r, asked,
         "<|im_start|>analysis<|im_start|>well<|im_end|><|im_start|>assistant<|im_start|>and "
         "so<|im_start|>Hello<|im_end|>",
         false);
    transcript_release(prompt(&r, SYSTEM USER "<|im_start|>assistant<|im_start|>and "
                                              "so<|im_start|>Hello<|im_end|>" USER OPEN));
    EXPECT_MATCH(&r, PREFIX_REASONING, strlen(asked) + strlen("<|im_start|>an"));
    /* Another text behind whole reasoning. */
    transcript_release(prompt(
        &r, SYSTEM USER "<|im_start|>assistant<|im_start|>analysis<|im_start|>well<|im_end|>"
                        "<|im_start|>assistant<|im_start|>and so<|im_start|>Hallo<|im_end|>"));
    EXPECT_STR(prefix_cause_name(r.match.cause), "answer_changed");
    close_rig(&r);
}

/* A call that came back as text, and no reasoning before it. */
static void other_text_in_other_parts_is_a_changed_answer(void) {
    rig r = open_rig(1 << 20);
    turn(&r, SYSTEM USER OPEN, "<|im_start|>call<|im_end|>", false);
    transcript_release(prompt(&r, SYSTEM USER OPEN "<|table" CLOSE));
    EXPECT_MATCH(&r, PREFIX_ANSWER, strlen(SYSTEM USER OPEN "<|"));
    close_rig(&r);
}

/* gpt-oss ends an answer with <|return|>, and its template writes <|end|>. */
static void another_end_of_an_answer_is_no_change(void) {
    rig r = open_rig(1 << 20);
    turn(&r, SYSTEM USER OPEN, "Hello<|im_end|>", false);
    transcript_release(prompt(&r, SYSTEM USER OPEN "Hello<|im_start|>user\nSo"));
    EXPECT_MATCH(&r, PREFIX_GROWN, strlen(SYSTEM USER OPEN "Hello"));
    transcript_release(prompt(&r, SYSTEM USER OPEN "Hello you" CLOSE));
    EXPECT_MATCH(&r, PREFIX_ANSWER, strlen(SYSTEM USER OPEN "Hello"));
    close_rig(&r);
}

/* Text that looks like a control token, and the token. */
static void the_same_text_in_other_parts_is_noticed(void) {
    rig r = open_rig(1 << 20);
    inferd_err err = {0};
    turn(&r, "<|im_start|>user\nHi<|im_end|>", "Ho", false);
    const char *text = "<|im_start|>user\nHi<|im_end|>";
    tok_span spans[] = {{strlen("<|im_start|>"), true},
                        {strlen(text) - strlen("<|im_start|>"), false}};
    transcript *t = NULL;
    r.ids.n = 0;
    EXPECT_EQ(transcripts_encode(r.ts, &r.o, (bytes){text, strlen(text)}, spans, 2, &r.ids, &t,
                                 &r.match, &err),
              INFERD_OK);
    EXPECT_MATCH(&r, PREFIX_RETOKENISED, strlen("<|im_start|>user\nHi"));
    transcript_release(t);
    close_rig(&r);
}

static void the_oldest_goes_first(void) {
    rig r = open_rig(24 << 10);
    char text[TEXT_MAX];
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, SYSTEM "<|im_start|>user\nNumber %d asks<|im_end|>\n" OPEN, i);
        turn(&r, text, "Hello<|im_end|>", false);
        transcripts_stats s;
        transcripts_get_stats(r.ts, &s);
        EXPECT(s.n_bytes <= 24 << 10);
    }
    size_t system = strlen(SYSTEM "<|im_start|>user\nNumber ");
    turn(&r, text, "Hello<|im_end|>", false);
    EXPECT_MATCH(&r, PREFIX_GROWN, strlen(text));
    snprintf(text, sizeof text, SYSTEM "<|im_start|>user\nNumber 77 asks<|im_end|>\n" OPEN);
    transcript_release(prompt(&r, text));
    EXPECT(r.match.at >= system && r.match.at < system + 4);
    transcripts_set_bytes_max(r.ts, 0);
    transcripts_stats s;
    transcripts_get_stats(r.ts, &s);
    EXPECT_EQ(s.n_parts, 0);
    EXPECT(prompt(&r, text) == NULL); // no room, and tokenized all the same
    EXPECT(has_plain_ids(&r, text));
    close_rig(&r);
}

static void many_parts_are_found(void) {
    rig r = open_rig(8 << 20);
    char text[TEXT_MAX];
    for (int i = 0; i < 3000; i++) {
        snprintf(text, sizeof text, "<|im_start|>user %d<|im_end|>", i);
        transcript *t = prompt(&r, text);
        EXPECT(t != NULL);
        if (t != NULL) transcript_computed(t);
        transcript_release(t);
    }
    verify(&r);
    for (int i = 0; i < 3000; i++) {
        snprintf(text, sizeof text, "<|im_start|>user %d<|im_end|>", i);
        transcript_release(prompt(&r, text));
        EXPECT_EQ(r.match.n_ids, r.ids.n);
    }
    transcripts_stats s;
    transcripts_get_stats(r.ts, &s);
    EXPECT_EQ(s.n_parts, 2 + 2 * 3000);
    close_rig(&r);
}

static void expect_nearest(rig *r, char names[][16], int n, const char *asked) {
    char text[TEXT_MAX];
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        size_t c = 0;
        while (names[i][c] == asked[c] && asked[c] != 0) c++;
        most = size_max(most, c);
    }
    snprintf(text, sizeof text, "<|im_start|>%s", asked);
    transcript_release(prompt(r, text));
    EXPECT_EQ(r->match.at, strlen("<|im_start|>") + most);
}

/* However many conversations begin the same way: against a look at each; seed printed. */
static void the_nearest_of_many_is_found(void) {
    enum { NAMES = 400 };
    uint64_t state = 20261128;
    printf("seed %llu\n", (unsigned long long)state);
    rig r = open_rig(1 << 20);
    char names[NAMES][16], text[TEXT_MAX], asked[16];
    for (int i = 0; i < NAMES; i++) {
        for (int k = 0; k < 8; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            names[i][k] = (char)('a' + (state >> 60) % 3);
        }
        names[i][8 - i % 5] = 0;
        snprintf(text, sizeof text, "<|im_start|>%s", names[i]);
        transcript *t = prompt(&r, text);
        EXPECT(t != NULL);
        if (t != NULL) transcript_computed(t);
        transcript_release(t);
    }
    verify(&r);
    for (int i = 0; i < NAMES; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        snprintf(asked, sizeof asked, "%s", names[(state >> 40) % NAMES]);
        asked[(state >> 50) % strlen(asked)] = (char)('a' + (state >> 60) % 4);
        expect_nearest(&r, names, NAMES, asked);
    }
    transcripts_set_bytes_max(r.ts, 20 << 10); // most are forgotten
    verify(&r);
    close_rig(&r);
}

/* 80 others with the same system message were asked meanwhile. */
static void an_earlier_one_is_known_behind_many_others(void) {
    rig r = open_rig(1 << 20);
    char text[TEXT_MAX];
    const char *begin = SYSTEM "<|im_start|>user\nMany words about the sea and the ";
    snprintf(text, sizeof text, "%swind<|im_end|>\n" OPEN, begin);
    turn(&r, text, "Fine<|im_end|>", false);
    for (int i = 0; i < 80; i++) {
        snprintf(text, sizeof text, SYSTEM "<|im_start|>user\nNumber %d<|im_end|>\n" OPEN, i);
        turn(&r, text, "Fine<|im_end|>", false);
    }
    snprintf(text, sizeof text, "%srain<|im_end|>\n" OPEN, begin);
    transcript_release(prompt(&r, text));
    EXPECT_MATCH(&r, PREFIX_CHANGED, strlen(begin));
    EXPECT(r.match.n_ids > 20);
    close_rig(&r);
}

static void a_prompt_without_room_is_not_kept(void) {
    rig r = open_rig(4096);
    char text[TEXT_MAX];
    snprintf(text, sizeof text, "<|im_start|>%03000d<|im_end|>", 1);
    EXPECT(prompt(&r, text) == NULL);
    EXPECT(has_plain_ids(&r, text));
    verify(&r);
    transcript *held[16];
    size_t n = 0;
    for (; n < 16; n++) { // what is in use does not go
        snprintf(text, sizeof text, "<|im_start|>user %zu<|im_end|>", n);
        if ((held[n] = prompt(&r, text)) == NULL) break;
        transcript_computed(held[n]);
    }
    EXPECT(n > 0 && n < 16);
    verify(&r);
    while (n-- > 0) transcript_release(held[n]);
    close_rig(&r);
}

/* It is refused later; what others keep stays. */
static void a_prompt_over_the_context_is_not_kept(void) {
    rig r = open_rig(1 << 20);
    turn(&r, SYSTEM USER OPEN, "Hello<|im_end|>", false);
    transcripts_stats before, after;
    transcripts_get_stats(r.ts, &before);
    r.o.context = (uint32_t)r.ids.n;
    EXPECT(prompt(&r, SYSTEM USER OPEN "Hello" CLOSE USER OPEN) == NULL);
    EXPECT_EQ(r.match.cause, PREFIX_GROWN);
    transcripts_get_stats(r.ts, &after);
    EXPECT_EQ(after.n_parts, before.n_parts);
    close_rig(&r);
}

static void bad_text_is_refused(void) {
    rig r = open_rig(1 << 20);
    transcript *t = NULL;
    inferd_err err = {0};
    EXPECT_EQ(
        transcripts_encode(r.ts, &r.o, (bytes){"a\xff", 2}, NULL, 0, &r.ids, &t, &r.match, &err),
        INFERD_EINVAL);
    EXPECT(t == NULL && r.ids.n == 0);
    close_rig(&r);
}

/* Every turn against tok_encode, with random answers in random tokens; seed printed. */
static void random_conversations_have_the_right_tokens(void) {
    uint64_t state = 20261127;
    printf("seed %llu\n", (unsigned long long)state);
    rig r = open_rig(64 << 10);
    for (int c = 0; c < 40; c++) {
        buf text = {0};
        tok_ids expected = {0};
        buf_add_str(&text, SYSTEM);
        for (int k = 0; k < 12; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            bool bytewise = (state >> 40) % 2 == 0;
            buf_add_format(&text, "<|im_start|>user\nSay the %u<|im_end|>\n" OPEN,
                           (unsigned)(state >> 33) % 5);
            expected.n = 0;
            encode_plain(&r, buf_cstr(&text), &expected);
            char answer[64];
            snprintf(answer, sizeof answer, "the %u then", (unsigned)(state >> 50) % 9);
            turn(&r, buf_cstr(&text), answer, bytewise);
            EXPECT(r.ids.n >= expected.n); // bytes for words, never more text
            size_t n_bytes = 0;
            for (size_t i = 0; i < r.ids.n; i++) n_bytes += tok_piece(r.tok, r.ids.ids[i]).n;
            EXPECT_EQ(n_bytes, text.n);
            buf_add_format(&text, "%s" CLOSE, answer);
        }
        buf_deinit(&text);
        tok_ids_deinit(&expected);
    }
    close_rig(&r);
}

typedef struct crowd {
    rig *r;
    int number;
} crowd;

static void *one_of_many(void *ctx) {
    const crowd *c = ctx;
    char text[TEXT_MAX];
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, SYSTEM "<|im_start|>user\nNumber %d of %d<|im_end|>\n" OPEN,
                 i % 7, c->number % 2);
        transcript *t = NULL;
        transcript_match match;
        inferd_err err = {0};
        tok_ids ids = {0};
        tok_span all = {strlen(text), true};
        inferd_status s = transcripts_encode(c->r->ts, &c->r->o, (bytes){text, strlen(text)}, &all,
                                             1, &ids, &t, &match, &err);
        INFERD_CHECK(s == INFERD_OK && ids.n > 0);
        if (t != NULL) transcript_computed(t);
        if (t != NULL) transcript_answer(t, (tok_id[]){TINY_BYTE_0 + 'a' + i % 3, TINY_IM_END}, 2);
        transcript_release(t);
        tok_ids_deinit(&ids);
    }
    return NULL;
}

static void threads_share_it(void) {
    rig r = open_rig(6 << 10);
    pthread_t threads[4];
    crowd crowds[4];
    for (int i = 0; i < 4; i++) {
        crowds[i] = (crowd){&r, i};
        INFERD_CHECK(pthread_create(&threads[i], NULL, one_of_many, &crowds[i]) == 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    close_rig(&r);
}

static const test_case cases[] = {TEST(a_conversation_grows),
                                  TEST(an_answer_keeps_its_tokens),
                                  TEST(canonical_tokens_depend_on_the_text_only),
                                  TEST(a_scope_is_apart),
                                  TEST(causes_are_told_apart),
                                  TEST(dropped_reasoning_is_known_by_a_part_of_its_mark),
                                  TEST(reasoning_that_the_prompt_opens_is_known),
                                  TEST(marks_of_several_tokens_are_known),
                                  TEST(other_text_in_other_parts_is_a_changed_answer),
                                  TEST(another_end_of_an_answer_is_no_change),
                                  TEST(the_same_text_in_other_parts_is_noticed),
                                  TEST(the_oldest_goes_first),
                                  TEST(many_parts_are_found),
                                  TEST(the_nearest_of_many_is_found),
                                  TEST(an_earlier_one_is_known_behind_many_others),
                                  TEST(a_prompt_without_room_is_not_kept),
                                  TEST(a_prompt_over_the_context_is_not_kept),
                                  TEST(bad_text_is_refused),
                                  TEST(random_conversations_have_the_right_tokens),
                                  TEST(threads_share_it)};
TEST_MAIN(cases)
