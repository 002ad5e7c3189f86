// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/replay/store_replay.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/array.h"
#include "lab/simulate/sim_store.h"

#define START_NS SL_NS_PER_S // of the virtual clock: 0 has a meaning for the store

// A request whose tokens are being read.
struct reading {
    int64_t request, ends_ns;
    double ms;
    int64_t n_tokens; // that are read
};

struct replay {
    const struct sl_replay_config *config;
    struct sl_page_layout packed, work;
    struct sl_sim_store *store;
    int64_t now_ns;
    struct reading *readings;
    size_t n_readings, n_allocated;
    struct sl_hash128 *hashes;  // [most blocks of a request]
    struct sl_prefix *prefixes; // likewise, and one
    struct sl_replay_result result;
};

static int64_t now_ns(void *arg) {
    return ((const struct replay *)arg)->now_ns;
}

// --- capsules ----------------------------------------------------------------------------------------------------------

static enum sl_status init_layouts(struct replay *r, struct sl_error *err) {
    const struct sl_replay_config *config = r->config;
    SL_FAIL_IF(sl_page_layout_init(&r->packed, config->format, config->geometry.head_dim, 0, false) != SL_OK ||
                   sl_page_layout_init(&r->work, SL_KV_F16, config->geometry.head_dim, 0, false) != SL_OK,
               err, SL_ERR_INVALID, "no pages have format %s and head_dim %d", sl_kv_format_name(config->format),
               config->geometry.head_dim);
    return SL_OK;
}

// Returns the full pages that are packed: those in a quantized format.
static int64_t n_packed(const struct replay *r, int64_t n_tokens) {
    return sl_kv_format_is_quantized(r->config->format) ? n_tokens / SL_PAGE_SLOTS : 0;
}

static size_t body_bytes(const struct replay *r, int64_t n_tokens) {
    int64_t packed = n_packed(r, n_tokens), pages = (n_tokens + SL_PAGE_SLOTS - 1) / SL_PAGE_SLOTS;
    size_t head = (size_t)packed * r->packed.bytes + (size_t)(pages - packed) * r->work.bytes;
    return head * (size_t)r->config->geometry.n_kv_heads * (size_t)r->config->geometry.n_layers;
}

enum sl_status sl_replay_capsule_bytes(const struct sl_replay_config *config, int64_t n_tokens, size_t *bytes_out,
                                       struct sl_error *err) {
    struct replay r = {.config = config};
    SL_TRY(init_layouts(&r, err));
    *bytes_out = body_bytes(&r, n_tokens);
    return SL_OK;
}

// --- requests ----------------------------------------------------------------------------------------------------------

// Returns the tenant of a request. A draw in proportion to 1 / (k + 1), by its conversation.
static int64_t tenant_of(const struct replay *r, const struct sl_workload_arrival *arrival) {
    int64_t n = r->config->n_tenants;
    int64_t block =
        arrival->n_blocks > 0 ? r->config->workload->blocks[arrival->first_block + (arrival->n_blocks > 1)] : 0;
    struct sl_hash128 hash = sl_salted_hash(&(struct sl_hash128){{1}}, &block, sizeof block);
    double sum = 0, drawn;
    for (int64_t k = 0; k < n; k++) {
        sum += 1.0 / (double)(k + 1);
    }
    drawn = (double)(sl_hash128_short(&hash) >> 11) * 0x1p-53 * sum;
    int64_t tenant = 0;
    while (tenant + 1 < n && (drawn -= 1.0 / (double)(tenant + 1)) >= 0) {
        tenant++;
    }
    return tenant;
}

// Writes the hashes of the request's prefixes, one a block, chained as those of tokens are. Another tenant has others.
static void hash_blocks(struct replay *r, const struct sl_workload_arrival *arrival) {
    struct sl_hash128 hash = {{(uint8_t)(tenant_of(r, arrival) + 1)}};
    for (int64_t b = 0; b < arrival->n_blocks; b++) {
        hash = sl_salted_hash(&hash, &r->config->workload->blocks[arrival->first_block + b], sizeof(int64_t));
        r->hashes[b] = hash;
    }
}

static struct sl_capsule_id id_of(struct sl_hash128 hash) {
    return (struct sl_capsule_id){1, 1, hash};
}

// Stores the capsule of a request that was read. A request without hash_ids has nothing that another one could use.
static enum sl_status store(struct replay *r, const struct reading *reading, struct sl_error *err) {
    const struct sl_workload_arrival *arrival = &r->config->workload->arrivals[reading->request];
    if (arrival->n_blocks == 0) {
        return SL_OK;
    }
    hash_blocks(r, arrival);
    struct sl_capsule_keys keys = {.id = id_of(r->hashes[arrival->n_blocks - 1]),
                                   .hashes = r->hashes,
                                   .n_hashes = (size_t)arrival->n_blocks - 1,
                                   .stride = SL_TRACE_BLOCK,
                                   .tenant = (uint64_t)tenant_of(r, arrival) + 1,
                                   .read_ms = reading->ms,
                                   .read_tokens = reading->n_tokens};
    size_t bytes = body_bytes(r, arrival->n_prompt);
    enum sl_status status = sl_sim_store_put(r->store, &keys, arrival->n_prompt, bytes, err);
    if (status == SL_AGAIN || status == SL_ERR_EXISTS) {
        r->result.n_refused += status == SL_AGAIN;
        return SL_OK;
    }
    struct sl_sim_store_stats stats;
    sl_sim_store_get_stats(r->store, &stats);
    r->result.most_bytes = stats.used_bytes > r->result.most_bytes ? stats.used_bytes : r->result.most_bytes;
    r->result.stored_bytes += status == SL_OK ? (double)bytes : 0;
    return status;
}

