// SPDX-License-Identifier: Apache-2.0
// Purpose: chooses the workers and stores of a job from snapshots of the registry (route.h), and the place where its prompt is
// read (place.h).
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "coordinator/workers/admit_internal.h"
#include "engine/kvcache/capsule.h"

// ---- what can never fit ---------------------------------------------------------------------------------------------

static enum sl_status too_big(const char *role, int64_t need_bytes, int64_t largest_bytes, struct sl_error *err) {
    return sl_fail(err, SL_ERR_PRECONDITION,
                   "the job needs %" PRId64 " bytes of KV memory on a%s %s worker and the largest has %" PRId64
                   ": it fits never; use a shorter prompt, fewer new tokens or a smaller budget or format",
                   need_bytes, role[0] == 'a' ? "n" : "", role, largest_bytes);
}

// Checks that some worker of the set could run the job when idle. The set has workers that take jobs.
static enum sl_status check_fits(const struct sl_worker_set *set, const char *role, struct sl_route_need need,
                                 struct sl_error *err) {
    int64_t largest = sl_route_largest(set->views, set->n);
    if (need.bytes > largest) {
        return too_big(role, need.bytes, largest, err);
    }
    SL_FAIL_IF(!sl_route_fits(set->views, set->n, need), err, SL_ERR_PRECONDITION,
               "what travels of the job takes %" PRId64
               " bytes of staging memory, and no %s worker has that beside an arena of %" PRId64
               ": it fits never; start one with more --staging, or use a shorter prompt or a smaller budget or "
               "format",
               need.staging_bytes, role, need.bytes);
    return SL_OK;
}

// Takes a snapshot of the decode workers that read prompts, too.
static void snapshot_here(struct sl_admission *admission) {
    struct sl_worker_set *set = &admission->set;
    sl_registry_snapshot(admission->registry, SLUICE__V1__WORKER_ROLE__DECODE, set);
    for (int i = 0; i < set->n; i++) {
        set->views[i].ready &= set->views[i].reads;
    }
}

static bool fits_here(struct sl_admission *admission, const struct sl_demand *demand) {
    snapshot_here(admission);
    bool fits = sl_route_fits(admission->set.views, admission->set.n, sl_here_need(demand));
    sl_worker_set_release(&admission->set);
    return fits;
}

enum sl_status sl_choose_check_fits(struct sl_admission *admission, const struct sl_demand *demand,
                                    struct sl_error *err) {
    struct sl_worker_set *set = &admission->set;
    enum sl_status status = SL_OK;
    if (demand->n_prefill_tokens > 0 && fits_here(admission, demand)) {
        return SL_OK;
    }
    sl_registry_snapshot(admission->registry, SLUICE__V1__WORKER_ROLE__DECODE, set);
    if (sl_route_count_ready(set->views, set->n) > 0) {
        status = check_fits(set, "decode", sl_decode_need(demand), err);
    }
    sl_worker_set_release(set);
    sl_registry_snapshot(admission->registry, SLUICE__V1__WORKER_ROLE__PREFILL, set);
    bool has_prefill = sl_route_count_ready(set->views, set->n) > 0;
    SL_THEN_IF(status, has_prefill, check_fits(set, "prefill", sl_prefill_need(demand), err));
    sl_worker_set_release(set);
    snapshot_here(admission);
    SL_THEN_IF(status, !has_prefill && sl_route_count_ready(set->views, set->n) > 0,
               check_fits(set, "aggregated", sl_here_need(demand), err));
    sl_worker_set_release(set);
    return status;
}

// ---- choices --------------------------------------------------------------------------------------------------------

// Asks for a worker by the policy. A job that has waited long leaves a worker less time to read.
static struct sl_route_ask ask_of(const struct sl_admission *admission, const struct sl_claim_spec *spec,
                                  struct sl_route_need need) {
    double left_tokens = (double)sl_deadline_left_ms(spec->deadline_ns) / 1000 * admission->rates.tokens_per_s;
    bool is_known = spec->deadline_ns > 0 && admission->rates.tokens_per_s > 0 && left_tokens < 1e15;
    return (struct sl_route_ask){
        .policy = admission->policy, .need = need, .budget_tokens = is_known ? (int64_t)left_tokens : INT64_MAX};
}

static void mark_avoided(struct sl_worker_set *set, const struct sl_avoid *avoid) {
    for (int i = 0; i < set->n; i++) {
        for (int j = 0; j < avoid->n; j++) {
            set->views[i].avoid |= set->workers[i] == avoid->workers[j];
        }
    }
}

