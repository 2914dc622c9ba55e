/* media.c - see media.h. */
#include "media.h"

static const char image[] = "image", audio[] = "audio", video[] = "video", document[] = "document";

const char *media_of_part(const char *type) {
    static const struct {
        const char *type, *media;
    } rows[] = {
        {"image_url", image},   {"image", image},       {"input_image", image},
        {"image_file", image},  {"input_audio", audio}, {"audio_url", audio},
        {"audio", audio},       {"video_url", video},   {"video", video},
        {"input_video", video}, {"file", document},     {"input_file", document},
        {"document", document},
    };
    for (size_t i = 0; type != NULL && i < INFERD_COUNT(rows); i++)
        if (strcmp(type, rows[i].type) == 0) return rows[i].media;
    return NULL;
}

/* The name of the file without its folder, which is no client's business. */
static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

void media_tell_why(api_error *err, const char *name, const model_info *info) {
    enum { WHY_BYTES = 200 };
    char quoted[API_QUOTE_BYTES], file[API_QUOTE_BYTES], why[WHY_BYTES] = "";
    const char *path = file_name(info->path);
    bool of_image = strcmp(err->media, image) == 0, of_audio = strcmp(err->media, audio) == 0;
    uint32_t n = of_image ? info->n_image_tensors : of_audio ? info->n_audio_tensors : 0;
    api_quote(quoted, name, strlen(name));
    api_quote(file, path, strlen(path));
    if (n > 0)
        snprintf(why, sizeof why, ": the %s encoder in its file %s (%u tensors) is not served",
                 err->media, file, n);
    else if (of_image || of_audio)
        snprintf(why, sizeof why, ": its file %s has no %s encoder", file, err->media);
    size_t at = strlen(err->message);
    snprintf(err->message + at, sizeof err->message - at, "; the model \"%s\" takes no %s%s",
             quoted, err->media, why);
}
