// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: writing a random model. See synthetic.h.
 *
 * Design: the tensors are listed twice by the same walk: once for the header, once for the data. Weights are uniform
 *         with standard deviation about 0.02, so that activations stay finite; norms are 1.
 */
#include "bench/synthetic.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct writer {
    FILE *file;
    bool data;       // the second walk
    uint64_t offset; // in the data
    uint64_t random;
};

// One tensor [rows][columns], or [rows] when columns is 0.
static void put_tensor(struct writer *w, const char *name, int64_t rows, int64_t columns) {
    uint64_t count = (uint64_t)rows * (uint64_t)(columns > 0 ? columns : 1);
    if (!w->data) {
        fprintf(w->file, "%s\"%s.weight\": {\"dtype\": \"BF16\", \"shape\": [%" PRId64, w->offset > 0 ? ", " : "", name,
                rows);
        if (columns > 0) {
            fprintf(w->file, ", %" PRId64, columns);
        }
        fprintf(w->file, "], \"data_offsets\": [%" PRIu64 ", %" PRIu64 "]}", w->offset, w->offset + 2 * count);
        w->offset += 2 * count;
        return;
    }
    uint16_t buffer[4096];
    while (count > 0) {
        size_t n = count < 4096 ? (size_t)count : 4096;
        for (size_t i = 0; i < n; i++) {
            w->random = w->random * 6364136223846793005u + 1442695040888963407u;
            float value = ((float)(w->random >> 40) * 0x1p-24f - 0.5f) * 0.07f;
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            buffer[i] = htole16(columns > 0 ? (uint16_t)(bits >> 16) : 0x3f80);
        }
        fwrite(buffer, sizeof buffer[0], n, w->file);
        count -= n;
    }
}

static void put_tensors(struct writer *w, const struct sl_model_config *c) {
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    char name[96];
#define PUT(part, rows, columns)                                                                                       \
    do {                                                                                                               \
        snprintf(name, sizeof name, "model.layers.%d." part, l);                                                       \
        put_tensor(w, name, rows, columns);                                                                            \
    } while (0)
    put_tensor(w, "model.embed_tokens", c->n_vocab, c->hidden);
    for (int l = 0; l < c->n_layers; l++) {
        PUT("input_layernorm", c->hidden, 0);
        PUT("self_attn.q_proj", q_dim, c->hidden);
        PUT("self_attn.k_proj", kv_dim, c->hidden);
        PUT("self_attn.v_proj", kv_dim, c->hidden);
        PUT("self_attn.o_proj", c->hidden, q_dim);
        PUT("post_attention_layernorm", c->hidden, 0);
        PUT("mlp.gate_proj", c->intermediate, c->hidden);
        PUT("mlp.up_proj", c->intermediate, c->hidden);
        PUT("mlp.down_proj", c->hidden, c->intermediate);
    }
#undef PUT
    put_tensor(w, "model.norm", c->hidden, 0);
    if (!c->tied_embeddings) {
        put_tensor(w, "lm_head", c->n_vocab, c->hidden);
    }
}

static enum sl_status write_config(const struct sl_model_config *c, const char *dir, struct sl_error *err) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    fprintf(file,
            "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\",\n"
            " \"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d,\n"
            " \"hidden_size\": %d, \"intermediate_size\": %d, \"vocab_size\": %d, \"max_position_embeddings\": %" PRId64
            ",\n \"rope_theta\": %.17g, \"rms_norm_eps\": %.9g, \"tie_word_embeddings\": %s}\n",
            c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim, c->hidden, c->intermediate, c->n_vocab,
            c->max_positions, c->rope_theta, (double)c->norm_eps, c->tied_embeddings ? "true" : "false");
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    return SL_OK;
}

static enum sl_status write_tensors(const struct sl_model_config *c, const char *dir, struct sl_error *err) {
    char path[PATH_MAX], *header = NULL;
    size_t header_bytes = 0;
    struct writer w = {.file = open_memstream(&header, &header_bytes)};
    if (w.file == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    fputc('{', w.file);
    put_tensors(&w, c);
    fputc('}', w.file);
    bool failed = ferror(w.file) != 0;
    if (fclose(w.file) != 0 || failed) {
        free(header);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for a header");
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    w = (struct writer){.file = fopen(path, "wb"), .data = true, .random = 1};
    if (w.file == NULL) {
        free(header);
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    uint64_t length = htole64(header_bytes);
    fwrite(&length, sizeof length, 1, w.file);
    fwrite(header, 1, header_bytes, w.file);
    free(header);
    put_tensors(&w, c);
    failed = ferror(w.file) != 0;
    if (fclose(w.file) != 0 || failed) {
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    return SL_OK;
}

enum sl_status sl_synthetic_create(const struct sl_model_config *config, char *dir_out, size_t dir_bytes,
                                   struct sl_error *err) {
    const char *parent = getenv("TMPDIR");
    char dir[512];
    snprintf(dir, sizeof dir, "%.400s/sluice-model-XXXXXX", parent != NULL && parent[0] != '\0' ? parent : "/tmp");
    if (strlen(dir) >= dir_bytes || mkdtemp(dir) == NULL) {
        return sl_fail(err, SL_ERR_IO, "%s: %s", dir, strerror(errno));
    }
    enum sl_status status = write_config(config, dir, err);
    if (status == SL_OK) {
        status = write_tensors(config, dir, err);
    }
    if (status != SL_OK) {
        sl_synthetic_remove(dir);
        return status;
    }
    snprintf(dir_out, dir_bytes, "%s", dir);
    return SL_OK;
}

void sl_synthetic_remove(const char *dir) {
    static const char *const names[] = {"config.json", "model.safetensors"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}
