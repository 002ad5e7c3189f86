// SPDX-License-Identifier: Apache-2.0
// Purpose: how dense the attention of every layer is; see density.h.
#include "client/density.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK 512

double sl_density_of_row(const struct sl_ops *ops, const float *probabilities, uint32_t n, uint32_t k,
                         uint32_t *keep_scratch) {
    double sum = 0, top = 0;
    k = k < n ? k : n;
    ops->select(probabilities, n, k, keep_scratch);
    for (uint32_t i = 0; i < k; i++) {
        top += probabilities[keep_scratch[i]];
    }
    for (uint32_t j = 0; j < n; j++) {
        sum += probabilities[j];
    }
    return sum > top ? sum - top : 0;
}

struct rows {
    const struct sl_eval_model *m;
    size_t n_tokens;
    uint32_t k;
    float *probabilities; // [n_heads][n_tokens]
    uint32_t *keep;       // [k]
    double *scores;       // [n_layers]
};

// One query row of every head of one layer. With a single row, the sums over the window are the row itself.
static enum sl_status add_rows(void *arg, int segment, int layer, const struct sl_attend *attend) {
    (void)segment;
    struct rows *r = arg;
    const struct sl_ops *ops = r->m->ops;
    int group = attend->n_heads / attend->n_kv_heads;
    ops->window_sums(r->m->team, attend, attend->m - 1, r->probabilities, r->n_tokens);
    for (int head = 0; head < attend->n_heads; head++) {
        double outside = sl_density_of_row(ops, r->probabilities + (size_t)head * r->n_tokens,
                                           attend->kv[head / group].n_slots, r->k, r->keep);
        r->scores[layer] += outside / (SL_DENSITY_QUERIES * (double)attend->n_heads);
    }
    return SL_OK;
}

// Everything but the last queries in chunks, then these one by one.
static enum sl_status read_tokens(struct rows *r, struct sl_session *session, const int32_t *tokens,
                                  const struct sl_density_progress *progress, struct sl_error *err) {
    int64_t n_tokens = (int64_t)r->n_tokens, n_before = n_tokens - SL_DENSITY_QUERIES;
    struct sl_layer_hook hook = {.fn = add_rows, .arg = r, .want_lse = true};
    enum sl_status status = SL_OK;
    while (session->n_tokens < n_tokens && status == SL_OK) {
        int64_t at = session->n_tokens;
        int64_t n = at < n_before ? n_before - at : 1;
        n = n < CHUNK ? n : CHUNK;
        struct sl_segment segment = {.session = session, .tokens = tokens + at, .n_tokens = (int)n};
        status = sl_engine_forward(r->m->engine, &segment, 1, at < n_before ? NULL : &hook, err);
        if (status == SL_OK && progress && progress->fn) {
            status = progress->fn(progress->arg, session->n_tokens, n_tokens);
        }
    }
    return status;
}

enum sl_status sl_density_measure(const struct sl_eval_model *m, const int32_t *tokens, int64_t n_tokens,
                                  const struct sl_density_progress *progress, double *scores_out,
                                  struct sl_error *err) {
    int n_layers = m->config->n_layers;
    if (n_tokens < SL_DENSITY_MIN_TOKENS || n_tokens > m->config->max_positions) {
        return sl_fail(err, SL_ERR_INVALID, "a text of %lld tokens; %d to %lld are needed", (long long)n_tokens,
                       SL_DENSITY_MIN_TOKENS, (long long)m->config->max_positions);
    }
    struct rows r = {.m = m, .n_tokens = (size_t)n_tokens, .k = (uint32_t)(0.05 * (double)n_tokens)};
    size_t bytes = (size_t)m->config->n_heads * r.n_tokens * sizeof *r.probabilities;
    r.probabilities = aligned_alloc(64, (bytes + 63) / 64 * 64);
    r.keep = calloc(r.k, sizeof *r.keep);
    r.scores = calloc((size_t)n_layers, sizeof *r.scores);
    struct sl_session *session = NULL;
    enum sl_status status =
        r.probabilities && r.keep && r.scores ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    if (status == SL_OK) {
        status = sl_eval_model_session(m, SL_POSITION_ORIGINAL, n_tokens, &session, err);
    }
    if (status == SL_OK) {
        status = read_tokens(&r, session, tokens, progress, err);
    }
    if (status == SL_OK) {
        memcpy(scores_out, r.scores, (size_t)n_layers * sizeof *scores_out);
    }
    sl_session_destroy(&session);
    free(r.probabilities);
    free(r.keep);
    free(r.scores);
    return status;
}

void sl_density_choose(const double *scores, int n_layers, double threshold, struct sl_layers *dense_out) {
    *dense_out = (struct sl_layers){0};
    sl_layers_add(dense_out, 0);
    for (int l = 1; l < n_layers; l++) {
        if (scores[l] > threshold) {
            sl_layers_add(dense_out, l);
        }
    }
}

static enum sl_status write_whole(const char *path, const json_t *profile, struct sl_error *err) {
    char temporary[PATH_MAX];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= sizeof temporary) {
        return sl_fail(err, SL_ERR_INVALID, "%.200s...: the path is too long", path);
    }
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    }
    bool good = json_dumpfd(profile, fd, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) == 0 && write(fd, "\n", 1) == 1 &&
                fchmod(fd, 0644) == 0 && fsync(fd) == 0;
    good = close(fd) == 0 && good;
    good = good && rename(temporary, path) == 0;
    if (!good) {
        int cause = errno;
        unlink(temporary);
        return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", path, strerror(cause));
    }
    return SL_OK;
}

enum sl_status sl_density_write(const char *model_dir, const double *scores, int n_layers, double threshold,
                                const struct sl_layers *dense, char *path_out, size_t path_bytes,
                                struct sl_error *err) {
    if ((size_t)snprintf(path_out, path_bytes, "%s/sluice_profile.json", model_dir) >= path_bytes) {
        return sl_fail(err, SL_ERR_INVALID, "%.200s...: the path is too long", model_dir);
    }
    json_t *preference = json_array(), *layers = json_array();
    for (int l = 0; l < n_layers; l++) {
        json_array_append_new(preference, json_real(scores[l]));
        if (sl_layers_has(dense, l)) {
            json_array_append_new(layers, json_integer(l));
        }
    }
    json_t *profile = json_pack("{s:i, s:o, s:f, s:o}", "version", 1, "dense_preference", preference, "threshold",
                                threshold, "dense_layers", layers);
    if (profile == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    enum sl_status status = write_whole(path_out, profile, err);
    json_decref(profile);
    return status;
}
