/* plan.c - see plan.h. */
#include "plan.h"

#include <math.h>

/* Short common words: most vocabularies have a token for each, including the space before it. */
static const char *const WORDS[] = {
    "time",    "year",    "people",  "way",      "day",    "man",     "thing",   "woman",
    "life",    "child",   "world",   "school",   "state",  "family",  "group",   "country",
    "hand",    "part",    "place",   "case",     "week",   "company", "system",  "work",
    "number",  "night",   "point",   "home",     "water",  "room",    "mother",  "area",
    "money",   "story",   "fact",    "month",    "lot",    "right",   "study",   "book",
    "eye",     "job",     "word",    "business", "issue",  "side",    "kind",    "head",
    "house",   "service", "friend",  "father",   "power",  "hour",    "game",    "line",
    "end",     "member",  "law",     "car",      "city",   "name",    "team",    "minute",
    "idea",    "body",    "back",    "parent",   "face",   "others",  "level",   "office",
    "door",    "health",  "person",  "art",      "war",    "history", "party",   "result",
    "change",  "morning", "reason",  "research", "girl",   "moment",  "air",     "teacher",
    "force",   "order",   "foot",    "boy",      "age",    "policy",  "music",   "market",
    "sense",   "nation",  "plan",    "college",  "death",  "effect",  "use",     "class",
    "control", "care",    "field",   "role",     "effort", "rate",    "heart",   "drug",
    "show",    "light",   "voice",   "wife",     "police", "mind",    "price",   "report",
    "son",     "view",    "town",    "road",     "arm",    "truth",   "value",   "action",
    "model",   "season",  "film",    "player",   "record", "paper",   "space",   "ground",
    "form",    "event",   "matter",  "center",   "couple", "site",    "project", "star",
    "table",   "need",    "court",   "oil",      "half",   "cost",    "list",    "rock",
    "risk",    "fire",    "future",  "bank",     "rest",   "sound",   "step",    "tree",
    "source",  "wall",    "land",    "south",    "north",  "east",    "west",    "green",
    "blue",    "red",     "white",   "black",    "small",  "large",   "early",   "late",
    "open",    "long",    "short",   "high",     "low",    "new",     "old",     "good",
    "great",   "strong",  "free",    "full",     "real",   "sure",    "run",     "walk",
    "talk",    "read",    "write",   "speak",    "think",  "know",    "feel",    "find",
    "give",    "take",    "make",    "come",     "leave",  "keep",    "hold",    "bring",
    "turn",    "start",   "stop",    "play",     "move",   "live",    "stand",   "lose",
    "pay",     "meet",    "include", "learn",    "lead",   "watch",   "follow",  "create",
    "speak",   "allow",   "add",     "spend",    "grow",   "offer",   "love",    "wait",
    "serve",   "send",    "build",   "stay",     "fall",   "cut",     "reach",   "kill",
};

static uint32_t length_draw(const length_spec *l, uint32_t traced, uint32_t max, rng *random) {
    uint32_t n =
        l->from_trace ? traced : l->lo + (uint32_t)rng_below(random, (uint64_t)l->hi - l->lo + 1);
    if (max > 0 && n > max) n = max;
    return n < 1 ? 1 : n;
}

static uint32_t choice_draw(const choices *c, rng *random) {
    return c->n == 0 ? 0 : (uint32_t)choices_draw(c, random);
}

/* ---- prompts of a data set ---- */

static const dataset_entry *entry_of(const bench_class *c, deck_card card) {
    return &c->data.entries[card.entry];
}

static const dataset_turn *turn_of(const bench_class *c, const request_plan *plan) {
    const dataset_entry *e = entry_of(c, plan->card);
    return &c->data.turns[e->first_turn + plan->turn % e->n_turns];
}

/* About how many tokens a text has. */
static uint32_t tokens_of(const bench_class *c, const char *text) {
    double n = 0;
    bool in_word = false;
    for (; *text != 0; text++) {
        bool is_space = *text == ' ' || *text == '\n' || *text == '\t' || *text == '\r';
        if (!is_space && !in_word) n++;
        in_word = !is_space;
    }
    return (uint32_t)fmin(fmax(round(n * c->tokens_per_word), 1), LENGTH_MAX);
}

/* ---- drawing ---- */

uint32_t plan_turns(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                    deck_card card) {
    rng random = rng_make(seed ^ 0x7475726e73, class_idx, idx);
    uint32_t n = length_draw(&c->turns, 1, 0, &random);
    if (c->data.n == 0 || c->data.is_text) return n;
    return u32_min(n, entry_of(c, card)->n_turns);
}

request_plan plan_draw(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                       uint32_t turn) {
    return plan_draw_card(c, seed, class_idx, idx, turn, (deck_card){0});
}

request_plan plan_draw_card(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                            uint32_t turn, deck_card card) {
    rng random = rng_make(seed, class_idx, idx * 2), later;
    rng *lengths = &random;
    trace_row row = {0};
    if (c->tr.n > 0) row = c->tr.rows[idx % c->tr.n];
    request_plan plan = {.seed = seed,
                         .class_idx = class_idx,
                         .idx = idx,
                         .turn = turn,
                         .card = card,
                         .n_before = c->system_tokens};
    plan.model = choice_draw(&c->models, &random);
    plan.key = choice_draw(&c->keys, &random);
    plan.priority = choice_draw(&c->priorities, &random);
    plan.tier = choice_draw(&c->tiers, &random);
    if (turn > 0) {
        later = rng_make(rng_next(&random), turn, 0);
        lengths = &later;
    }
    plan.n_prompt = length_draw(&c->prompt, row.n_prompt, c->prompt_max, lengths);
    plan.n_output = length_draw(&c->output, row.n_output, c->output_max, lengths);
    if (c->data.n == 0) return plan;
    const dataset_turn *t = turn_of(c, &plan);
    plan.n_prompt = tokens_of(c, dataset_text(&c->data, t->user));
    if (c->output.from_dataset && t->answer != 0)
        plan.n_output = tokens_of(c, dataset_text(&c->data, t->answer));
    if (c->output_max > 0) plan.n_output = u32_min(plan.n_output, c->output_max);
    return plan;
}