// Returns why no worker was chosen: SL_AGAIN if one may be free later.
static enum sl_status no_worker(const struct sl_worker_set *set, const char *role, struct sl_route_need need,
                                struct sl_error *err) {
    SL_FAIL_IF(sl_route_count_ready(set->views, set->n) == 0, err, SL_ERR_PEER_LOST, "no %s worker is ready", role);
    SL_TRY(check_fits(set, role, need, err));
    return SL_AGAIN;
}

// Sets in every view what jobs share there of this job's need, and what the worker probably holds since an earlier one.
static void see_bases(struct sl_admission *admission, const struct sl_claim_spec *spec) {
    struct sl_worker_set *set = &admission->set;
    for (int i = 0; spec->held_key != 0 && i < set->n; i++) {
        uint64_t worker = sl_worker_name_hash(set->views[i].name), key = spec->held_key ^ worker;
        int64_t shared_bytes = sl_shared_base_bytes(admission->bases, set->workers[i], spec->held_key);
        set->views[i].shared_bytes = shared_bytes < spec->held_bytes ? shared_bytes : spec->held_bytes;
        bool holds = sl_affinity_match(admission->affinity, &key, 1, &worker) > 0;
        set->views[i].held_bytes = holds ? spec->held_bytes : set->views[i].shared_bytes;
    }
}

static void note_short(struct sl_admission *admission, const struct sl_claim *claim, int duty, enum sl_status status) {
    if (claim->place == admission->first) {
        admission->is_short[duty] = status == SL_AGAIN;
    }
}

enum sl_status sl_choose_decode(struct sl_admission *admission, const struct sl_claim_spec *spec,
                                struct sl_claim *claim, struct sl_error *err) {
    const struct sl_demand *demand = spec->demand;
    struct sl_worker_set *set = &admission->set;
    sl_registry_snapshot(admission->registry, SLUICE__V1__WORKER_ROLE__DECODE, set);
    mark_avoided(set, spec->avoid);
    for (int j = 0; spec->only != NULL && j < set->n; j++) {
        set->views[j].ready &= strcmp(set->views[j].name, spec->only) == 0;
    }
    see_bases(admission, spec);
    const struct sl_route_ask ask = ask_of(admission, spec, sl_decode_need(demand));
    int i = sl_route_decode(set->views, set->n, &ask);
    enum sl_status status = i < 0 ? no_worker(set, "decode", ask.need, err) : SL_OK;
    if (spec->only != NULL && status == SL_ERR_PEER_LOST) {
        status = sl_fail(err, SL_ERR_PEER_STALE, "%s, which keeps the session of the turn before, takes no jobs",
                         spec->only);
    }
    if (spec->only != NULL && status == SL_AGAIN) { // jobs after this one wait too, and other workers may run them
        status = sl_fail(err, SL_ERR_EXHAUSTED, "%s, which keeps the session of the turn before, has no room now",
                         spec->only);
    }
    if (status == SL_OK) {
        claim->decode = sl_worker_ref(set->workers[i]);
    }
    note_short(admission, claim, SL_WRITING, status);
    sl_worker_set_release(set);
    return status;
}

// Notes in the snapshot which worker has read how much of the prompt before. Returns the tokens that are to be read: what any worker has
// read is in a store, if there is one.
static int64_t see_readers(struct sl_admission *admission, const struct sl_claim_spec *spec) {
    struct sl_worker_set *set = &admission->set;
    uint64_t reader;
    int64_t n_blocks = sl_affinity_match(admission->affinity, spec->keys, spec->n_keys, &reader);
    for (int i = 0; i < set->n; i++) {
        if (n_blocks > 0 && sl_worker_name_hash(set->views[i].name) == reader) {
            set->views[i].matched_tokens = n_blocks * SL_PREFIX_BLOCK;
        }
    }
    bool is_stored = n_blocks > 0 && !spec->reads_all &&
                     sl_registry_is_served(admission->registry, SLUICE__V1__WORKER_ROLE__KVSTORE);
    int64_t unread = spec->demand->n_prefill_tokens - (is_stored ? n_blocks * SL_PREFIX_BLOCK : 0);
    return unread > 0 ? unread : 0;
}

// Describes the worker to sl_place_is_here().
static struct sl_place_offer offer_of(const struct sl_route_view *view, int64_t unread_tokens) {
    return (struct sl_place_offer){.possible = true,
                                   .unread_tokens = unread_tokens,
                                   .line_tokens = view->claimed_tokens,
                                   .other_jobs = view->jobs};
}

