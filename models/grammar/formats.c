/* formats.c - the formats of JSON Schema, each a pattern.
 *
 * A pattern is never wider than the format's definition, nor than the checkers of widely used
 * validators; it may be narrower where those differ, or where the definition has no end: a fraction
 * of a second has at most nine digits.  Dates know the days of months and leap years; there is no
 * year 0000, and no second 60, which most validators reject. */
#include "dfa.h"

/* ---- dates and times: RFC 3339 ---- */

#define YEAR      "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define BY_FOUR   "(0[48]|[2468][048]|[13579][26])" // 04 to 96
#define LEAP_YEAR "([0-9]{2}" BY_FOUR "|" BY_FOUR "00)"
#define DAY_28    "(0[1-9]|1[0-9]|2[0-8])"
#define MONTH_DAY                                                                                  \
    "(02-" DAY_28 "|(0[469]|11)-(" DAY_28 "|29|30)|(0[13578]|1[02])-(" DAY_28 "|29|3[01]))"
#define DATE   "(" YEAR "-" MONTH_DAY "|" LEAP_YEAR "-02-29)"
#define HOUR   "([01][0-9]|2[0-3])"
#define MINUTE "[0-5][0-9]"
#define TIME   HOUR ":" MINUTE ":" MINUTE "([.][0-9]{1,9})?(Z|[+-]" HOUR ":" MINUTE ")"

/* ISO 8601 as appendix A of RFC 3339 has it: no unit is left out between two others. */
#define COUNT    "[0-9]{1,9}"
#define MINUTES  COUNT "M(" COUNT "S)?"
#define CLOCK    "T(" COUNT "H(" MINUTES ")?|" MINUTES "|" COUNT "S)"
#define MONTHS   COUNT "M(" COUNT "D)?"
#define CALENDAR "(" COUNT "Y(" MONTHS ")?|" MONTHS "|" COUNT "D)"
#define DURATION "P(" CALENDAR "(" CLOCK ")?|" CLOCK "|" COUNT "W)"

/* ---- names of hosts: RFC 1123; at most 253 characters ---- */

/* A label of at most 5 + `more` characters, of letters and digits and, within, hyphens.  Two of
 * these at its third and fourth place would make it an A-label (xn--...), of which most are not
 * valid: RFC 5890. */
#define LABEL_OF(others, more)                                                                     \
    "[A-Za-z0-9" others "]([A-Za-z0-9" others "-]{0,2}[A-Za-z0-9" others "]|[A-Za-z0-9" others     \
    "-]([A-Za-z0-9" others "][A-Za-z0-9" others "-]|-[A-Za-z0-9" others "])[A-Za-z0-9" others      \
    "-]{0," more "}[A-Za-z0-9" others "])?"
#define LABEL(more) LABEL_OF("", more)
/* The sum of the lengths of labels of 63 would take as many states as both bounds multiplied: four
 * labels may be long, eight half as long, sixteen a quarter. */
#define HOSTNAME                                                                                   \
    "((" LABEL("58") "[.]){0,3}" LABEL("56") "|(" LABEL("25") "[.]){0,7}" LABEL("25") "|(" LABEL(  \
        "9") "[.]){0,15}" LABEL("9") ")"

/* ---- mail: RFC 5321, without quoted names and literal addresses ---- */

#define ATOM   "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define DOMAIN LABEL("58") "([.]" LABEL("58") ")*"
#define EMAIL  ATOM "([.]" ATOM ")*@" DOMAIN
#define BEYOND                                                                                     \
    "\\u00a1-\\u167f\\u1681-\\u1fff\\u2010-\\u2027\\u2030-\\u205e\\u2070-\\u2fff"                  \
    "\\u3001-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\ufefe\\uff00-\\uffef\\u{10000}-\\u{1fffd}"
#define IDN_ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~" BEYOND "-]+"
#define IDN_LABEL LABEL_OF(BEYOND, "58")
#define IDN_EMAIL IDN_ATOM "([.]" IDN_ATOM ")*@" IDN_LABEL "([.]" IDN_LABEL ")*"

/* ---- addresses: RFC 3986 has the grammar of both ---- */

#define OCTET     "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4      "(" OCTET "[.]){3}" OCTET
#define GROUP     "[0-9A-Fa-f]{1,4}"
#define LAST      "(" GROUP ":" GROUP "|" IPV4 ")"
#define BEFORE(n) "((" GROUP ":){0," n "}" GROUP ")?::"
#define IPV6                                                                                       \
    "((" GROUP ":){6}" LAST "|::(" GROUP ":){5}" LAST                                              \
    "|" BEFORE("0") "(" GROUP ":){4}" LAST "|" BEFORE("1") "(" GROUP ":){3}" LAST                  \
                                                           "|" BEFORE("2") "(" GROUP ":){2}" LAST  \
                                                                           "|" BEFORE("3") GROUP   \
        ":" LAST "|" BEFORE("4") LAST "|" BEFORE("5") GROUP "|" BEFORE("6") ")"

#define HEX4 "[0-9A-Fa-f]{4}"
#define UUID HEX4 HEX4 "-" HEX4 "-" HEX4 "-" HEX4 "-" HEX4 HEX4 HEX4

