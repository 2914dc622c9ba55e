/* config_edit.c - see config_edit.h. */
#include "config_edit.h"

#include <string.h>

#include "config_options.h"
#include "inferd/json_whole.h"

enum { JSON_INDENT_COLUMNS = 2 };

static const char *const sections[] = {"models", "tenants"};

static inferd_status no_memory(inferd_err *err) {
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the configuration");
}

/* -- finding -- */

static bool is_called(const json_t *element, edit_section section, const char *name) {
    const char *own = json_string_value(json_object_get(element, "name"));
    if (own != NULL && strcmp(own, name) == 0) return true;
    const json_t *aliases = section == EDIT_MODELS ? json_object_get(element, "aliases") : NULL;
    for (size_t i = 0; i < json_array_size(aliases); i++) {
        const char *alias = json_string_value(json_array_get(aliases, i));
        if (alias != NULL && strcmp(alias, name) == 0) return true;
    }
    return false;
}

json_t *edit_find(const json_t *root, edit_section section, const char *name) {
    const json_t *list = json_object_get(root, sections[section]);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *element = json_array_get(list, i);
        if (is_called(element, section, name)) return element;
    }
    return NULL;
}

static const option_table *table_of(edit_section section) {
    return config_option(&config_table, sections[section])->table;
}

/* -- patches -- */

static const char *const model_members[] = {"class",    "weight",   "min", "max",
                                            "share",    "slo",      "pin", "keep_alive",
                                            "replicas", "sampling", NULL};
static const char *const tenant_members[] = {"max_class", "weight", "min", "max",
                                             "share",     "limits", NULL};

/* Settings of earlier versions, also those of other sections: "policy.placement=spread" is written
 * for a model. */
static const config_removed *find_removed(const char *list, const char *key, const json_t *value) {
    config_location root = {0}, all = {.parent = &root, .name = list}, one = {.parent = &all};
    config_location own = {.parent = &one, .name = key}, at = {.parent = &root, .name = key};
    const config_removed *was = config_find_removed(&own);
    const char *name;
    json_t *inner;
    if (was != NULL || !json_is_object(value)) return was;
    json_object_foreach((json_t *)(uintptr_t)value, name, inner) {
        config_location in_own = {.parent = &own, .name = name},
                        member = {.parent = &at, .name = name};
        if ((was = config_find_removed(&in_own)) != NULL) return was;
        if ((was = config_find_removed(&member)) != NULL) return was;
    }
    return NULL;
}

inferd_status edit_check_patch(edit_section section, const json_t *patch, inferd_err *err) {
    const char *const *members = section == EDIT_MODELS ? model_members : tenant_members;
    char list[160];
    size_t used = 0;
    if (!json_is_object(patch) || json_object_size(patch) == 0)
        return inferd_fail(err, INFERD_EINVAL,
                           "the body must be an object with the settings to change");
    list[0] = 0;
    for (size_t i = 0; members[i] != NULL && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                 members[i]);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)patch, key, value) {
        size_t i = 0;
        const config_removed *was = find_removed(sections[section], key, value);
        if (was != NULL)
            return inferd_fail(err, INFERD_EINVAL, "%s: was removed in %s: %s", was->path,
                               was->since, was->sentence);
        while (members[i] != NULL && strcmp(members[i], key) != 0) i++;
        if (members[i] != NULL) continue;
        bool spelt;
        const option_table *table = table_of(section);
        const option *meant =
            config_option(table, key) == NULL ? config_option_meant(table, key, &spelt) : NULL;
        if (meant != NULL)
            return inferd_fail(err, INFERD_EINVAL,
                               "%.64s: there is no such option; did you mean \"%s\" (%s)?", key,
                               meant->name, meant->about);
        return inferd_fail(
            err, INFERD_EINVAL,
            "%.64s cannot be changed here, only %s; for other settings use PUT /admin/config", key,
            list);
    }
    return INFERD_OK;
}

/* RFC 7396 for an object; its depth is bounded by the reader of JSON. */
static bool merge(json_t *into, const json_t *patch) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)patch, key, value) {
        json_t *old = json_object_get(into, key);
        if (json_is_null(value)) {
            json_object_del(into, key); // present or not
        } else if (json_is_object(value)) {
            if (!json_is_object(old)) {
                old = json_object();
                if (json_object_set_new(into, key, old) != 0) return false;
            }
            if (!merge(old, value)) return false;
            if (json_object_size(old) == 0) json_object_del(into, key);
        } else if (json_object_set_new(into, key, json_deep_copy_whole(value)) != 0) {
            return false;
        }
    }
    return true;
}

static bool expand_member(json_t *element, const option *o) {
    json_t *v = json_object_get(element, o->name);
    if (o->short_for == NULL || !json_is_number(v)) return true;
    json_t *object = json_object();
    bool fine = json_object_set(object, o->short_for, v) == 0;
    return json_object_set_new(element, o->name, object) == 0 && fine; // takes the object
}

inferd_status edit_expand(edit_section section, json_t *element, inferd_err *err) {
    const option_table *table = table_of(section);
    for (size_t i = 0; i < table->n; i++)
        if (!expand_member(element, &table->options[i])) return no_memory(err);
    return INFERD_OK;
}

/* Of the element only the members that the patch has: the others stay as they are written. */
static inferd_status expand_both(json_t *element, json_t *patch, edit_section section,
                                 inferd_err *err) {
    const option_table *table = table_of(section);
    inferd_status s = edit_expand(section, patch, err);
    for (size_t i = 0; i < table->n && s == INFERD_OK; i++)
        if (json_is_object(json_object_get(patch, table->options[i].name)) &&
            !expand_member(element, &table->options[i]))
            s = no_memory(err);
    return s;
}

