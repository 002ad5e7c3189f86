// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one number that identifies a model: two workers with the same number may exchange KV caches.
 *
 * Design: a chain of hashes over the parsed configuration, the bytes of tokenizer.json (for a GGUF file: all its
 *         metadata), and every tensor's name, type, shape and N_SAMPLES stretches of its bytes, in order of names.
 *         The formatting of config.json and the division into shards do not matter. Retaining heads and the profile
 *         follow if a folder has them: they affect what a recipe keeps. A folder without them keeps the number of
 *         earlier versions. The format that weights are quantized to comes last, if they are: it changes keys and
 *         values. Integers are hashed as little-endian u64, so every machine computes the same number.
 */
#include <endian.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json_file.h"
#include "engine/model/gguf/document.h"
#include "engine/model/gguf/mapped_file.h"
#include "engine/model/model_internal.h"

#define N_SAMPLES    16
#define SAMPLE_BYTES 64

static uint64_t hash_u64(uint64_t value, uint64_t chain) {
    value = htole64(value);
    return sl_hash(&value, sizeof value, chain);
}

static uint64_t hash_f64(double value, uint64_t chain) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return hash_u64(bits, chain);
}

static uint64_t hash_text(const char *text, uint64_t chain) {
    return sl_hash(text, strlen(text), chain);
}

static uint64_t hash_words(const uint64_t *words, size_t n, uint64_t chain) {
    for (size_t i = 0; i < n; i++) {
        chain = hash_u64(words[i], chain);
    }
    return chain;
}

static uint64_t hash_rope(const struct sl_model_config *c, uint64_t chain) {
    const struct sl_rope_config *rope = &c->rope;
    chain = hash_u64((uint64_t)rope->kind, hash_text("rope", chain));
    const double numbers[] = {rope->factor, rope->low_turns, rope->high_turns, rope->scale};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        chain = hash_f64(numbers[i], chain);
    }
    chain = hash_u64(rope->truncate, hash_u64((uint64_t)rope->original_max_positions, chain));
    for (int set = 0; set < SL_MAX_ROPE_SETS; set++) {
        for (int i = 0; i < c->rotary_dim / 2; i++) {
            chain = hash_f64(rope->stretch[set][i], chain);
        }
    }
    return chain;
}

// Hashes features that the first Llamas lack, each after a word and only if a model has it, so that older models keep
// the number of earlier versions.
static uint64_t hash_additions(const struct sl_model_config *c, uint64_t chain) {
    if (c->rope.kind != SL_ROPE_DEFAULT && c->rope.kind != SL_ROPE_LLAMA3) {
        chain = hash_rope(c, chain);
    }
    if (c->rotary_dim != c->head_dim) {
        chain = hash_u64((uint64_t)c->rotary_dim, hash_text("rotary_dim", chain));
    }
    if (c->window > 0) {
        chain = hash_u64((uint64_t)c->window, hash_text("window", chain));
        chain = hash_words(c->window_layers, sizeof c->window_layers / sizeof c->window_layers[0], chain);
    }
    if (c->activation != SL_ACT_SILU) {
        chain = hash_u64((uint64_t)c->activation, hash_text("activation", chain));
    }
    for (int i = 0; i < SL_N_LAYER_MATRICES; i++) {
        chain = c->has_bias[i] ? hash_u64((uint64_t)i, hash_text("bias", chain)) : chain;
    }
    return chain;
}

uint64_t sl_model_config_hash(const struct sl_model_config *c, uint64_t chain) {
    static const struct sl_rope_config none;
    const struct sl_rope_config *llama3 = c->rope.kind == SL_ROPE_LLAMA3 ? &c->rope : &none;
    const int64_t integers[] = {
        c->n_layers,
        c->n_heads,
        c->n_kv_heads,
        c->head_dim,
        c->hidden,
        c->intermediate,
        c->n_vocab,
        c->max_positions,
        c->tied_embeddings,
        (int)c->dtype,
        c->bos_id,
        c->n_listed_ends,
        c->rope.kind == SL_ROPE_LLAMA3,
        llama3->original_max_positions,
    };
    chain = hash_text(c->family->name, chain);
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        chain = hash_u64((uint64_t)integers[i], chain);
    }
    // Ends that only the tokenizer names do not change KV: stored capsules remain valid.
    for (int i = 0; i < c->n_listed_ends; i++) {
        chain = hash_u64((uint64_t)c->ends.ids[i], chain);
    }
    chain = hash_f64(c->rope_theta, chain);
    chain = hash_f64((double)c->norm_eps, chain);
    chain = hash_f64(llama3->factor, chain);
    chain = hash_f64(llama3->low_turns, chain);
    chain = hash_f64(llama3->high_turns, chain);
    return hash_additions(c, chain);
}

// A folder without a tokenizer has a fingerprint too: token ids may come from elsewhere.
static enum sl_status hash_tokenizer(const char *model_dir, uint64_t *chain, struct sl_error *err) {
    char path[PATH_MAX];
    SL_TRY(sl_model_path(model_dir, "tokenizer.json", path, sizeof path, err));
    struct sl_mapped_file file;
    enum sl_status status = sl_mapped_file_open(path, &file, err);
    if (status == SL_OK) {
        *chain = sl_hash(file.base, file.bytes, *chain);
        sl_mapped_file_close(&file);
    }
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

// Stops reading ahead in a tensor: otherwise the samples would read most of a large file that is not in memory.
static void read_samples_alone(const struct sl_tensor *tensor) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)tensor->data / page * page, end = (uintptr_t)tensor->data + tensor->bytes;
    (void)madvise((void *)begin, end - begin, MADV_RANDOM); // advice: failure is harmless
}

