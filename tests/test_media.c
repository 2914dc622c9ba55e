/* test_media.c - parts of requests that are no text: how the error says why no model takes them. */
#include "media.h"
#include "test.h"

static void every_protocol_has_its_types(void) {
    EXPECT_STR(media_of_part("image_url"), "image");   // chat completions
    EXPECT_STR(media_of_part("input_image"), "image"); // responses
    EXPECT_STR(media_of_part("image"), "image");       // messages
    EXPECT_STR(media_of_part("input_audio"), "audio");
    EXPECT_STR(media_of_part("video_url"), "video");
    EXPECT_STR(media_of_part("input_file"), "document");
    EXPECT_STR(media_of_part("document"), "document");
    EXPECT(media_of_part("text") == NULL && media_of_part("refusal") == NULL);
    EXPECT(media_of_part("images") == NULL && media_of_part(NULL) == NULL);
}

static const char *tell(const char *type, const model_info *info) {
    static api_error e;
    e = (api_error){.media = media_of_part(type)};
    api_fail(&e, API_UNSUPPORTED, "messages[0]", "not \"%s\"", type);
    media_tell_why(&e, "chat", info);
    EXPECT_EQ(e.status, 400);
    return e.message;
}

static void the_file_has_no_encoder(void) {
    const model_info info = {.path = "/srv/models/text-Q4_1.gguf"};
    EXPECT_STR(tell("image_url", &info),
               "not \"image_url\"; the model \"chat\" takes no image: its file text-Q4_1.gguf has "
               "no image encoder");
    EXPECT_STR(
        tell("input_audio", &info),
        "not \"input_audio\"; the model \"chat\" takes no audio: its file text-Q4_1.gguf has "
        "no audio encoder");
    EXPECT_STR(tell("file", &info), "not \"file\"; the model \"chat\" takes no document");
}

static void its_encoder_is_not_served(void) {
    const model_info info = {.path = "dummy:g", .n_image_tensors = 439};
    EXPECT_STR(tell("image", &info), "not \"image\"; the model \"chat\" takes no image: the image "
                                     "encoder in its file dummy:g (439 tensors) is not served");
    EXPECT_STR(tell("audio", &info), "not \"audio\"; the model \"chat\" takes no audio: its file "
                                     "dummy:g has no audio encoder");
}

/* Names are cut, and the message is never longer than its room. */
static void long_names_fit(void) {
    char path[1000], name[1000];
    api_error e = {.media = "image"};
    memset(path, 'p', sizeof path);
    memset(name, 'n', sizeof name);
    path[sizeof path - 1] = name[sizeof name - 1] = 0;
    char first[2 * API_MESSAGE_BYTES];
    memset(first, 'f', sizeof first);
    first[sizeof first - 1] = 0;
    api_fail(&e, API_UNSUPPORTED, "messages", "%s", first);
    media_tell_why(&e, name, &(model_info){.path = path});
    EXPECT_EQ(strlen(e.message), API_MESSAGE_BYTES - 1);
    e = (api_error){.media = "image"};
    api_fail(&e, API_UNSUPPORTED, "messages", "no");
    media_tell_why(&e, name, &(model_info){.path = path});
    EXPECT(strstr(e.message, "nnn...\" takes no image: its file ppp") != NULL);
    EXPECT(strstr(e.message, "ppp... has no image encoder") != NULL);
}

static const test_case tests[] = {
    TEST(every_protocol_has_its_types),
    TEST(the_file_has_no_encoder),
    TEST(its_encoder_is_not_served),
    TEST(long_names_fit),
};
TEST_MAIN(tests)
