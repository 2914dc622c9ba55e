/* find_models.c - gets a model name from the server when none was given. */
#include <curl/curl.h>
#include <jansson.h>
#include <string.h>

#include "inferd/buf.h"
#include "load.h"
#include "spec_value.h"

enum { ANSWER_BYTES_MAX = 4 << 20, ANSWER_MS_MAX = 30000 };

static size_t on_bytes(char *in, size_t one, size_t n, void *ctx) {
    (void)one;
    buf *answer = ctx;
    buf_add(answer, in, n);
    return answer->failed ? 0 : n;
}

static inferd_status get(const bench_spec *spec, const char *key, buf *answer, inferd_err *err) {
    char url[2048], bearer[4200], why[CURL_ERROR_SIZE] = "";
    snprintf(url, sizeof url, "%s/v1/models", spec->url);
    snprintf(bearer, sizeof bearer, "Authorization: Bearer %s", key == NULL ? "" : key);
    CURL *easy = curl_easy_init();
    struct curl_slist *headers = key == NULL ? NULL : curl_slist_append(NULL, bearer);
    if (easy == NULL || (key != NULL && headers == NULL)) {
        curl_easy_cleanup(easy);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a request");
    }
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)ANSWER_MS_MAX);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, why);
    CURLcode code = curl_easy_perform(easy);
    long http_status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &http_status);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    if (code != CURLE_OK)
        return inferd_fail(err, INFERD_EIO, "GET %s: %s", url,
                           why[0] != 0 ? why : curl_easy_strerror(code));
    if (http_status != 200)
        return inferd_fail(err, INFERD_EIO, "GET %s: status %ld", url, http_status);
    return INFERD_OK;
}

static inferd_status find(bench_spec *spec, bench_class *c, inferd_err *err) {
    buf answer;
    buf_init(&answer, ANSWER_BYTES_MAX);
    inferd_status s = get(spec, c->keys.n == 0 ? NULL : c->keys.items[0].text, &answer, err);
    if (s == INFERD_OK) {
        json_t *root = json_loadb(buf_cstr(&answer), answer.n, 0, NULL);
        json_t *first = json_array_get(json_object_get(root, "data"), 0);
        const char *id = json_string_value(json_object_get(first, "id"));
        if (id == NULL)
            s = inferd_fail(err, INFERD_ENOTFOUND, "GET %s/v1/models names no model", spec->url);
        else
            s = value_choice_add(&c->models, id, strlen(id), 1, err);
        json_decref(root);
    }
    buf_deinit(&answer);
    if (s != INFERD_OK) inferd_context(err, "no --model was given");
    return s;
}

inferd_status load_find_models(bench_spec *spec, inferd_err *err) {
    inferd_status s = INFERD_OK;
    for (size_t i = 0; s == INFERD_OK && i < spec->n_classes; i++)
        if (spec->classes[i].models.n == 0) s = find(spec, &spec->classes[i], err);
    return s;
}
