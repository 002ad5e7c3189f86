// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the main job in one process, without a cluster: read, compress, write. What the cluster is compared with,
 * and what `sluice run --local` does.
 *
 * Design: the same reader and writer as the workers', around one session that is never shipped. The last prompt token
 * is read with the first step of writing, as it is by a decode worker, so both give the same bits.
 */
#ifndef SL_SERVICE_LOCAL_H
#define SL_SERVICE_LOCAL_H

#include "compress/recipe.h"
#include "service/writer.h"

struct sl_local; // a loaded model with its engine and arena

struct sl_local_config {
    const char *model_dir;
    const char *tier;     // NULL: auto
    int threads;          // 0: one per processor
    size_t arena_bytes;   // 0: 1 GiB of address space; pages are touched as they are used
    int max_chunk_tokens; // 0: 2048
};

enum sl_status sl_local_open(const struct sl_local_config *config, struct sl_local **local_out, struct sl_error *err);
void sl_local_close(struct sl_local **local);

const struct sl_tokenizer *sl_local_tokenizer(const struct sl_local *local);
const struct sl_model_config *sl_local_model(const struct sl_local *local);

struct sl_local_request {
    const char *recipe;
    const int32_t *prompt; // [n_prompt], at least 1
    int64_t n_prompt;
    struct sl_sampling sampling;
    int64_t max_new_tokens;
    bool ignore_eos;
    const char *const *stops;
    size_t n_stops;
    // Both may be NULL; anything but SL_OK ends the job with that status.
    enum sl_status (*progress_fn)(void *arg, int64_t tokens_done, int64_t tokens_total);
    enum sl_status (*token_fn)(void *arg, const struct sl_written *written);
    void *arg;
};

struct sl_local_result {
    enum sl_stop_reason stop;
    char *text; // malloc'd, the caller's to free
    int64_t n_output_tokens;
    double prefill_ms, ttft_ms, total_ms, tpot_ms;
    size_t capsule_bytes; // what would be shipped (body)
    size_t full_bytes;    // the same tokens in f16, uncompressed
    size_t prefill_peak_bytes, decode_resident_bytes;
    int64_t slots_evicted;
    double slots_per_head;
};

enum sl_status sl_local_generate(struct sl_local *local, const struct sl_local_request *request,
                                 struct sl_local_result *result_out, struct sl_error *err);

#endif
