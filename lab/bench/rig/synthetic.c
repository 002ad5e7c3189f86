// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: writes a random model. See synthetic.h.
 *
 * Design: the same walk lists the tensors twice: once for the header, once for the data. Norms are 1. The matrices of
 *         a file are one sequence of random numbers (engine/tensor/drawn.h), in the order in which a model packs
 *         them, so a device that computes its own (drawn.h) has the same ones.
 */
#include "lab/bench/rig/synthetic.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lab/result.h"
#include "engine/tensor/drawn.h"

#define GEOMETRY(layers, heads, kv_heads, d, e, f, vocab, theta, tied)                                                 \
    {                                                                                                                  \
        .n_layers = (layers), .n_heads = (heads), .n_kv_heads = (kv_heads), .head_dim = (d), .hidden = (e),            \
        .intermediate = (f), .n_vocab = (vocab), .max_positions = 262144, .rope_theta = (theta), .norm_eps = 1e-5f,    \
        .tied_embeddings = (tied), .dtype = SL_BF16,                                                                   \
    }

// To add one: a row, and its name in the help of `bench engine --models`.
const struct sl_synthetic_geometry sl_synthetic_geometries[SL_N_GEOMETRIES] = {
    {"135m", GEOMETRY(30, 9, 3, 64, 576, 1536, 49152, 1e5, true), 30},    // SmolLM2-135M
    {"1b", GEOMETRY(16, 32, 8, 64, 2048, 8192, 128256, 5e5, true), 16},   // Llama-3.2-1B, without its scaling of rope
    {"8b", GEOMETRY(4, 32, 8, 128, 4096, 14336, 128256, 5e5, false), 32}, // Llama-3-8B, 4 of its 32 layers
    {"tiny", GEOMETRY(2, 4, 2, 64, 128, 256, 512, 1e4, false), 2},        // for emulated devices and tests
};

const struct sl_synthetic_geometry *sl_synthetic_find(const char *name) {
    for (int i = 0; i < SL_N_GEOMETRIES; i++) {
        if (strcmp(sl_synthetic_geometries[i].name, name) == 0) {
            return &sl_synthetic_geometries[i];
        }
    }
    return NULL;
}

enum sl_status sl_synthetic_config(const char *name, int64_t n_layers, struct sl_model_config *config_out,
                                   struct sl_error *err) {
    const struct sl_synthetic_geometry *found = sl_synthetic_find(name);
    SL_FAIL_IF(found == NULL, err, SL_ERR_INVALID, "--geometry %s: unknown; there are %s", name, SL_GEOMETRY_HELP);
    SL_FAIL_IF(n_layers < 0 || n_layers > SL_MAX_LAYERS, err, SL_ERR_INVALID, "--layers %" PRId64 ": at most %d",
               n_layers, SL_MAX_LAYERS);
    *config_out = found->config;
    config_out->n_layers = n_layers > 0 ? (int)n_layers : found->config.n_layers;
    return SL_OK;
}

#define MODEL_FILE   "model.safetensors"
#define HEADS_FILE   "retaining_heads.safetensors"
#define BUFFER_COUNT ((size_t)1 << 19) // weights: 1 MiB
#define SPARE_BYTES  ((uint64_t)64 << 20)

struct writer {
    FILE *file;
    bool data;       // the second walk
    bool leaves;     // matrices are holes in the file
    uint64_t offset; // in the data, bytes
    uint64_t total_bytes;
    uint64_t n_drawn; // numbers of matrices so far
    uint16_t *buffer; // [BUFFER_COUNT]
    struct sl_signals *signals;
    bool cancelled;
};

static void put_data(struct writer *w, uint64_t count, bool is_norm) {
    if (w->leaves && !is_norm) {
        w->offset += 2 * count;
        fseeko(w->file, (off_t)(2 * count), SEEK_CUR);
        return;
    }
    for (size_t i = 0; is_norm && i < BUFFER_COUNT; i++) {
        w->buffer[i] = htole16(0x3f80); // 1
    }
    while (count > 0 && !w->cancelled) {
        size_t n = count < BUFFER_COUNT ? (size_t)count : BUFFER_COUNT;
        for (size_t i = 0; !is_norm && i < n; i++) {
            w->buffer[i] = htole16(sl_drawn_weight(w->n_drawn++));
        }
        fwrite(w->buffer, sizeof w->buffer[0], n, w->file);
        count -= n;
        w->offset += 2 * n;
        w->cancelled = w->signals != NULL && sl_signals_received(w->signals) > 0;
        sl_bench_progress("writing a random model: %" PRIu64 " of %" PRIu64 " MB", w->offset / 1000000,
                          w->total_bytes / 1000000);
    }
}