// Chooses a prefill worker, or with `here` one that reads and writes. SL_ERR_PEER_LOST: there is none.
static enum sl_status choose_reader(struct sl_admission *admission, const struct sl_claim_spec *spec,
                                    struct sl_claim *claim, bool here, struct sl_worker **worker_out,
                                    struct sl_place_offer *offer_out, struct sl_error *err) {
    const struct sl_demand *demand = spec->demand;
    struct sl_worker_set *set = &admission->set;
    if (here) {
        snapshot_here(admission);
    } else {
        sl_registry_snapshot(admission->registry, SLUICE__V1__WORKER_ROLE__PREFILL, set);
    }
    mark_avoided(set, spec->avoid);
    struct sl_route_ask ask = ask_of(admission, spec, here ? sl_here_need(demand) : sl_prefill_need(demand));
    claim->line_tokens = ask.n_tokens = see_readers(admission, spec);
    sl_worker_set_delays(set, ask.n_tokens);
    int i = here ? sl_route_here(set->views, set->n, &ask) : sl_route_prefill(set->views, set->n, &ask);
    enum sl_status status = i < 0 ? no_worker(set, here ? "aggregated" : "prefill", ask.need, err) : SL_OK;
    if (status == SL_OK) {
        *worker_out = sl_worker_ref(set->workers[i]);
        *offer_out = offer_of(&set->views[i], ask.n_tokens);
        offer_out->ship_bytes = here ? 0 : demand->capsule_bytes;
    }
    sl_worker_set_release(set);
    return status;
}

/*
 * Returns the status of a prompt that can be read in neither place. It waits if it may be read in one of them later. A
 * place without workers says nothing if the other one has some.
 */
static enum sl_status neither(enum sl_status here, const struct sl_error *here_err, enum sl_status there,
                              const struct sl_error *there_err, struct sl_error *err) {
    bool says_here = there == SL_ERR_PEER_LOST && here != SL_ERR_PEER_LOST;
    if (here == SL_AGAIN || there == SL_AGAIN) {
        return SL_AGAIN;
    }
    *err = says_here ? *here_err : *there_err;
    return says_here ? here : there;
}

enum sl_status sl_choose_places(struct sl_admission *admission, const struct sl_claim_spec *spec,
                                struct sl_claim *claim, struct sl_error *err) {
    struct sl_place_offer here_offer = {0}, there_offer = {0};
    struct sl_error here_err = {0}, there_err = {0};
    struct sl_worker *here = NULL;
    enum sl_status at_here = choose_reader(admission, spec, claim, true, &here, &here_offer, &here_err);
    enum sl_status at_there = sl_choose_decode(admission, spec, claim, &there_err);
    if (at_there == SL_OK) {
        at_there = choose_reader(admission, spec, claim, false, &claim->prefill, &there_offer, &there_err);
        note_short(admission, claim, SL_READING, at_there);
    }
    if (at_here != SL_OK && at_there != SL_OK) {
        return neither(at_here, &here_err, at_there, &there_err, err); // the caller unrefs the claim's worker
    }
    there_offer.possible = at_there == SL_OK;
    bool is_here = sl_place_is_here(&here_offer, &there_offer, &admission->rates, claim->why);
    bool had_choice = at_here != SL_ERR_PEER_LOST && at_there != SL_ERR_PEER_LOST;
    claim->why[0] = had_choice ? claim->why[0] : '\0';
    if (is_here) {
        sl_worker_unref(&claim->prefill);
        sl_worker_unref(&claim->decode);
        claim->prefill = sl_worker_ref(here);
        claim->decode = sl_worker_ref(here);
        claim->is_here = true;
    }
    sl_worker_unref(&here);
    return SL_OK;
}

// Chooses the stores among those that have the document's layers, and takes what they have out of the claim; fewer than 1:
// they take no jobs, have failed the job, or have no room.
static int choose_holders(struct sl_worker_set *set, const struct sl_claim_spec *spec, uint64_t key,
                          struct sl_claim *claim, struct sl_route_share shares_out[SL_MAX_SHARES]) {
    struct sl_route_offloaded_heads rest = spec->demand->offloaded;
    bool was_ready[SL_MAX_WORKERS];
    for (int i = 0; i < set->n; i++) {
        struct sl_route_view *view = &set->views[i];
        bool has = false;
        for (int j = 0; j < spec->n_stores && !has; j++) {
            has = strcmp(spec->stores[j], view->name) == 0;
        }
        was_ready[i] = view->ready;
        view->ready = view->ready && has && !view->avoid;
    }
    rest.bytes -= spec->demand->stored_bytes < rest.bytes ? spec->demand->stored_bytes : rest.bytes - 1;
    int n = sl_route_shares(set->views, set->n, key, &rest, false, shares_out, SL_MAX_SHARES);
    claim->demand.offloaded.bytes = n < 1 ? claim->demand.offloaded.bytes : rest.bytes;
    for (int i = 0; i < set->n; i++) {
        set->views[i].ready = was_ready[i];
    }
    return n;
}

