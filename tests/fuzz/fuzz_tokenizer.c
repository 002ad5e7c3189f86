// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for everything that a tokenizer reads: text, token ids, and the model's files.
 *
 * Design: the first byte of the input says what the rest is:
 *      t   text: ids are in range, and decoding them gives back text that encodes to the same ids
 *      s   the same with a pipeline of SentencePiece's kind, where decoding gives back the text itself, marks as spaces
 *      i   token ids, two bytes each: the detokenizer gives well-formed UTF-8 within its bound
 *      d   the same with the pipeline of SentencePiece's kind
 *      m   a JSON object whose members replace those of the demo model's tokenizer.json; "model" is merged member by
 *          member, so that the fuzzer need not find a vocabulary
 *      c   a JSON object that is tokenizer_config.json
 *      j   a whole tokenizer.json
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

#define DEMO  "models/demo"
#define MARKS "tests/golden/tokenizer/families/llama2.json"

static const char sample[] = "It's  12 <|im_end|> caf\xc3\xa9\xcc\xa3\n\xe6\x97\xa5\xe6\x9c\xac x";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static char *decode(const struct sl_tokenizer *tokenizer, const int32_t *ids, size_t n, size_t *n_bytes_out) {
    struct sl_detokenizer detokenizer;
    size_t step_bytes = sl_detokenizer_max_bytes(tokenizer), n_bytes = 0, capacity = 0;
    char *text = NULL;
    sl_detokenizer_init(&detokenizer, tokenizer);
    for (size_t i = 0; i <= n; i++) {
        if (capacity - n_bytes < step_bytes) {
            capacity = 2 * capacity + step_bytes;
            text = realloc(text, capacity);
            require(text != NULL);
        }
        size_t n_step = i < n ? sl_detokenizer_push(&detokenizer, ids[i], text + n_bytes, step_bytes)
                              : sl_detokenizer_finish(&detokenizer, text + n_bytes, step_bytes);
        require(n_step <= step_bytes && sl_utf8_valid(text + n_bytes, n_step, NULL));
        n_bytes += n_step;
    }
    *n_bytes_out = n_bytes;
    return text;
}

// Returns whether `back` is `text` with every mark replaced by a space.
static bool is_text_with_spaces(const char *text, size_t n_text, const char *back, size_t n_back) {
    struct sl_text expected = {.bytes = text, .n_bytes = n_text};
    require(sl_text_replace(&expected, SL_MARK, " ") == SL_OK);
    bool same = n_back == expected.n_bytes && (n_back == 0 || memcmp(back, expected.bytes, n_back) == 0);
    sl_text_cleanup(&expected);
    return same;
}

static void check_text(const struct sl_tokenizer *tokenizer, const char *text, size_t n_bytes, bool round_trip) {
    int32_t *ids = NULL, *again = NULL;
    size_t n = 0, n_again = 0, n_back = 0, n_special = 0;
    struct sl_error err = {0};
    enum sl_status status = sl_tokenizer_encode(tokenizer, text, n_bytes, false, &ids, &n, &err);
    if (status != SL_OK) {
        require(status == SL_ERR_INVALID && err.text[0] && (!round_trip || !sl_utf8_valid(text, n_bytes, NULL)));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        require(ids[i] >= 0 && ids[i] < sl_tokenizer_vocab_size(tokenizer));
        n_special += sl_tokenizer_is_special(tokenizer, ids[i]);
    }
    char *back = decode(tokenizer, ids, n, &n_back);
    if (!tokenizer->vocab.byte_level && round_trip && n_special == 0) {
        require(is_text_with_spaces(text, n_bytes, back, n_back));
    } else if (round_trip && n_special == 0) { // a special token leaves no text, and its neighbours may then join
        require(sl_tokenizer_encode(tokenizer, back, n_back, false, &again, &n_again, &err) == SL_OK);
        require(n_again == n && (n == 0 || memcmp(ids, again, n * sizeof(*ids)) == 0));
    }
    free(back);
    free(again);
    free(ids);
}

static void check_ids(const struct sl_tokenizer *tokenizer, const uint8_t *data, size_t size) {
    size_t n = size / 2, n_bytes = 0;
    int32_t *ids = malloc((n + 1) * sizeof(*ids));
    require(ids != NULL);
    for (size_t i = 0; i < n; i++) {
        ids[i] = (data[2 * i] | data[2 * i + 1] << 8) - 16;
    }
    free(decode(tokenizer, ids, n, &n_bytes));
    free(ids);
}

static void check_build(const json_t *root, const json_t *config) {
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_tokenizer_build(root, config, NULL, &tokenizer, &err);
    require((status == SL_OK) == (tokenizer != NULL) && (status == SL_OK || err.text[0]));
    if (tokenizer) {
        check_text(tokenizer, sample, sizeof(sample) - 1, false);
    }
    sl_tokenizer_destroy(&tokenizer);
}

static void check_patch(const json_t *demo, json_t *patch) {
    json_t *root = json_copy((json_t *)demo), *model = json_copy(json_object_get(demo, "model"));
    json_t *model_patch = json_object_get(patch, "model");
    if (json_is_object(model_patch)) {
        json_object_update(model, model_patch);
        json_object_set(patch, "model", model);
    }
    json_object_update(root, patch);
    check_build(root, NULL);
    json_decref(model);
    json_decref(root);
}

static struct sl_tokenizer *load_marks(void) {
    struct sl_tokenizer *tokenizer = NULL;
    json_t *json = json_load_file(MARKS, 0, NULL);
    require(sl_tokenizer_build(json, NULL, NULL, &tokenizer, NULL) == SL_OK);
    json_decref(json);
    return tokenizer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct sl_tokenizer *tokenizer, *marks;
    static json_t *demo;
    if (!tokenizer) {
        require(sl_tokenizer_load(DEMO, &tokenizer, NULL) == SL_OK);
        demo = json_load_file(DEMO "/tokenizer.json", 0, NULL);
        require(demo != NULL);
        marks = load_marks();
    }
    if (size < 1) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    if (data[0] == 't' || data[0] == 's') {
        check_text(data[0] == 't' ? tokenizer : marks, text, size - 1, true);
    } else if (data[0] == 'i' || data[0] == 'd') {
        check_ids(data[0] == 'i' ? tokenizer : marks, data + 1, size - 1);
    } else if (data[0] == 'm' || data[0] == 'c' || data[0] == 'j') {
        json_t *json = json_loadb(text, size - 1, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(json)) {
            if (data[0] == 'm') {
                check_patch(demo, json);
            } else {
                check_build(data[0] == 'c' ? demo : json, data[0] == 'c' ? json : NULL);
            }
        }
        json_decref(json);
    }
    return 0;
}
