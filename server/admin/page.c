/* page.c - GET /ui and /ui/NAME: the page for people (docs/page.md).
 *
 * The files hold no secret and need no key; everything that they show comes from routes that need
 * one, or from the socket of administrators.  A browser runs nothing but these files, talks to
 * nothing but this listener, and shows the page in no frame. */
#include "page.h"

#include <string.h>

#include "admin.h"
#include "api.h"

static const char header_lines[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\n"
    "X-Content-Type-Options: nosniff\n"
    "Referrer-Policy: no-referrer\n"
    "Cross-Origin-Opener-Policy: same-origin\n"
    "Cross-Origin-Resource-Policy: same-origin\n"
    "Cache-Control: no-cache\n";

void admin_page(void *ctx, http_request *rq) {
    const app *a = ctx;
    const char *name = rq->tail[0] != 0 ? rq->tail : "index.html";
    if (!http_is_trusted(rq) && !a->config->c->admin.page) {
        admin_refuse(rq, 404, "page_is_off", NULL,
                     "the page is off on this address: set admin.page and an admin key, or start "
                     "with --page, or use the socket of administrators");
        return;
    }
    for (size_t i = 0; i < page_n_files; i++) {
        const page_file *f = &page_files[i];
        buf out = {0};
        if (strcmp(f->name, name) != 0) continue;
        buf_add(&out, f->bytes, f->n_bytes);
        http_answer(rq, 200, f->type, &out, header_lines);
        return;
    }
    char quoted[API_QUOTE_BYTES];
    admin_refuse(rq, 404, "not_found", NULL, "the page has no file \"%s\"",
                 api_quote(quoted, name, strlen(name)));
}
