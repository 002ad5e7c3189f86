// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/replay/replay_report.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/options/config.h"
#include "client/cli/message_json.h"
#include "client/cli/table.h"
#include "lab/picture.h"
#include "lab/result.h"

// Computes the limit: a store that keeps everything from the moment in which a request arrives.
static enum sl_status find_limit(struct sl_replay_report *report, struct sl_error *err) {
    int64_t *reused = malloc(sizeof *reused * (size_t)report->workload.n);
    SL_FAIL_IF(!reused, err, SL_ERR_EXHAUSTED, "out of memory");
    double tokens = 0, hits = 0;
    enum sl_status status = sl_workload_reuse(&report->workload, reused, err);
    for (int64_t i = 0; i < report->workload.n && status == SL_OK; i++) {
        size_t bytes = 0;
        status = sl_replay_capsule_bytes(&report->config, report->workload.arrivals[i].n_prompt, &bytes, err);
        report->total_bytes += (double)bytes;
        tokens += (double)report->workload.arrivals[i].n_prompt;
        hits += (double)reused[i];
    }
    report->limit = tokens > 0 ? hits / tokens : 0;
    free(reused);
    return status;
}

enum sl_status sl_replay_load(struct sl_replay_report *report, const struct sl_replay_source *source,
                              struct sl_error *err) {
    enum sl_status status;
    report->source = source->trace ? source->trace : "drawn conversations";
    if (source->trace) {
        status = sl_workload_load(source->trace, &report->workload, err);
        SL_FAIL_IF(status == SL_ERR_NOT_FOUND, err, status,
                   "--trace %s: no such file; Mooncake's are in github.com/kvcache-ai/Mooncake, or leave the "
                   "option out for drawn conversations",
                   source->trace);
    } else {
        status = sl_workload_draw_conversations(source->n_requests, source->seed, &report->workload, err);
    }
    SL_THEN_FAIL_IF(status, report->workload.n_blocks == 0, err, SL_ERR_INVALID,
                    "%s: no request has hash_ids, so none can use what another one left", source->trace);
    return status == SL_OK ? find_limit(report, err) : status;
}

static double token_share(const struct sl_replay_result *r) {
    return r->prompt_tokens > 0 ? (double)r->hit_tokens / (double)r->prompt_tokens : 0;
}

static double request_share(const struct sl_replay_result *r) {
    return r->n_requests > 0 ? (double)r->n_hits / (double)r->n_requests : 0;
}

// Returns the hit share of the tenant with the lowest one.
static double worst_share(const struct sl_replay_result *r) {
    double worst = 1;
    for (int i = 0; i < SL_REPLAY_MAX_TENANTS; i++) {
        const struct sl_replay_tenant *t = &r->tenants[i];
        double share = t->prompt_tokens > 0 ? (double)t->hit_tokens / (double)t->prompt_tokens : 1;
        worst = share < worst ? share : worst;
    }
    return worst;
}

static json_t *result_json(const struct sl_replay_report *report, int size, int policy) {
    const struct sl_replay_result *r = &report->results[size][policy];
    return json_pack("{s:s, s:I, s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:I, s:f, s:f}", "bench", "evict",
                     "store_bytes", (json_int_t)report->sizes[size], "policy", sl_eviction_at((size_t)policy)->name,
                     "requests", (json_int_t)r->n_requests, "hit_tokens_share", token_share(r), "hit_requests_share",
                     request_share(r), "worst_tenant_share", worst_share(r), "limit_tokens_share", report->limit,
                     "evicted", (json_int_t)r->n_evicted, "refused", (json_int_t)r->n_refused, "stored_bytes",
                     r->stored_bytes, "fetched_bytes", r->fetched_bytes, "most_bytes", (json_int_t)r->most_bytes,
                     "read_s", r->read_ms / 1e3, "saved_s", r->saved_ms / 1e3);
}

enum sl_status sl_replay_all(struct sl_replay_report *report, bool json, struct sl_error *err) {
    report->config.workload = &report->workload;
    for (int s = 0; s < report->n_sizes; s++) {
        for (int p = 0; (report->config.policy = sl_eviction_at((size_t)p)) != NULL; p++) {
            struct sl_replay_result *result = &report->results[s][p];
            report->config.store_bytes = report->sizes[s];
            sl_bench_progress("size %d of %d: %s", s + 1, report->n_sizes, report->config.policy->name);
            SL_TRY(sl_replay_run(&report->config, result, err));
            if (json) {
                sl_json_print(result_json(report, s, p), 0, stdout);
            }
            report->n_policies = p + 1 > report->n_policies ? p + 1 : report->n_policies;
        }
    }
    return SL_OK;
}

void sl_replay_print_table(const struct sl_replay_report *report) {
    static const struct sl_column columns[] = {
        {"store", true},        {"policy", false},       {"hit tokens", true}, {"hit requests", true},
        {"worst tenant", true}, {"prefill saved", true}, {"fetched", true},    {"stored", true},
        {"evicted", true},      {"refused", true},
    };
    char total[24];
    printf("%s: %" PRId64
           " requests in %.0f s; capsules of all: %s; a store that never evicts: %.1f%% of the tokens\n\n",
           report->source, report->workload.n, report->workload.seconds,
           sl_format_bytes(report->total_bytes, total, sizeof total), 100 * report->limit);
    struct sl_table table = SL_TABLE(columns);
    for (int s = 0; s < report->n_sizes; s++) {
        for (int p = 0; p < report->n_policies; p++) {
            const struct sl_replay_result *r = &report->results[s][p];
            char size[24], fetched[24], stored[24];
            if (r->n_requests == 0) { // stopped before it
                continue;
            }
            sl_table_add(&table, "%s\t%s\t%.2f%%\t%.2f%%\t%.2f%%\t%.0f s of %.0f\t%s\t%s\t%" PRId64 "\t%" PRId64,
                         sl_format_bytes((double)report->sizes[s], size, sizeof size), sl_eviction_at((size_t)p)->name,
                         100 * token_share(r), 100 * request_share(r), 100 * worst_share(r), r->saved_ms / 1e3,
                         (r->saved_ms + r->read_ms) / 1e3, sl_format_bytes(r->fetched_bytes, fetched, sizeof fetched),
                         sl_format_bytes(r->stored_bytes, stored, sizeof stored), r->n_evicted, r->n_refused);
        }
    }
    sl_table_finish(&table, stdout);
}

enum sl_status sl_replay_draw(const struct sl_replay_report *report, const char *png, struct sl_error *err) {
    json_t *results = json_array();
    for (int p = 0; p < report->n_policies; p++) {
        for (int s = 0; s < report->n_sizes; s++) {
            json_array_append_new(results, result_json(report, s, p));
        }
    }
    return sl_picture_draw("evict", png, results, err);
}