// Leaves one store to choose from: the one that gets the prompt's capsule. Returns its place; -1: no store is ready.
static int keep_together(struct sl_worker_set *set, uint64_t key) {
    int store = sl_route_store(set->views, set->n, key);
    for (int i = 0; i < set->n; i++) {
        set->views[i].ready &= i == store;
    }
    return store;
}

enum sl_status sl_choose_stores(struct sl_admission *admission, const struct sl_claim_spec *spec,
                                struct sl_claim *claim, struct sl_error *err) {
    const struct sl_route_offloaded_heads *offloaded_heads = &spec->demand->offloaded;
    const uint64_t key = spec->n_keys > 0 ? spec->keys[0] : 0;
    struct sl_worker_set *set = &admission->set;
    struct sl_route_share shares[SL_MAX_SHARES];
    sl_registry_snapshot(admission->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, set);
    mark_avoided(set, spec->avoid);
    int only = spec->demand->in_one_store ? keep_together(set, key) : -1;
    int n = spec->n_stores > 0 ? choose_holders(set, spec, key, claim, shares) : 0;
    if (n < 1) {
        n = sl_route_shares(set->views, set->n, key, offloaded_heads, false, shares, SL_MAX_SHARES);
    }
    enum sl_status status = n < 0 ? SL_AGAIN : SL_OK;
    int n_ready = sl_route_count_ready(set->views, set->n);
    if (n < 0 && n_ready < offloaded_heads->replicas) {
        status = sl_fail(err, SL_ERR_PEER_LOST,
                         "the recipe offloads layers %d times over and %d kvstores are ready: start more "
                         "(sluice-kvstore), or use place=resident",
                         offloaded_heads->replicas, n_ready);
    } else if (n < 0 && sl_route_shares(set->views, set->n, key, offloaded_heads, true, shares, SL_MAX_SHARES) < 0) {
        status = sl_fail(err, SL_ERR_PRECONDITION,
                         "the job's offloaded layers take %" PRId64
                         " bytes, %d times in different kvstores, which together hold %" PRId64
                         ": it fits never; start more kvstores, or use a shorter prompt or a smaller format",
                         offloaded_heads->bytes * offloaded_heads->n, offloaded_heads->replicas,
                         sl_route_store_room(set->views, set->n));
    } else if (n < 0 && only >= 0) { // jobs after this one wait too, and other stores may serve them
        status = sl_fail(err, SL_ERR_EXHAUSTED,
                         "other jobs use %s's memory: it has no room now for the %" PRId64
                         " bytes of offloaded layers of a document, which it keeps beside the capsule; try again when "
                         "they have ended",
                         set->views[only].name, offloaded_heads->bytes * offloaded_heads->n);
    }
    for (int i = 0; i < n; i++) {
        claim->shares[i].store = sl_worker_ref(set->workers[shares[i].view]);
        claim->shares[i].first_offloaded_head = shares[i].first_offloaded_head;
        claim->shares[i].n_offloaded_heads = shares[i].n_offloaded_heads;
        claim->shares[i].replica = shares[i].replica;
        claim->n_shares++;
    }
    sl_worker_set_release(set);
    return status;
}

bool sl_admission_has_other_stores(struct sl_admission *admission, const struct sl_demand *demand,
                                   const struct sl_avoid *avoid) {
    struct sl_worker_set *set = &admission->set;
    struct sl_route_share shares[SL_MAX_SHARES];
    SL_LOCKED(&admission->mutex);
    sl_registry_snapshot(admission->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, set);
    mark_avoided(set, avoid);
    for (int i = 0; i < set->n; i++) {
        set->views[i].ready &= !set->views[i].avoid;
    }
    int n = sl_route_shares(set->views, set->n, 0, &demand->offloaded, false, shares, SL_MAX_SHARES);
    sl_worker_set_release(set);
    return n > 0;
}
