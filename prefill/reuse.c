// SPDX-License-Identifier: Apache-2.0
/*
 * Reuses a stored prefix: its capsule and, with recipes that offload, the remote KV of the other layers.
 *
 *   capsule   remote KVs         what is read
 *   whole     whole           nothing: the store ships the capsule; the remote KVs are used as they are
 *   n tokens  m tokens        from min(n, m) on, at a page boundary (sl_offload_begins_at()); without offloaded layers, also
 *                             from the end of a capsule, which may be within a page
 *   none      any             everything; KV that the remote KVs have is not shipped again
 *
 * If this worker writes the answer, the whole capsule comes here, too.
 *
 * A recipe that thins its offloaded layers can reuse only the whole prompt.
 */
#include "base/clock.h"
#include "base/log.h"
#include "engine/runner/reader.h"
#include "prefill/internal.h"

#define PRESS_MS 1000 // how long a stored prefix waits for memory that copies hold
#define POLL_MS  10

struct reuse_watch {
    struct sl_prefill_job *job;
    struct sl_rpc_call *call;
};

static bool tell_alive(void *arg) {
    struct reuse_watch *watch = arg;
    return sl_prefill_send_progress(watch->call, watch->job, 0, 0, 0) == SL_OK && !atomic_load(&watch->job->cancelled);
}

/*
 * Asks the store to ship the finished capsule of the whole prompt straight to the destination. If the store no longer
 * has it, the grant is unused and the prompt is read. Any other failure has used up the grant: the coordinator retries
 * the job with a new one.
 */
static enum sl_status reuse_whole(struct sl_prefill_job *job, const struct sl_store_job *store,
                                  struct sl_store_match *match, const Sluice__V1__Grant *destination,
                                  struct sl_error *err) {
    struct sl_error why = {0};
    enum sl_status status = sl_store_fetch(store, match, destination, &job->capsule_bytes, &why);
    if (status == SL_OK) {
        job->n_reused = match->n_tokens;
        job->shipped_by_store = true;
        job->kept = SLUICE__V1__KEPT__KEPT_STORED;
    } else if (status == SL_ERR_NOT_FOUND) {
        job->not_cached = SLUICE__V1__NOT_CACHED__NOT_CACHED_DROPPED;
    } else {
        sl_fail(err, status == SL_ERR_CANCELLED ? status : SL_ERR_PEER_STALE,
                "kvstore %.80s could not ship to the decode worker: %.240s", store->address, why.text);
        sl_error_blame(err, SL_REASON_STORE, store->address);
        return err->status;
    }
    return SL_OK;
}

/*
 * Cuts the match to the tokens that the remote KVs have too. With a recipe that offloads, a capsule has only the
 * resident layers, so it is useful only up to the tokens for which the stores have the other layers.
 */
static void cut_to_remote_kvs(const struct sl_prefill_job *job, struct sl_store_match *match) {
    if (job->offload && !(match->n_tokens == job->plan.n_prompt && sl_offload_is_stored(job->offload))) {
        match->n_tokens = sl_offload_begins_at(job->offload, match->n_tokens);
    }
}

// Fetches the match into the arena. If memory is short, asks copies of earlier jobs to free theirs.
static enum sl_status resume(struct sl_prefill_job *job, const struct sl_store_job *store, struct sl_store_match *match,
                             struct sl_error *err) {
    const struct sl_prefill_host *host = &job->prefill->host;
    int64_t until_ns = sl_deadline_in_ms(PRESS_MS);
    for (;;) {
        enum sl_status status = sl_store_resume(store, match, &job->session, err);
        if (status != SL_ERR_EXHAUSTED || match->lease_id[0] == '\0') { // it came, and cannot come again
            return status;
        }
        if (host->drop_fn && host->drop_fn(host->arg, match->capsule_bytes)) {
            continue;
        }
        if (!sl_archive_press(job->prefill->archive) || sl_now_ns() >= until_ns || !store->alive(store->arg)) {
            return status;
        }
        sl_sleep_ms(POLL_MS);
    }
}

