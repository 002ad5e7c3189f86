// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice inspect`: shows the contents of a capsule or a document in a file, and which positions it has kept.
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/message_json.h"
#include "client/cli/table.h"
#include "client/cli/tool.h"
#include "lab/measure/inspected.h"
#include "lab/measure/measure.h"
#include "lab/measure/retention_html.h"
#include "lab/picture.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/ops.h"

#define MAX_BINS 1600 // columns of the plot

struct inspect_config {
    struct sl_tool_config tool;
    const char *png, *html, *model, *text;
};

static const struct sl_option options[] = {
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "draw which positions each layer and head has kept (needs matplotlib)",
     SL_FIELD(inspect_config, png)},
    {"html", 0, SL_OPTION_STRING, NULL, "FILE",
     "write a page that shows what is kept of which sentences (needs --model)", SL_FIELD(inspect_config, html)},
    {"model", 'm', SL_OPTION_MODEL, NULL, "MODEL", "model whose tokenizer --html uses",
     SL_FIELD(inspect_config, model)},
    {"text", 0, SL_OPTION_STRING, NULL, "FILE", "text for --html, if the file does not contain it",
     SL_FIELD(inspect_config, text)},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice inspect",
    .usage = "FILE [options]",
    .summary =
        "Tell what a capsule or a document holds: model, recipe, formats, and the slots that every layer has kept.",
    .epilog = "`sluice run --local --save-capsule FILE` writes capsules to files, `sluice doc export` "
              "documents.\n" SL_EXIT_CODES_HELP,
    SL_ARGUMENTS(1),
    SL_OPTIONS(options),
};

// --- numbers -----------------------------------------------------------------------------------------------------

struct layer_summary {
    uint32_t min, max;
    double mean;
    int64_t n_packed; // pages in the packed format, all heads
    size_t bytes;
};

static struct layer_summary summarize(const struct sl_session *session, int layer) {
    const struct sl_layer *l = &session->layers[layer];
    int n_heads = session->geometry.n_kv_heads;
    struct layer_summary s = {.min = UINT32_MAX, .bytes = sl_capsule_layer_bytes(session, layer)};
    for (int h = 0; h < n_heads; h++) {
        uint32_t n = l->heads[h].n_slots;
        s.min = n < s.min ? n : s.min;
        s.max = n > s.max ? n : s.max;
        s.mean += (double)n / n_heads;
        s.n_packed += l->heads[h].n_packed;
    }
    return s;
}

// Writes "f16", "int4 + f16" if quantized pages come first, or "f16, offloaded" if kvstores have them.
static void format_of(const struct sl_layer *layer, int64_t n_packed, char *buf, size_t buf_bytes) {
    if (layer->offloaded) {
        snprintf(buf, buf_bytes, "%s, offloaded", sl_kv_format_name(layer->work.format));
    } else if (n_packed > 0) {
        snprintf(buf, buf_bytes, "%s + %s", sl_kv_format_name(layer->packed.format),
                 sl_kv_format_name(layer->work.format));
    } else {
        snprintf(buf, buf_bytes, "%s", sl_kv_format_name(layer->work.format));
    }
}

static const char *position_mode(const struct sl_session *session) {
    return session->positions == SL_POSITION_SLOT ? "slot" : "original";
}

#define HASH_TEXT_BYTES (2 * sizeof(struct sl_hash128) + 1)

static const char *hash_text(const struct sl_hash128 *hash, char text_out[HASH_TEXT_BYTES]) {
    for (size_t i = 0; i < sizeof hash->bytes; i++) {
        snprintf(text_out + 2 * i, 3, "%02x", hash->bytes[i]);
    }
    return text_out;
}

static void print_document(const struct sl_inspected *c) {
    const struct sl_exported_head *head = &c->head;
    char sha256[SL_SHA256_HEX_BYTES];
    sl_sha256_write_hex(head->text_sha256, sha256);
    printf("document %s: version %d, digests agree, read as %s\n", c->path, sl_exported_version(head),
           head->chat ? "a user's message" : "text");
    printf("text     %" PRId64 " bytes, %" PRId64 " tokens%s, SHA-256 %s\n", head->text_bytes, head->n_tokens,
           head->has_text ? "" : ", not in the file", sha256);
}

