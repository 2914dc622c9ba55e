/* spec_told.c - the load as the reports tell it; `inferd-bench compare` refuses results with
 * different ones.  Keys and headers may be secrets and are left out. */
#include <jansson.h>
#include <string.h>

#include "spec.h"

static bool is_told(const char *key) {
    static const char *const NOT[] = {"key", "name", "model"};
    for (size_t i = 0; i < INFERD_COUNT(NOT); i++)
        if (strcmp(key, NOT[i]) == 0) return false;
    return true;
}

static void add_settings(json_t *to, const setting_list *list) {
    for (size_t i = 0; i < list->n; i++)
        if (is_told(list->items[i].key))
            json_object_set_new(to, list->items[i].key, json_string(list->items[i].value));
}

static json_t *class_json(const bench_spec *spec, size_t i) {
    const bench_class *c = &spec->classes[i];
    json_t *models = json_object();
    for (size_t k = 0; k < c->models.n; k++)
        json_object_set_new(models, c->models.items[k].text, json_real(c->models.items[k].weight));
    json_t *settings = json_pack("{s:s,s:s,s:s,s:s}", "arrivals", "closed:1", "endpoint",
                                 "completions", "prompt", "128", "output", "128");
    add_settings(settings, &spec->defaults);
    add_settings(settings, &spec->class_settings[i]);
    return json_pack("{s:s,s:o,s:I,s:o}", "name", c->name, "models", models, "keys",
                     (json_int_t)c->keys.n, "settings", settings);
}

json_t *bench_spec_json(const bench_spec *spec) {
    json_t *classes = json_array();
    for (size_t i = 0; i < spec->n_classes; i++)
        json_array_append_new(classes, class_json(spec, i));
    return json_pack("{s:f,s:f,s:I,s:I,s:o}", "duration_s", spec->duration_s, "skip_s",
                     spec->skip_s, "skip", (json_int_t)spec->n_skip, "warmup",
                     (json_int_t)spec->n_warmup, "classes", classes);
}
