/* regex_match.c - matches texts with patterns, for tests/e2e/test_regex.py.
 *
 *     line in:   pattern text text ...      each in hexadecimal, "-" for an empty one
 *     line out:  a word per text: 0 to 7, the sum of 1: accepted as a whole text, 2: as the whole
 *                content of a JSON string, 4: found in such a content.
 *                Or "refused", the status and the sentence */
#include "grammar/dfa.h"

enum { LINE_BYTES_MAX = 1 << 20 };

static int digit_value(char c) {
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* In place; the text ends where the digits do. */
static bytes read_hex(char *p) {
    bytes out = {p, 0};
    for (; p[0] != 0 && p[0] != '-' && p[1] != 0; p += 2)
        ((char *)out.p)[out.n++] = (char)(digit_value(p[0]) << 4 | digit_value(p[1]));
    return out;
}

static int match_all(const dfa automata[3], bytes text) {
    buf json = {0};
    json_canonical(&json, text);
    bytes content = {buf_cstr(&json), json.n};
    int sum = dfa_match(&automata[REGEX_TEXT], text) != 0;
    sum += 2 * (dfa_match(&automata[REGEX_JSON_WHOLE], content) != 0);
    sum += 4 * (dfa_match(&automata[REGEX_JSON_SEARCH], content) != 0);
    buf_deinit(&json);
    return sum;
}

static void answer(char *line) {
    dfa automata[3] = {{.n_states = 0}};
    inferd_err err = {0};
    char *next = NULL, *word = strtok_r(line, " \n", &next);
    bytes pattern = read_hex(word == NULL ? line + strlen(line) : word);
    inferd_status s = INFERD_OK;
    for (int use = 0; use < 3 && s == INFERD_OK; use++)
        s = regex_compile(pattern, (regex_use)use, &dfa_limits_default, &automata[use], &err);
    if (s != INFERD_OK)
        printf("refused %d %s", s, err.text);
    else
        while ((word = strtok_r(NULL, " \n", &next)) != NULL)
            printf("%d ", match_all(automata, read_hex(word)));
    printf("\n");
    for (int use = 0; use < 3; use++) dfa_deinit(&automata[use]);
}

int main(void) {
    char *line = malloc(LINE_BYTES_MAX);
    if (line == NULL) return 1;
    while (fgets(line, LINE_BYTES_MAX, stdin) != NULL) answer(line);
    free(line);
    return 0;
}