// Hashes stretches evenly spaced over the tensor, including its first and last bytes; a small tensor as a whole.
static uint64_t hash_tensor(const struct sl_tensor *tensor, uint64_t chain) {
    chain = hash_text(tensor->name, chain);
    chain = hash_text(tensor->dtype_name, chain);
    for (int i = 0; i < tensor->n_dims; i++) {
        chain = hash_u64((uint64_t)tensor->shape[i], chain);
    }
    if (tensor->bytes <= N_SAMPLES * SAMPLE_BYTES) {
        return sl_hash(tensor->data, tensor->bytes, chain);
    }
    read_samples_alone(tensor);
    size_t last = tensor->bytes - SAMPLE_BYTES;
    for (size_t i = 0; i < N_SAMPLES; i++) {
        size_t offset = last / (N_SAMPLES - 1) * i + last % (N_SAMPLES - 1) * i / (N_SAMPLES - 1);
        chain = sl_hash(tensor->data + offset, SAMPLE_BYTES, chain);
    }
    return chain;
}

// Hashes all of a GGUF file: the metadata, which includes the tokenizer, and the tensors.
static uint64_t hash_gguf(const struct sl_gguf *gguf, uint64_t chain) {
    size_t header_bytes, n;
    const unsigned char *header = sl_gguf_header(gguf, &header_bytes);
    const struct sl_gguf_tensor *list = sl_gguf_tensors(gguf, &n);
    chain = sl_hash(header, header_bytes, hash_text("gguf", chain));
    for (size_t i = 0; i < n; i++) {
        struct sl_tensor tensor = {.name = list[i].name,
                                   .dtype_name = list[i].type->name,
                                   .n_dims = list[i].n_dims,
                                   .data = list[i].data,
                                   .bytes = list[i].bytes};
        memcpy(tensor.shape, list[i].shape, sizeof list[i].shape);
        chain = hash_tensor(&tensor, chain);
    }
    return chain;
}

static uint64_t hash_tensors(const struct sl_safetensors *tensors, uint64_t chain) {
    size_t n;
    const struct sl_tensor *list = sl_safetensors_list(tensors, &n);
    for (size_t i = 0; i < n; i++) {
        chain = hash_tensor(&list[i], chain);
    }
    return chain;
}

// Hashes optional files beside a model. A word comes first, so that tensors of one file never equal a value of the
// other.
static enum sl_status hash_companions(const char *model_dir, const struct sl_model_config *c, uint64_t *chain,
                                      struct sl_error *err) {
    struct sl_safetensors *tensors;
    int hidden;
    SL_TRY(sl_retaining_open(model_dir, c, &tensors, &hidden, err));
    if (tensors != NULL) {
        *chain = hash_tensors(tensors, hash_text("retaining", *chain));
        sl_safetensors_close(&tensors);
    }
    if (c->has_profile) {
        *chain = hash_text("profile", *chain);
        *chain = hash_words(c->dense_layers, sizeof c->dense_layers / sizeof c->dense_layers[0], *chain);
    }
    return SL_OK;
}

static enum sl_status hash_folder(const char *model_dir, uint64_t *chain, struct sl_error *err) {
    struct sl_safetensors *tensors = NULL;
    SL_TRY(hash_tokenizer(model_dir, chain, err));
    SL_TRY(sl_safetensors_open(model_dir, &tensors, err));
    *chain = hash_tensors(tensors, *chain);
    sl_safetensors_close(&tensors);
    return SL_OK;
}

// Hashes everything that distinguishes a model, but the form of its weights.
static enum sl_status hash_model(const char *model_dir, const struct sl_model_config *config, uint64_t *chain,
                                 struct sl_error *err) {
    struct sl_gguf *gguf = NULL;
    SL_TRY(sl_model_gguf_open(model_dir, &gguf, err));
    *chain = sl_model_config_hash(config, 0);
    enum sl_status status = SL_OK;
    if (gguf != NULL) {
        *chain = hash_gguf(gguf, *chain);
        sl_gguf_close(&gguf);
    } else {
        status = hash_folder(model_dir, chain, err);
    }
    return status == SL_OK ? hash_companions(model_dir, config, chain, err) : status;
}

enum sl_status sl_model_fingerprint(const char *model_dir, enum sl_weight_format weights, uint64_t *fingerprint_out,
                                    struct sl_error *err) {
    struct sl_model_config *config = malloc(sizeof *config);
    uint64_t chain = 0;
    SL_FAIL_IF(config == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = sl_model_config_load(model_dir, config, err);
    SL_THEN(status, hash_model(model_dir, config, &chain, err));
    if (status == SL_OK) {
        *fingerprint_out = weights != SL_WEIGHT_STORED ? hash_text(sl_weight_format_name(weights), chain) : chain;
    }
    free(config);
    return status;
}