// Writes one tensor [rows][columns], or [rows] if columns is 0, which is a norm.
static void put_tensor(struct writer *w, const char *name, int64_t rows, int64_t columns) {
    uint64_t count = (uint64_t)rows * (uint64_t)(columns > 0 ? columns : 1);
    if (!w->data) {
        fprintf(w->file, "%s\"%s\": {\"dtype\": \"BF16\", \"shape\": [%" PRId64, w->offset > 0 ? ", " : "", name, rows);
        if (columns > 0) {
            fprintf(w->file, ", %" PRId64, columns);
        }
        fprintf(w->file, "], \"data_offsets\": [%" PRIu64 ", %" PRIu64 "]}", w->offset, w->offset + 2 * count);
        w->offset += 2 * count;
        return;
    }
    put_data(w, count, columns == 0);
}

static void put_retaining_heads(struct writer *w, const struct sl_model_config *c) {
    int64_t columns = (int64_t)(c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    char name[32];
    for (int l = 0; l < c->n_layers; l++) {
        snprintf(name, sizeof name, "layers.%d.w1", l);
        put_tensor(w, name, c->retaining_hidden, columns);
        snprintf(name, sizeof name, "layers.%d.w2", l);
        put_tensor(w, name, c->n_kv_heads, c->retaining_hidden);
    }
}

static void put_tensors(struct writer *w, const struct sl_model_config *c) {
    int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    char name[96];
#define PUT(part, rows, columns)                                                                                       \
    do {                                                                                                               \
        snprintf(name, sizeof name, "model.layers.%d." part ".weight", l);                                             \
        put_tensor(w, name, rows, columns);                                                                            \
    } while (0)
    put_tensor(w, "model.embed_tokens.weight", c->n_vocab, c->hidden);
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
    put_tensor(w, "model.norm.weight", c->hidden, 0);
    if (!c->tied_embeddings) {
        put_tensor(w, "lm_head.weight", c->n_vocab, c->hidden);
    }
}

static enum sl_status write_config(const struct sl_model_config *c, const char *dir, struct sl_error *err) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = fopen(path, "w");
    SL_FAIL_IF(file == NULL, err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    fprintf(file,
            "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\",\n"
            " \"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d,\n"
            " \"hidden_size\": %d, \"intermediate_size\": %d, \"vocab_size\": %d, \"max_position_embeddings\": %" PRId64
            ",\n \"rope_theta\": %.17g, \"rms_norm_eps\": %.9g, \"tie_word_embeddings\": %s}\n",
            c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim, c->hidden, c->intermediate, c->n_vocab,
            c->max_positions, c->rope_theta, (double)c->norm_eps, c->tied_embeddings ? "true" : "false");
    bool failed = ferror(file) != 0;
    SL_FAIL_IF(fclose(file) != 0 || failed, err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    return SL_OK;
}

static enum sl_status check_room(const char *path, uint64_t bytes, struct sl_error *err) {
    char dir[PATH_MAX];
    struct statvfs fs;
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    SL_FAIL_IF(statvfs(dir, &fs) != 0, err, SL_ERR_IO, "%s: %s", dir, strerror(errno));
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    SL_FAIL_IF(room < bytes + SPARE_BYTES, err, SL_ERR_EXHAUSTED,
               "%s: %.1f GB for a random model, and %.1f GB are left there; set TMPDIR to where there is more", dir,
               (double)(bytes + SPARE_BYTES) / 1e9, (double)room / 1e9);
    return SL_OK;
}

// Returns the header's text, to be freed, and the bytes of all data.
typedef void (*put_fn)(struct writer *w, const struct sl_model_config *c);

static enum sl_status make_header(const struct sl_model_config *c, put_fn put, char **text_out, size_t *bytes_out,
                                  uint64_t *data_bytes_out, struct sl_error *err) {
    char *text = NULL;
    struct writer w = {.file = open_memstream(&text, bytes_out)};
    SL_FAIL_IF(w.file == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    fputc('{', w.file);
    put(&w, c);
    fputc('}', w.file);
    bool failed = ferror(w.file) != 0;
    SL_FAIL_OR(fclose(w.file) != 0 || failed, free(text), err, SL_ERR_EXHAUSTED, "out of memory for a header");
    *text_out = text;
    *data_bytes_out = w.offset;
    return SL_OK;
}

// Writes a file of the tensors that `put` lists. If it `leaves` them, matrices are zeros that take no disk space.
static enum sl_status write_tensors(const struct sl_model_config *c, put_fn put, bool leaves,
                                    struct sl_signals *signals, const char *path, struct sl_error *err) {
    char *header = NULL;
    size_t header_bytes = 0;
    struct writer w = {.data = true, .leaves = leaves, .signals = signals};
    SL_TRY(make_header(c, put, &header, &header_bytes, &w.total_bytes, err));
    enum sl_status status = leaves ? SL_OK : check_room(path, w.total_bytes, err);
    w.buffer = malloc(BUFFER_COUNT * sizeof *w.buffer);
    SL_THEN_FAIL_IF(status, w.buffer == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    w.file = status == SL_OK ? fopen(path, "wb") : NULL;
    if (w.file != NULL) {
        uint64_t length = htole64(header_bytes);
        fwrite(&length, sizeof length, 1, w.file);
        fwrite(header, 1, header_bytes, w.file);
        put(&w, c);
    }
    bool failed = w.file == NULL || ferror(w.file) != 0;
    if (!failed && leaves) { // the last one may be a hole
        failed = fflush(w.file) != 0 ||
                 ftruncate(fileno(w.file), (off_t)(sizeof(uint64_t) + header_bytes + w.total_bytes)) != 0;
    }
    failed |= w.file != NULL && fclose(w.file) != 0;
    SL_THEN_FAIL_IF(status, failed, err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    SL_THEN_FAIL_IF(status, w.cancelled, err, SL_ERR_CANCELLED, "stopped by a signal");
    free(w.buffer);
    free(header);
    return status;
}

static void remove_files(const char *dir) {
    static const char *const names[] = {"config.json", MODEL_FILE, HEADS_FILE};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
}

enum sl_status sl_synthetic_write(const struct sl_model_config *config, enum sl_synthetic_weights weights,
                                  struct sl_signals *signals, const char *dir, struct sl_error *err) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" MODEL_FILE, dir);
    enum sl_status status = write_tensors(config, put_tensors, weights != SL_SYNTHETIC_WRITTEN, signals, path, err);
    if (status == SL_OK && config->retaining_hidden > 0) {
        snprintf(path, sizeof path, "%s/" HEADS_FILE, dir);
        status = write_tensors(config, put_retaining_heads, weights == SL_SYNTHETIC_EMPTY, signals, path, err);
    }
    if (status == SL_OK) {
        status = write_config(config, dir, err); // last: its presence marks a complete folder
    }
    if (status != SL_OK) {
        remove_files(dir);
    }
    return status;
}

enum sl_status sl_synthetic_create(const struct sl_model_config *config, enum sl_synthetic_weights weights,
                                   struct sl_signals *signals, char dir_out[SL_SYNTHETIC_PATH_BYTES],
                                   struct sl_error *err) {
    char dir[SL_SYNTHETIC_PATH_BYTES];
    const char *parent = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.400s/sluice-model-XXXXXX", parent != NULL && parent[0] != '\0' ? parent : "/tmp");
    SL_FAIL_IF(mkdtemp(dir) == NULL, err, SL_ERR_IO, "%s: %s", dir, strerror(errno));
    SL_TRY_OR(sl_synthetic_write(config, weights, signals, dir, err), rmdir(dir));
    strcpy(dir_out, dir);
    return SL_OK;
}

void sl_synthetic_remove(const char *dir) {
    remove_files(dir);
    rmdir(dir);
}
