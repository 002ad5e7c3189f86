// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for GGUF files: whatever a file is, opening gives an error with a text or tensors that lie side by
 *          side in the file; its documents are objects that the readers of folders take or refuse; its tensors give numbers.
 *
 * Design: the first byte of the input says what the rest is: f, the bytes of the file; t, lines of tests/gguf_file.h.
 */
#include "engine/model/gguf/document.h"
#include "engine/model/model_internal.h"
#include "engine/model/tensors.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/gguf_file.h"
#include "engine/text/tokenizer/tokenizer.h"

#define FILE_NAME "model.gguf"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int compare_data(const void *a, const void *b) {
    const struct sl_gguf_tensor *x = a, *y = b;
    return x->data != y->data ? (x->data < y->data ? -1 : 1) : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void check_tensors(const struct sl_gguf *gguf) {
    size_t n, header_bytes, bytes;
    const struct sl_gguf_tensor *list = sl_gguf_tensors(gguf, &n);
    const unsigned char *base = sl_gguf_mapping(gguf, &bytes), *header = sl_gguf_header(gguf, &header_bytes);
    struct sl_gguf_tensor *sorted = calloc(n + 1, sizeof *sorted);
    require(sorted != NULL && header == base && header_bytes <= bytes);
    for (size_t i = 0; i < n; i++) {
        require(i == 0 || strcmp(list[i - 1].name, list[i].name) < 0);
        require(sl_gguf_tensor(gguf, list[i].name) == &list[i]);
        require(list[i].data >= base + header_bytes && list[i].bytes <= bytes);
        require(list[i].data + list[i].bytes <= base + bytes);
        for (size_t b = 0; b + list[i].type->bytes <= list[i].bytes; b += list[i].type->bytes) {
            float x[SL_MAX_BLOCK];
            unsigned char codes[SL_MAX_BLOCK / 32 * SL_Q8_0_BYTES];
            sl_block_widen(list[i].type, list[i].data + b, x);
            if (list[i].type->fits_q8_0) {
                sl_block_to_q8_0(list[i].type, list[i].data + b, codes);
            }
        }
        sorted[i] = list[i];
    }
    qsort(sorted, n, sizeof *sorted, compare_data);
    for (size_t i = 1; i < n; i++) {
        require(sorted[i - 1].data + sorted[i - 1].bytes <= sorted[i].data);
    }
    free(sorted);
}

static void check_documents(const char *path) {
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *root = NULL;
        struct sl_error err = {0};
        enum sl_status status = sl_model_document_load(path, names[i], &root, &err);
        require(status == SL_OK ? json_is_object(root) : root == NULL && err.text[0] != '\0');
        json_decref(root);
    }
}

static void check_tokenizer(const char *path) {
    static const char text[] = "A word, \xc3\xa9\x04 12345\n";
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    if (sl_tokenizer_load(path, &tokenizer, &err) != SL_OK) {
        require(tokenizer == NULL && err.text[0] != '\0');
        return;
    }
    int32_t *ids = NULL;
    size_t n = 0;
    if (sl_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, &n, &err) == SL_OK) {
        for (size_t i = 0; i < n; i++) {
            require(ids[i] >= 0 && ids[i] < sl_tokenizer_vocab_size(tokenizer));
        }
        free(ids);
    }
    sl_tokenizer_destroy(&tokenizer);
}

static void check_model(const char *path) {
    static const char *const names[] = {"model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.0.self_attn.k_proj.weight"};
    struct sl_model_config config;
    struct sl_tensors *tensors = NULL;
    struct sl_error err = {0};
    if (sl_model_config_load(path, &config, &err) != SL_OK) {
        require(err.text[0] != '\0');
        return;
    }
    const struct sl_model_sampling *s = &config.sampling;
    require(s->temperature >= 0 && s->temperature <= 100 && s->top_k >= 0 && s->top_p >= 0 && s->top_p <= 1);
    require(s->repetition_penalty >= 0 && s->repetition_penalty <= 100);
    require(sl_tensors_open(path, &config, &tensors, &err) == SL_OK);
    sl_tensors_will_read(tensors);
    for (int i = 0; i < 2; i++) {
        int64_t n = (int64_t)config.head_dim * (i == 0 ? config.n_heads : config.n_kv_heads);
        struct sl_tensor_source source;
        struct sl_rows rows;
        if (sl_tensors_find(tensors, names[i], 2, n, config.hidden, &source, &err) != SL_OK) {
            continue;
        }
        for (int format = SL_WEIGHT_STORED; format <= SL_WEIGHT_INT4; format++) {
            enum sl_dtype widened = format % 2 == 0 ? SL_F16 : SL_BF16;
            enum sl_dtype dtype = sl_sources_type(&source, 1, widened, (enum sl_weight_format)format);
            require(sl_tensors_read(tensors, &source, dtype, NULL, &rows, &err) == SL_OK && rows.n == n);
            sl_tensors_release(tensors, &source, &rows);
        }
    }
    sl_tensors_close(&tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct gguf_file file;
    char path[512];
    struct sl_gguf *gguf = NULL;
    struct sl_error err = {0};
    if (size < 1 || (data[0] != 'f' && data[0] != 't')) {
        return 0;
    }
    if (data[0] == 't') {
        gguf_file_make(&file, (const char *)data + 1, size - 1);
        fuzz_folder_write(FILE_NAME, file.bytes, file.n);
    } else {
        fuzz_folder_write(FILE_NAME, data + 1, size - 1);
    }
    fuzz_folder_path(FILE_NAME, path, sizeof path);
    enum sl_status status = sl_gguf_open(path, &gguf, &err);
    require((status == SL_OK) == (gguf != NULL) && (status == SL_OK || err.text[0] != '\0'));
    if (gguf != NULL) {
        check_tensors(gguf);
        sl_gguf_close(&gguf);
        check_documents(path);
        check_tokenizer(path);
        check_model(path);
    }
    fuzz_folder_remove(FILE_NAME);
    return 0;
}