// Returns why a store that answered has nothing: for some recipes, prompts that begin alike are of no use.
static Sluice__V1__NotCached missed(const struct sl_plan *plan) {
    const struct sl_recipe *recipe = &plan->recipe;
    if (sl_recipe_thins(recipe)) {
        return SLUICE__V1__NOT_CACHED__NOT_CACHED_ONLY_WHOLE;
    }
    int64_t boundary = sl_reader_shared_tokens(plan) / recipe->chunk_tokens * recipe->chunk_tokens;
    for (int l = 0; recipe->budget.ratio > 0 && l < plan->geometry.n_layers; l++) {
        if (sl_plan_evicts_within(plan, l, boundary)) {
            return SLUICE__V1__NOT_CACHED__NOT_CACHED_OTHER_LENGTH;
        }
    }
    return SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_STORED;
}

static void warn(const struct sl_prefill_job *job, const struct sl_error *why) {
    sl_log_warn("prefill", "job=%s reads everything: kvstore %s: %s", job->id, job->store_address, why->text);
}

// Uses the match if that pays. Sets job->not_cached if it is not used, and only then.
static enum sl_status use_match(struct sl_prefill_job *job, const struct sl_store_job *store,
                                struct sl_store_match *match, const Sluice__V1__Grant *destination,
                                struct sl_error *err) {
    bool lacks = job->offload && sl_offload_n_stored(job->offload) < match->n_tokens;
    cut_to_remote_kvs(job, match);
    bool is_whole = sl_store_match_is_whole(store, match);
    if (is_whole && !job->here) {
        return reuse_whole(job, store, match, destination, err);
    }
    if (!is_whole && !sl_store_match_pays(store, match)) {
        job->not_cached = sl_recipe_thins(&job->plan.recipe) ? SLUICE__V1__NOT_CACHED__NOT_CACHED_ONLY_WHOLE
                          : lacks                            ? SLUICE__V1__NOT_CACHED__NOT_CACHED_DROPPED
                                                             : SLUICE__V1__NOT_CACHED__NOT_CACHED_TOO_LITTLE;
        return SL_OK;
    }
    struct sl_error why = {0};
    enum sl_status status = resume(job, store, match, &why);
    if (status == SL_OK) {
        job->n_reused = match->n_tokens;
        job->is_whole = is_whole;
        job->kept = is_whole ? SLUICE__V1__KEPT__KEPT_STORED : job->kept;
        return SL_OK;
    }
    job->not_cached = sl_store_not_cached(status);
    if (status != SL_ERR_NOT_FOUND) {
        warn(job, &why);
    }
    return SL_OK;
}

static enum sl_status ask_store(struct sl_prefill_job *job, const Sluice__V1__PrefillRequest *request,
                                struct sl_rpc_call *call, struct sl_error *err) {
    struct reuse_watch watch = {job, call};
    struct sl_store_job store = {.client = job->prefill->store,
                                 .address = job->store_address,
                                 .plan = &job->plan,
                                 .id = &job->capsule,
                                 .tokens = job->tokens,
                                 .salt = &job->salt,
                                 .parent = call,
                                 .alive = tell_alive,
                                 .arg = &watch,
                                 .max_slots = job->most_slots > job->plan.max_slots ? job->most_slots : 0,
                                 .whole_tokens = request->whole_tokens};
    struct sl_error why = {0};
    struct sl_store_match match;
    enum sl_status status = sl_store_lookup(&store, &match, &why);
    if (status == SL_OK) {
        status = use_match(job, &store, &match, request->destination, err);
        sl_store_release(store.client, store.address, match.lease_id);
        return status;
    }
    job->not_cached = status == SL_ERR_NOT_FOUND ? missed(&job->plan) : sl_store_not_cached(status);
    if (status != SL_ERR_NOT_FOUND) {
        warn(job, &why);
    }
    return SL_OK;
}

enum sl_status sl_prefill_reuse(struct sl_prefill_job *job, const Sluice__V1__PrefillRequest *request,
                                struct sl_rpc_call *call, struct sl_error *err) {
    enum sl_status status = SL_OK;
    if (job->no_reuse) {
        job->not_cached = SLUICE__V1__NOT_CACHED__NOT_CACHED_OFF;
    } else if (!job->store_address[0]) {
        job->not_cached = SLUICE__V1__NOT_CACHED__NOT_CACHED_NO_STORE;
    } else {
        status = ask_store(job, request, call, err);
    }
    if (job->not_cached != SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_SAID) {
        atomic_fetch_add(&job->prefill->n_not_cached[job->not_cached], 1);
    }
    return status;
}