static void print_text(const struct sl_inspected *c) {
    if (c->is_document) {
        print_document(c);
    }
    const struct sl_capsule_info *info = &c->file.info;
    char bytes[32];
    sl_format_bytes((double)c->file.body_bytes, bytes, sizeof bytes);
    printf("capsule  %s: version %d, %s in the body, digests agree\n", c->path, SL_CAPSULE_VERSION, bytes);
    printf("recipe   %s (%016" PRIx64 ")\n", c->file.label, info->id.recipe_fingerprint);
    printf("model    %016" PRIx64 ": %d layers, %d KV heads of %d\n", info->id.model_fingerprint,
           info->geometry.n_layers, info->geometry.n_kv_heads, info->geometry.head_dim);
    char prefix[HASH_TEXT_BYTES];
    printf("tokens   %" PRId64 " read (prefix %s), positions %s, %s\n\n", info->n_tokens,
           hash_text(&info->id.prefix_hash, prefix), position_mode(c->session),
           info->evicted ? "some evicted" : "none evicted");

    static const struct sl_column columns[] = {{"LAYER", true}, {"FORMAT", false}, {"SLOTS MIN", true},
                                               {"MEAN", true},  {"MAX", true},     {"BYTES", true}};
    struct sl_table table = SL_TABLE(columns);
    for (int l = 0; l < info->geometry.n_layers; l++) {
        struct layer_summary s = summarize(c->session, l);
        char format[32];
        format_of(&c->session->layers[l], s.n_packed, format, sizeof format);
        sl_table_add(&table, "%d\t%s\t%u\t%.1f\t%u\t%s", l, format, s.min, s.mean, s.max,
                     sl_format_bytes((double)s.bytes, bytes, sizeof bytes));
    }
    sl_table_finish(&table, stdout);

    struct sl_session_stats stats;
    sl_session_get_stats(c->session, &stats);
    printf("\nby format:");
    for (int format = 0; format < SL_KV_N_FORMATS; format++) {
        if (stats.bytes_by_format[format] > 0) {
            printf("  %s %s", sl_kv_format_name((enum sl_kv_format)format),
                   sl_format_bytes((double)stats.bytes_by_format[format], bytes, sizeof bytes));
        }
    }
    putchar('\n');
}

static json_t *json_fingerprint(uint64_t value) {
    return json_sprintf("%016" PRIx64, value);
}

static void print_json(const struct sl_inspected *c) {
    const struct sl_capsule_info *info = &c->file.info;
    struct sl_session_stats stats;
    sl_session_get_stats(c->session, &stats);
    char prefix[HASH_TEXT_BYTES];
    json_t *layers = json_array(), *by_format = json_object();
    for (int l = 0; l < info->geometry.n_layers; l++) {
        struct layer_summary s = summarize(c->session, l);
        const struct sl_layer *layer = &c->session->layers[l];
        json_array_append_new(layers,
                              json_pack("{s:i, s:b, s:s, s:s, s:I, s:I, s:f, s:I, s:I}", "layer", l, "offloaded",
                                        layer->offloaded, "work_format", sl_kv_format_name(layer->work.format),
                                        "packed_format", sl_kv_format_name(layer->packed.format), "packed_pages",
                                        (json_int_t)s.n_packed, "slots_min", (json_int_t)s.min, "slots_mean", s.mean,
                                        "slots_max", (json_int_t)s.max, "bytes", (json_int_t)s.bytes));
    }
    for (int format = 0; format < SL_KV_N_FORMATS; format++) {
        if (stats.bytes_by_format[format] > 0) {
            json_object_set_new(by_format, sl_kv_format_name((enum sl_kv_format)format),
                                json_integer((json_int_t)stats.bytes_by_format[format]));
        }
    }
    json_t *object =
        json_pack("{s:o, s:i, s:s, s:o, s:o, s:s, s:i, s:i, s:i, s:I, s:s, s:b, s:I, s:o, s:o}", "capsule",
                  sl_text_json(c->path), "version", SL_CAPSULE_VERSION, "recipe", c->file.label, "recipe_fingerprint",
                  json_fingerprint(info->id.recipe_fingerprint), "model_fingerprint",
                  json_fingerprint(info->id.model_fingerprint), "prefix_hash", hash_text(&info->id.prefix_hash, prefix),
                  "n_layers", info->geometry.n_layers, "n_kv_heads", info->geometry.n_kv_heads, "head_dim",
                  info->geometry.head_dim, "n_tokens", (json_int_t)info->n_tokens, "positions",
                  position_mode(c->session), "evicted", info->evicted, "body_bytes", (json_int_t)c->file.body_bytes,
                  "layers", layers, "bytes_by_format", by_format);
    if (c->is_document) {
        char sha256[SL_SHA256_HEX_BYTES];
        sl_sha256_write_hex(c->head.text_sha256, sha256);
        json_object_set_new(object, "document",
                            json_pack("{s:i, s:I, s:I, s:b, s:b, s:s, s:o}", "version", sl_exported_version(&c->head),
                                      "text_bytes", (json_int_t)c->head.text_bytes, "n_tokens",
                                      (json_int_t)c->head.n_tokens, "chat", c->head.chat, "has_text", c->head.has_text,
                                      "sha256", sha256, "model_fingerprint",
                                      json_fingerprint(c->head.model_fingerprint)));
    }
    sl_json_print(object, JSON_COMPACT | JSON_REAL_PRECISION(6), stdout);
}

