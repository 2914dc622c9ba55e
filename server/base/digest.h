/* digest.h - BLAKE2s with a key (RFC 7693): stores API keys.
 *
 * A key is compared and looked up only by its digest under a secret that exists as long as the
 * process, so neither a dump of the table nor the time of a look-up reveals anything about a key.
 * Thread: any. */
#ifndef INFERD_DIGEST_H
#define INFERD_DIGEST_H

#include "inferd/base.h"

enum { DIGEST_BYTES = 32 };

/* key_n <= 32; 0 = the plain hash. */
void digest_blake2s(unsigned char out[DIGEST_BYTES], const void *key, size_t key_n,
                    const void *text, size_t n);
/* Are they equal?  The time depends on n only. */
bool digest_equal(const unsigned char *a, const unsigned char *b, size_t n);

#endif
