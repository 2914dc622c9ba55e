/* dataset.c - see dataset.h. */
#include "dataset.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "rng.h"
#include "utf8.h"

/* ---- storing ---- */

/* False: no room or no memory. */
static bool text_add(dataset *d, const char *text, uint32_t *out) {
    *out = (uint32_t)d->text.n;
    if (text[0] == 0) {
        *out = 0;
        return true;
    }
    buf_add(&d->text, text, strlen(text) + 1);
    return !d->text.failed;
}

static bool grow(void **items, size_t n, size_t *capacity, size_t item_bytes, size_t max) {
    if (n < *capacity) return true;
    if (n >= max) return false;
    size_t wanted = *capacity == 0 ? 1024 : *capacity * 2;
    void *longer = realloc(*items, wanted * item_bytes);
    if (longer == NULL) return false;
    *items = longer;
    *capacity = wanted;
    return true;
}

static inferd_status full(inferd_err *err) {
    return inferd_fail(err, INFERD_ETOOLONG,
                       "no memory, or more than %d entries, %d turns or %d bytes of text",
                       DATASET_ENTRIES_MAX, DATASET_TURNS_MAX, DATASET_TEXT_MAX);
}

static bool turn_add(dataset *d, const char *user) {
    void *items = d->turns;
    bool good = grow(&items, d->n_turns, &d->turns_capacity, sizeof *d->turns, DATASET_TURNS_MAX);
    d->turns = items;
    if (!good) return false;
    d->turns[d->n_turns] = (dataset_turn){0};
    return text_add(d, user, &d->turns[d->n_turns++].user);
}

/* Ends an entry; its turns begin at `first_turn`. */
static bool entry_add(dataset *d, uint32_t system, size_t first_turn) {
    if (d->n_turns == first_turn) {
        d->n_skipped++;
        return true;
    }
    void *items = d->entries;
    bool good = grow(&items, d->n, &d->entries_capacity, sizeof *d->entries, DATASET_ENTRIES_MAX);
    d->entries = items;
    if (!good) return false;
    d->entries[d->n++] =
        (dataset_entry){system, (uint32_t)first_turn, (uint32_t)(d->n_turns - first_turn)};
    return true;
}

/* ---- ShareGPT ---- */

typedef enum role { ROLE_NONE, ROLE_USER, ROLE_ANSWER, ROLE_SYSTEM } role;

static role role_of(const char *from) {
    static const struct {
        const char *from;
        role is;
    } ROLES[] = {{"human", ROLE_USER},       {"user", ROLE_USER},      {"gpt", ROLE_ANSWER},
                 {"assistant", ROLE_ANSWER}, {"chatgpt", ROLE_ANSWER}, {"bing", ROLE_ANSWER},
                 {"bard", ROLE_ANSWER},      {"system", ROLE_SYSTEM}};
    for (size_t i = 0; i < INFERD_COUNT(ROLES); i++)
        if (strcmp(from, ROLES[i].from) == 0) return ROLES[i].is;
    return ROLE_NONE;
}

static inferd_status message_take(dataset *d, size_t first_turn, uint32_t *system,
                                  const json_t *message, size_t idx, inferd_err *err) {
    const char *from = json_string_value(json_object_get(message, "from"));
    const char *value = json_string_value(json_object_get(message, "value"));
    if (from == NULL || value == NULL)
        return inferd_fail(err, INFERD_EFORMAT,
                           "conversations[%zu] is no object with the texts \"from\" and \"value\"",
                           idx);
    bool good = true, has_turn = d->n_turns > first_turn;
    switch (role_of(from)) {
    case ROLE_USER:
        if (value[0] != 0) good = turn_add(d, value);
        break;
    case ROLE_ANSWER: // an answer to nothing is left out
        if (has_turn && d->turns[d->n_turns - 1].answer == 0)
            good = text_add(d, value, &d->turns[d->n_turns - 1].answer);
        break;
    case ROLE_SYSTEM:
        if (*system == 0) good = text_add(d, value, system);
        break;
    case ROLE_NONE:
        return inferd_fail(err, INFERD_EFORMAT,
                           "conversations[%zu].from is \"%.40s\": not human, user, gpt, assistant, "
                           "chatgpt, bing, bard or system",
                           idx, from);
    }
    return good ? INFERD_OK : full(err);
}

static inferd_status conversation_take(dataset *d, const char *text, size_t n, inferd_err *err) {
    json_error_t at;
    json_t *root = json_loadb(text, n, 0, &at);
    if (root == NULL) return inferd_fail(err, INFERD_EFORMAT, "bad JSON: %.200s", at.text);
    const json_t *list = json_object_get(root, "conversations");
    size_t first_turn = d->n_turns;
    uint32_t system = 0;
    inferd_status s = INFERD_OK;
    if (!json_is_array(list)) s = inferd_fail(err, INFERD_EFORMAT, "\"conversations\" is no array");
    for (size_t i = 0; s == INFERD_OK && i < json_array_size(list); i++)
        s = message_take(d, first_turn, &system, json_array_get(list, i), i, err);
    if (s == INFERD_OK && !entry_add(d, system, first_turn)) s = full(err);
    json_decref(root);
    return s;
}

static int next_visible(FILE *file) {
    int c;
    do c = getc_unlocked(file);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r');
    return c;
}

/* Reads the rest of an object, of which '{' was read, into `out`.  False: the file or the room
 * ends. */
static bool object_read(FILE *file, buf *out) {
    int c, depth = 1;
    bool in_string = false;
    buf_clear(out);
    buf_add_char(out, '{');
    while (depth > 0 && !out->failed && (c = getc_unlocked(file)) != EOF) {
        buf_add_char(out, (char)c);
        if (in_string && c == '\\') {
            if ((c = getc_unlocked(file)) == EOF) break;
            buf_add_char(out, (char)c);
        } else if (c == '"') {
            in_string = !in_string;
        } else if (!in_string && (c == '{' || c == '[')) {
            depth++;
        } else if (!in_string && (c == '}' || c == ']')) {
            depth--;
        }
    }
    return depth == 0 && !out->failed;
}