// --- the retention map ---------------------------------------------------------------------------------------------

struct bins {
    const struct sl_ops *ops;
    int64_t *positions; // [n_tokens] scratch
    uint32_t *counts;   // [n] scratch
    int n;
};

// Returns the share of each bin's positions that the head has kept.
static json_t *row_json(const struct sl_inspected *c, const struct bins *bins, int layer, int head) {
    int64_t n_tokens = c->file.info.n_tokens, *positions = bins->positions;
    uint32_t *counts = bins->counts;
    int n_bins = bins->n;
    struct sl_kv kv = sl_session_kv(c->session, layer, head);
    json_t *row = json_array();
    bins->ops->read_positions(&kv, positions);
    memset(counts, 0, (size_t)n_bins * sizeof *counts);
    for (uint32_t j = 0; j < kv.n_slots; j++) {
        if (positions[j] >= 0 && positions[j] < n_tokens) { // a file may contain any value
            counts[positions[j] * n_bins / n_tokens]++;
        }
    }
    for (int bin = 0; bin < n_bins; bin++) {
        // Positions p with p * n_bins / n_tokens == bin.
        int64_t begin = (bin * n_tokens + n_bins - 1) / n_bins, end = ((bin + 1) * n_tokens + n_bins - 1) / n_bins;
        json_array_append_new(row, json_real((double)counts[bin] / (double)(end - begin)));
    }
    return row;
}

static json_t *map_json(const struct sl_inspected *c, const struct bins *bins) {
    const struct sl_kv_geometry *g = &c->file.info.geometry;
    int64_t n_tokens = c->file.info.n_tokens;
    char title[SL_CAPSULE_LABEL_BYTES + 64];
    json_t *map = json_array();
    snprintf(title, sizeof title, "%s: what %" PRId64 " tokens have left", c->file.label, n_tokens);
    for (int row = 0; row < g->n_layers * g->n_kv_heads; row++) {
        json_array_append_new(map, row_json(c, bins, row / g->n_kv_heads, row % g->n_kv_heads));
    }
    return json_pack("{s:o, s:I, s:i, s:o}", "title", sl_text_json(title), "tokens", (json_int_t)n_tokens, "kv_heads",
                     g->n_kv_heads, "map", map);
}

static enum sl_status draw(const struct sl_inspected *c, const char *path, struct sl_error *err) {
    int64_t n_tokens = c->file.info.n_tokens;
    struct bins bins = {.n = (int)(n_tokens < MAX_BINS ? n_tokens : MAX_BINS)};
    SL_FAIL_IF(n_tokens == 0, err, SL_ERR_INVALID, "%s: a capsule of no tokens; there is nothing to draw", c->path);
    enum sl_status status = sl_ops_select(NULL, &bins.ops, err);
    bins.positions = calloc((size_t)n_tokens, sizeof *bins.positions);
    bins.counts = calloc((size_t)bins.n, sizeof *bins.counts);
    SL_THEN_FAIL_IF(status, !(bins.positions && bins.counts), err, SL_ERR_EXHAUSTED, "out of memory");
    SL_THEN(status, sl_picture_draw("kept", path, map_json(c, &bins), err));
    free(bins.positions);
    free(bins.counts);
    return status;
}

static enum sl_status inspect(void *arg, struct sl_error *err) {
    const struct inspect_config *config = arg;
    struct sl_inspected inspected;
    SL_TRY(sl_picture_check(config->png, err));
    SL_FAIL_IF(config->html && !config->model, err, SL_ERR_INVALID,
               "--html needs --model DIR, whose tokenizer read the text");
    enum sl_status status = sl_inspected_open(config->tool.arguments[0], &inspected, err);
    SL_THEN(status, config->png ? draw(&inspected, config->png, err) : SL_OK);
    SL_THEN(status,
            config->html ? sl_retention_html_write(&inspected, config->model, config->text, config->html, err) : SL_OK);
    if (status == SL_OK && config->tool.json) {
        print_json(&inspected);
    } else if (status == SL_OK) {
        print_text(&inspected);
    }
    sl_inspected_close(&inspected);
    return status;
}

SL_COMMAND_RUN(sl_command_inspect, inspect_config, program, inspect)