void plan_string(buf *out, const char *text) {
    buf_add_char(out, '"');
    for (const unsigned char *p = (const unsigned char *)text; *p != 0; p++) {
        if (*p == '"' || *p == '\\')
            buf_add_char(out, '\\'), buf_add_char(out, (char)*p);
        else if (*p < 0x20)
            buf_add_format(out, "\\u%04x", *p);
        else
            buf_add_char(out, (char)*p);
    }
    buf_add_char(out, '"');
}

static void add_words(buf *out, rng *random, uint32_t n, bool first) {
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 || !first) buf_add_char(out, ' ');
        buf_add_str(out, WORDS[rng_below(random, INFERD_COUNT(WORDS))]);
    }
}

static void add_ids(buf *out, rng *random, uint32_t n, bool first, const bench_class *c) {
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id = c->id_lo + rng_below(random, (uint64_t)c->id_hi - c->id_lo + 1);
        if (i > 0 || !first) buf_add_char(out, ',');
        buf_add_format(out, "%llu", (unsigned long long)id);
    }
}

/* The shared tokens are drawn from a generator of the class, the others from one of the request. */
void plan_message(const request_plan *plan, const bench_class *c, buf *out) {
    if (c->data.n > 0) {
        plan_string(out, dataset_text(&c->data, turn_of(c, plan)->user));
        return;
    }
    rng shared = rng_make(plan->seed, plan->class_idx, UINT64_MAX);
    rng own = rng_make(plan->seed, plan->class_idx, plan->idx * 2 + 1);
    if (plan->turn > 0) own = rng_make(rng_next(&own), plan->turn, 1);
    uint32_t n_shared = plan->turn > 0 ? 0 : u32_min(c->shared_prefix, plan->n_prompt);
    uint32_t n_own = plan->n_prompt - n_shared;
    if (c->prompt_is_ids) {
        buf_add_char(out, '[');
        add_ids(out, &shared, n_shared, true, c);
        add_ids(out, &own, n_own, n_shared == 0, c);
        buf_add_char(out, ']');
        return;
    }
    n_shared = (uint32_t)lround(n_shared / c->tokens_per_word);
    n_own = (uint32_t)lround(n_own / c->tokens_per_word);
    if (n_shared + n_own == 0) n_own = 1;
    buf_add_char(out, '"');
    add_words(out, &shared, n_shared, true);
    add_words(out, &own, n_own, n_shared == 0);
    buf_add_char(out, '"');
}

/* The system message: of the class, the same in all conversations, or of the data set. */
static void add_system(const request_plan *plan, const bench_class *c, buf *out) {
    const char *text = "";
    if (c->data.n > 0 && c->system_tokens == 0)
        text = dataset_text(&c->data, entry_of(c, plan->card)->system);
    if (c->system_tokens == 0 && text[0] == 0) return;
    buf_add_str(out, "{\"role\":\"system\",\"content\":");
    if (text[0] != 0) {
        plan_string(out, text);
    } else {
        rng shared = rng_make(plan->seed, plan->class_idx, UINT64_MAX - 2);
        buf_add_char(out, '"');
        add_words(out, &shared, (uint32_t)fmax(1, round(c->system_tokens / c->tokens_per_word)),
                  true);
        buf_add_char(out, '"');
    }
    buf_add_str(out, "},");
}

bool plan_body(const request_plan *plan, const bench_class *c, const buf *history, buf *out) {
    buf_clear(out);
    buf_add_str(out, "{\"model\":");
    plan_string(out, c->models.items[plan->model].text);
    buf_add_str(out, c->is_chat ? ",\"messages\":[" : ",\"prompt\":");
    if (c->is_chat) {
        add_system(plan, c, out);
        if (history != NULL) buf_add(out, history->p, history->n);
        buf_add_str(out, "{\"role\":\"user\",\"content\":");
    }
    plan_message(plan, c, out);
    if (c->is_chat) buf_add_str(out, "}]");
    buf_add_format(out, ",\"max_tokens\":%u,\"stream\":true", plan->n_output);
    if (c->ask_usage) buf_add_str(out, ",\"stream_options\":{\"include_usage\":true}");
    if (c->has_temperature) buf_add_format(out, ",\"temperature\":%g", c->temperature);
    if (c->ignore_eos) buf_add_str(out, ",\"ignore_eos\":true");
    if (c->priorities.n > 0)
        buf_add_format(out, ",\"priority\":%s", c->priorities.items[plan->priority].text);
    if (c->tiers.n > 0) {
        buf_add_str(out, ",\"service_tier\":");
        plan_string(out, c->tiers.items[plan->tier].text);
    }
    if (c->extra != NULL) {
        buf_add_char(out, ',');
        buf_add_str(out, c->extra);
    }
    buf_add_char(out, '}');
    return !out->failed;
}