inferd_status edit_merge(json_t *root, edit_section section, const char *name, const json_t *patch,
                         inferd_err *err) {
    json_t *element = edit_find(root, section, name), *whole;
    if (element == NULL)
        return inferd_fail(err, INFERD_ENOTFOUND, "the configuration file has no \"%.64s\" in %s",
                           name, sections[section]);
    whole = json_copy_whole((json_t *)(uintptr_t)patch);
    if (whole == NULL) return no_memory(err);
    inferd_status s = expand_both(element, whole, section, err);
    if (s == INFERD_OK && !merge(element, whole)) s = no_memory(err);
    json_decref(whole);
    return s;
}

inferd_status edit_put(json_t *root, edit_section section, json_t *element, inferd_err *err) {
    const char *name = json_string_value(json_object_get(element, "name"));
    json_t *list = json_object_get(root, sections[section]);
    if (name == NULL) return inferd_fail(err, INFERD_EINVAL, "name: is required");
    if (list == NULL) {
        list = json_array();
        if (json_object_set_new(root, sections[section], list) != 0) return no_memory(err);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!is_called(json_array_get(list, i), section, name)) continue;
        return json_array_set(list, i, element) == 0 ? INFERD_OK : no_memory(err);
    }
    return json_array_append(list, element) == 0 ? INFERD_OK : no_memory(err);
}

/* -- keys -- */

static bool is_mask(const json_t *v) {
    return json_is_string(v) && strcmp(json_string_value(v), EDIT_MASK) == 0;
}

/* Both spellings of the option hold one key or a list of keys. */
static const char *const key_names[] = {"key", "keys"};

static bool mask_keys(json_t *owner) {
    for (size_t k = 0; k < INFERD_COUNT(key_names); k++) {
        json_t *keys = json_object_get(owner, key_names[k]);
        if (keys == NULL) continue;
        for (size_t i = 0; i < json_array_size(keys); i++)
            if (json_array_set_new(keys, i, json_string(EDIT_MASK)) != 0) return false;
        if (!json_is_array(keys) &&
            json_object_set_new(owner, key_names[k], json_string(EDIT_MASK)) != 0)
            return false;
    }
    return true;
}

inferd_status edit_mask(json_t *root, inferd_err *err) {
    json_t *tenants = json_object_get(root, sections[EDIT_TENANTS]);
    bool fine = mask_keys(json_object_get(root, "admin"));
    for (size_t i = 0; i < json_array_size(tenants); i++)
        fine = fine && mask_keys(json_array_get(tenants, i));
    return fine ? INFERD_OK : no_memory(err);
}

static inferd_status no_such_key(const char *what, const char *owner_name, inferd_err *err) {
    return inferd_fail(err, INFERD_EINVAL,
                       "%s of %.64s is " EDIT_MASK ", but the file has no key there", what,
                       owner_name);
}

static inferd_status unmask_keys(json_t *owner, const json_t *from, const char *owner_name,
                                 uint32_t *n_masks, inferd_err *err) {
    for (size_t k = 0; k < INFERD_COUNT(key_names); k++) {
        const char *name = key_names[k];
        json_t *keys = json_object_get(owner, name), *theirs = json_object_get(from, name);
        if (is_mask(keys)) {
            if (!json_is_string(theirs)) return no_such_key(name, owner_name, err);
            if (json_object_set(owner, name, theirs) != 0) return no_memory(err);
            ++*n_masks;
        }
        for (size_t i = 0; i < json_array_size(keys); i++) {
            json_t *key = json_array_get(theirs, i);
            char what[32];
            if (!is_mask(json_array_get(keys, i))) continue;
            snprintf(what, sizeof what, "%s[%zu]", name, i);
            if (!json_is_string(key)) return no_such_key(what, owner_name, err);
            if (json_array_set(keys, i, key) != 0) return no_memory(err);
            ++*n_masks;
        }
    }
    return INFERD_OK;
}

inferd_status edit_unmask(json_t *root, const json_t *from, uint32_t *n_masks, inferd_err *err) {
    const json_t *tenants = json_object_get(root, sections[EDIT_TENANTS]);
    *n_masks = 0;
    inferd_status st = unmask_keys(json_object_get(root, "admin"), json_object_get(from, "admin"),
                                   "admin", n_masks, err);
    for (size_t i = 0; st == INFERD_OK && i < json_array_size(tenants); i++) {
        json_t *tenant = json_array_get(tenants, i);
        const char *name = json_string_value(json_object_get(tenant, "name"));
        if (name == NULL) continue; // the reader of the configuration reports it
        st = unmask_keys(tenant, edit_find(from, EDIT_TENANTS, name), name, n_masks, err);
    }
    return st;
}

/* Reserves the memory for all of it at once: growing would leave copies of keys behind. */
inferd_status edit_write(const json_t *root, buf *out, inferd_err *err) {
    size_t n = json_dumpb(root, NULL, 0, JSON_INDENT(JSON_INDENT_COLUMNS));
    if (n == 0 || !buf_reserve(out, n + 1)) return no_memory(err);
    if (json_dumpb(root, out->p + out->n, n, JSON_INDENT(JSON_INDENT_COLUMNS)) != n)
        return no_memory(err);
    out->n += n;
    buf_add_char(out, '\n');
    return INFERD_OK;
}
