/* utf8.c - the check of a whole text. */
#include "tokenizer/utf8.h"

#include <string.h>

size_t utf8_valid_bytes(const unsigned char *p, size_t n) {
    size_t at = 0;
    while (at < n) {
        uint64_t eight;
        if (n - at >= sizeof eight) { // most text is ASCII
            memcpy(&eight, p + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        unsigned length = utf8_char_bytes(p + at, n - at);
        if (length == 0) break;
        at += length;
    }
    return at;
}