// Stores what was read by this time, in order.
static enum sl_status finish_until(struct replay *r, int64_t until_ns, struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (status == SL_OK && r->n_readings > 0) {
        struct reading *first = r->readings;
        for (size_t i = 1; i < r->n_readings; i++) {
            first = r->readings[i].ends_ns < first->ends_ns ? &r->readings[i] : first;
        }
        if (first->ends_ns > until_ns) {
            break;
        }
        struct reading reading = *first;
        *first = r->readings[--r->n_readings];
        r->now_ns = reading.ends_ns;
        status = store(r, &reading, err);
    }
    return status;
}

// Returns the tokens that the store has of the request: its whole prompt, or whole blocks before its last token.
static int64_t look_up(struct replay *r, const struct sl_workload_arrival *arrival) {
    int64_t n_whole = (arrival->n_prompt - 1) / SL_TRACE_BLOCK;
    n_whole = n_whole < arrival->n_blocks ? n_whole : arrival->n_blocks;
    size_t n = 0, bytes = 0;
    if (arrival->n_blocks > 0) {
        r->prefixes[n++] = (struct sl_prefix){id_of(r->hashes[arrival->n_blocks - 1]), arrival->n_prompt};
    }
    for (int64_t b = n_whole; b > 0; b--) {
        r->prefixes[n++] = (struct sl_prefix){id_of(r->hashes[b - 1]), b * SL_TRACE_BLOCK};
    }
    int64_t covered = sl_sim_store_find(r->store, r->prefixes, n, arrival->n_prompt, r->config->chunk_tokens, &bytes);
    r->result.fetched_bytes += covered > 0 ? (double)bytes : 0;
    return covered;
}

static enum sl_status begin_reading(struct replay *r, const struct reading *reading, struct sl_error *err) {
    SL_FAIL_IF(!SL_GROW(r->readings, r->n_readings, r->n_allocated), err, SL_ERR_EXHAUSTED, "out of memory");
    r->readings[r->n_readings++] = *reading;
    return SL_OK;
}

static enum sl_status take_request(struct replay *r, int64_t i, struct sl_error *err) {
    const struct sl_workload_arrival *arrival = &r->config->workload->arrivals[i];
    int64_t at_ns = START_NS + (int64_t)(arrival->at_s * 1e9);
    SL_TRY(finish_until(r, at_ns, err));
    r->now_ns = at_ns;
    hash_blocks(r, arrival);
    int64_t covered = look_up(r, arrival);
    double ms = r->config->ms_per_token * sl_eviction_read_cost(covered, arrival->n_prompt);
    struct sl_replay_result *result = &r->result;
    struct sl_replay_tenant *tenant = &result->tenants[tenant_of(r, arrival)];
    result->n_requests++;
    result->n_hits += covered > 0;
    result->prompt_tokens += arrival->n_prompt;
    result->hit_tokens += covered;
    tenant->prompt_tokens += arrival->n_prompt;
    tenant->hit_tokens += covered;
    result->read_ms += ms;
    result->saved_ms += r->config->ms_per_token * sl_eviction_read_cost(0, covered);
    return begin_reading(r, &(struct reading){i, at_ns + (int64_t)(ms * 1e6), ms, arrival->n_prompt - covered}, err);
}

// --- the store ---------------------------------------------------------------------------------------------------------

static enum sl_status open_store(struct replay *r, struct sl_error *err) {
    const struct sl_replay_config *config = r->config;
    int64_t most_blocks = 0;
    for (int64_t i = 0; i < config->workload->n; i++) {
        int64_t n = config->workload->arrivals[i].n_blocks;
        most_blocks = n > most_blocks ? n : most_blocks;
    }
    r->hashes = malloc(sizeof *r->hashes * (size_t)(most_blocks + 1));
    r->prefixes = malloc(sizeof *r->prefixes * (size_t)(most_blocks + 1));
    SL_FAIL_IF(!r->hashes || !r->prefixes, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = init_layouts(r, err);
    const struct sl_sim_store_config store = {.policy = config->policy,
                                              .store_bytes = config->store_bytes,
                                              .keep_ms = config->keep_ms,
                                              .ttl_ms = config->ttl_ms,
                                              .geometry = config->geometry,
                                              .format = config->format,
                                              .now_ns = now_ns,
                                              .arg = r};
    return status == SL_OK ? sl_sim_store_create(&store, &r->store, err) : status;
}

static void close_store(struct replay *r) {
    sl_sim_store_destroy(&r->store);
    free(r->readings);
    free(r->hashes);
    free(r->prefixes);
}

enum sl_status sl_replay_run(const struct sl_replay_config *config, struct sl_replay_result *result_out,
                             struct sl_error *err) {
    struct replay r = {.config = config, .now_ns = START_NS};
    enum sl_status status = open_store(&r, err);
    for (int64_t i = 0; i < config->workload->n && status == SL_OK; i++) {
        status = config->check ? config->check(config->arg, err) : SL_OK;
        SL_THEN(status, take_request(&r, i, err));
    }
    if (status == SL_OK) {
        struct sl_sim_store_stats stats;
        sl_sim_store_get_stats(r.store, &stats);
        r.result.n_evicted = stats.n_evicted;
        *result_out = r.result;
    }
    close_store(&r);
    return status;
}