static inferd_status sharegpt_read(dataset *d, FILE *file, inferd_err *err) {
    buf entry;
    buf_init(&entry, DATASET_ENTRY_BYTES_MAX);
    int c = next_visible(file);
    if (c == 0xef && getc_unlocked(file) == 0xbb && getc_unlocked(file) == 0xbf)
        c = next_visible(file);
    inferd_status s = INFERD_OK;
    if (c != '[') s = inferd_fail(err, INFERD_EFORMAT, "it is no JSON array");
    if (s == INFERD_OK) c = next_visible(file);
    for (size_t i = 0; s == INFERD_OK && c != ']'; i++) {
        if (c != '{')
            s = inferd_fail(err, INFERD_EFORMAT, "not an object");
        else if (!object_read(file, &entry))
            s = entry.failed ? inferd_fail(err, INFERD_ETOOLONG, "longer than %d bytes",
                                           DATASET_ENTRY_BYTES_MAX)
                             : inferd_fail(err, INFERD_EFORMAT, "the file ends in it");
        else
            s = conversation_take(d, entry.p, entry.n, err);
        if (s == INFERD_OK) c = next_visible(file);
        if (s == INFERD_OK && c != ',' && c != ']')
            s = inferd_fail(err, INFERD_EFORMAT, "neither a comma nor ] follows it");
        if (s == INFERD_OK && c == ',') c = next_visible(file);
        if (s != INFERD_OK) inferd_context(err, "entry %zu", i);
    }
    if (s == INFERD_OK && next_visible(file) != EOF)
        s = inferd_fail(err, INFERD_EFORMAT, "more follows the array");
    buf_deinit(&entry);
    return s;
}

/* ---- text ---- */

/* A line without its end; false: the file has ended, or the line is too long (failed). */
static bool line_read(FILE *file, buf *out) {
    int c;
    buf_clear(out);
    while ((c = getc_unlocked(file)) != EOF && c != '\n' && !out->failed)
        buf_add_char(out, (char)c);
    if (out->n > 0 && out->p[out->n - 1] == '\r') out->n--;
    return !out->failed && (c != EOF || out->n > 0);
}

static inferd_status text_read(dataset *d, FILE *file, inferd_err *err) {
    buf line;
    size_t line_no = 1;
    inferd_status s = INFERD_OK;
    buf_init(&line, DATASET_ENTRY_BYTES_MAX);
    d->is_text = true;
    for (; s == INFERD_OK && line_read(file, &line); line_no++) {
        const char *text = buf_cstr(&line);
        size_t n = line.n;
        if (line_no == 1 && strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, n -= 3;
        if (n == 0) continue;
        if (strlen(text) != n || !utf8_valid(text))
            s = inferd_fail(err, INFERD_EFORMAT, "line %zu is no UTF-8 text", line_no);
        else if (!turn_add(d, text) || !entry_add(d, 0, d->n_turns - 1))
            s = full(err);
    }
    if (line.failed)
        s = inferd_fail(err, INFERD_ETOOLONG, "line %zu is longer than %d bytes", line_no,
                        DATASET_ENTRY_BYTES_MAX);
    buf_deinit(&line);
    return s;
}

/* ---- both ---- */

inferd_status dataset_read(dataset *d, const char *spec, inferd_err *err) {
    bool is_text = strncmp(spec, "text:", 5) == 0, is_sharegpt = strncmp(spec, "sharegpt:", 9) == 0;
    const char *path = is_text ? spec + 5 : is_sharegpt ? spec + 9 : spec;
    size_t n = strlen(path);
    if (!is_text && n > 5 && strcmp(path + n - 5, ".json") == 0) is_sharegpt = true;
    *d = (dataset){0};
    if (!is_text && !is_sharegpt && n > 6 && strcmp(path + n - 6, ".jsonl") == 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "%s: JSON Lines are not read; text:%s takes its lines as they are", path,
                           path);
    FILE *file = fopen(path, "re");
    if (file == NULL) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    inferd_status s = dataset_read_file(d, file, is_sharegpt, err);
    fclose(file);
    if (s != INFERD_OK) inferd_context(err, "%s", path);
    return s;
}

inferd_status dataset_read_file(dataset *d, FILE *file, bool is_sharegpt, inferd_err *err) {
    *d = (dataset){0};
    buf_init(&d->text, DATASET_TEXT_MAX);
    buf_add_char(&d->text, 0); // offset 0: the empty text
    inferd_status s = is_sharegpt ? sharegpt_read(d, file, err) : text_read(d, file, err);
    if (s == INFERD_OK && ferror(file)) s = inferd_fail(err, INFERD_EIO, "reading failed");
    if (s == INFERD_OK && d->n == 0) s = inferd_fail(err, INFERD_EFORMAT, "it has no prompts");
    if (s != INFERD_OK) dataset_deinit(d);
    return s;
}

void dataset_deinit(dataset *d) {
    buf_deinit(&d->text);
    free(d->turns);
    free(d->entries);
    *d = (dataset){0};
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* i -> first + i * step (mod n) is a permutation when step and n have no common divisor. */
size_t dataset_draw(const dataset *d, uint64_t seed, uint64_t idx) {
    rng random = rng_make(seed, 0x64617461, 0);
    uint64_t n = d->n, first = rng_below(&random, n), step = 1 + rng_below(&random, n);
    while (common_divisor(step, n) != 1) step++;
    return (size_t)((first + idx % n * step) % n);
}