/* ---- resources: RFC 3986; with `more` unreserved characters: RFC 3987 ---- */

#define PERCENT            "%[0-9A-Fa-f]{2}"
#define CHARS(more, marks) "([A-Za-z0-9._~!$&'()*+,;=" more marks "-]|" PERCENT ")"
#define PCHAR(more)        CHARS(more, ":@")
#define AUTHORITY(more)                                                                            \
    "(" CHARS(more, ":") "*@)?(\\[(" IPV6 "|v[0-9A-Fa-f]+[.]" CHARS_OF_FUTURE                      \
                         "+)\\]|" CHARS(more, "") "*)(:[0-9]*)?"
#define CHARS_OF_FUTURE "[A-Za-z0-9._~!$&'()*+,;=:-]"
#define PATHS(more)                                                                                \
    "(//" AUTHORITY(more) "(/" PCHAR(more) "*)*|/(" PCHAR(more) "+(/" PCHAR(more) "*)*)?"
#define TAIL(more, private_use)                                                                    \
    "([?](" CHARS(more private_use, ":@/?") ")*)?(#(" CHARS(more, ":@/?") ")*)?"
#define SCHEME "[A-Za-z][A-Za-z0-9+.-]*:"
#define ABSOLUTE(more, private_use)                                                                \
    SCHEME PATHS(more) "|" PCHAR(more) "+(/" PCHAR(more) "*)*)?" TAIL(more, private_use)
#define RELATIVE(more, private_use)                                                                \
    PATHS(more) "|" CHARS(more, "@") "+(/" PCHAR(more) "*)*)?" TAIL(more, private_use)

#define IRI_MORE                                                                                   \
    "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\u{10000}-\\u{1fffd}\\u{20000}-\\u{2fffd}"      \
    "\\u{30000}-\\u{3fffd}\\u{40000}-\\u{4fffd}\\u{50000}-\\u{5fffd}\\u{60000}-\\u{6fffd}"         \
    "\\u{70000}-\\u{7fffd}\\u{80000}-\\u{8fffd}\\u{90000}-\\u{9fffd}\\u{a0000}-\\u{afffd}"         \
    "\\u{b0000}-\\u{bfffd}\\u{c0000}-\\u{cfffd}\\u{d0000}-\\u{dfffd}\\u{e1000}-\\u{efffd}"
#define IRI_PRIVATE "\\ue000-\\uf8ff\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}"

/* RFC 6570, with names that begin with a letter and at most 999 characters of a value. */
#define VARIABLE_CHAR "([A-Za-z0-9_]|" PERCENT ")"
#define VARIABLE      "[A-Za-z_]" VARIABLE_CHAR "*([.]" VARIABLE_CHAR "+)*(:[1-9][0-9]{0,2}|[*])?"
#define EXPRESSION    "\\{[+#./;?&]?" VARIABLE "(," VARIABLE ")*\\}"
#define URI_TEMPLATE  "([A-Za-z0-9!#$&()*+,./:;=?@\\[\\]_~-]|" PERCENT "|" EXPRESSION ")*"

/* RFC 6901, and the relative form.  A validator takes no digit behind a zero for a count. */
#define JSON_POINTER          "(/([^/~]|~[01])*)*"
#define RELATIVE_JSON_POINTER "(0|[1-9]+0?)(#|" JSON_POINTER ")"

static const struct format {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", DURATION},
    {"email", EMAIL},
    {"idn-email", IDN_EMAIL},
    {"hostname", HOSTNAME},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", UUID},
    {"uri", ABSOLUTE("", "")},
    {"uri-reference", "(" ABSOLUTE("", "") ")|(" RELATIVE("", "") ")"},
    {"iri", ABSOLUTE(IRI_MORE, IRI_PRIVATE)},
    {"iri-reference",
     "(" ABSOLUTE(IRI_MORE, IRI_PRIVATE) ")|(" RELATIVE(IRI_MORE, IRI_PRIVATE) ")"},
    {"uri-template", URI_TEMPLATE},
    {"json-pointer", JSON_POINTER},
    {"relative-json-pointer", RELATIVE_JSON_POINTER},
};

static inferd_status compile(const char *name, regex_use use, const dfa_limits *limits, dfa *out,
                             inferd_err *err) {
    dfa_limits own = *limits; // these patterns are ours, and no client's
    own.pattern_bytes_max = UINT32_MAX;
    own.nesting_max = dfa_limits_default.nesting_max;
    own.repeat_max = dfa_limits_default.repeat_max;
    *out = (dfa){0};
    for (size_t i = 0; i < INFERD_COUNT(formats); i++)
        if (strcmp(formats[i].name, name) == 0)
            return regex_compile((bytes){formats[i].pattern, strlen(formats[i].pattern)}, use, &own,
                                 out, err);
    return inferd_fail(err, INFERD_EUNSUPPORTED, "the format \"%.64s\" is not known", name);
}

inferd_status dfa_of_format(const char *name, const dfa_limits *limits, dfa *out, inferd_err *err) {
    return compile(name, REGEX_JSON_WHOLE, limits, out, err);
}

inferd_status dfa_of_format_text(const char *name, const dfa_limits *limits, dfa *out,
                                 inferd_err *err) {
    return compile(name, REGEX_TEXT, limits, out, err);
}
