// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/admit.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/locked.h"
#include "coordinator/workers/admit_internal.h"

// Limits how much less of the readers than others a tenant that asks may have had: they wait for it as long
#define CREDIT_NS (SL_NS_PER_S / 5)
#define HELD_NS   (10 * SL_NS_PER_S) // a tenant without a prompt at a reader waits no longer for tenants that had less

// ---- life -------------------------------------------------------------------------------------------------------

enum sl_status sl_admission_create(struct sl_registry *registry, struct sl_affinity *affinity, int max_running,
                                   int max_queued, struct sl_admission **admission_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_admission, admission, err, "admission: no memory");
    admission->registry = registry;
    admission->affinity = affinity;
    admission->policy = &sl_route_policies[0];
    admission->max_running = max_running;
    admission->max_queued = max_queued;
    admission->place_interval_ms = 1000;
    admission->line.next = admission->line.prev = &admission->line;
    pthread_mutex_init(&admission->mutex, NULL);
    *admission_out = admission;
    return SL_OK;
}

void sl_admission_route_by(struct sl_admission *admission, const struct sl_route_policy *policy) {
    admission->policy = policy;
}

void sl_admission_destroy(struct sl_admission **admission_in) {
    SL_TAKE_OR_RETURN(admission, admission_in);
    assert(admission->line.next == &admission->line && admission->stats.n_running == 0 && admission->bases == NULL);
    pthread_mutex_destroy(&admission->mutex);
    free(admission);
}

// ---- the line ---------------------------------------------------------------------------------------------------

static int n_running_of(const struct sl_queue_place *place) {
    return place->tenant != NULL ? place->tenant->n_running : 0;
}

static int64_t read_ns(const struct sl_admission *admission, const struct sl_tenant *tenant) {
    return tenant->read_ns + tenant->n_reading * (admission->now_ns - tenant->read_changed_ns);
}

// Notes the least that readers have had prompts of a tenant of which one has a prompt now, if each has one. Called
// under the lock.
static void note_least_read(struct sl_admission *admission) {
    admission->least_read_ns = INT64_MAX;
    for (const struct sl_tenant *at = admission->reading; admission->n_reading >= admission->n_readers && at != NULL;
         at = at->next_reading) {
        const int64_t had_ns = read_ns(admission, at);
        admission->least_read_ns = had_ns < admission->least_read_ns ? had_ns : admission->least_read_ns;
    }
}

// Returns whether the readers have no time for another prompt of the tenant: it has one for each (two, with those that
// wait for a disk and come to the readers by themselves), or each has one, and of a tenant that had less of their time.
// A worker reads one after the other, so more would gain little, and the other's prompt would wait for them.
static bool has_read_enough(const struct sl_admission *admission, const struct sl_tenant *tenant) {
    const bool held = tenant->n_reading == 0 && admission->now_ns - tenant->read_changed_ns >= HELD_NS;
    const int n_claimed = tenant->n_reading + tenant->n_restoring;
    return (tenant->n_reading > 0 && tenant->n_reading >= admission->n_readers) ||
           (n_claimed > 1 && n_claimed >= 2 * admission->n_readers) ||
           (!held && admission->least_read_ns < read_ns(admission, tenant));
}

// Returns whether another tenant asks while the place's tenant has half of the places for jobs, or would have more than
// half of the memory, or, if the job needs its prompt read, has had its part of the readers. Called under the lock.
static bool is_held(const struct sl_admission *admission, const struct sl_queue_place *place) {
    const struct sl_tenant *tenant = place->tenant;
    return tenant != NULL && sl_askers_has_other(&admission->askers, tenant, admission->now_ns) &&
           ((place->reads && has_read_enough(admission, tenant)) ||
            (tenant->n_running > 0 && (tenant->n_running >= (admission->n_places + 1) / 2 ||
                                       tenant->running_bytes + place->bytes > admission->n_bytes / 2)));
}

static bool goes_before(const struct sl_admission *admission, const struct sl_queue_place *a,
                        const struct sl_queue_place *b) {
    if (a->tenant == b->tenant && a->reads == b->reads) { // the usual case in long lines
        return false;
    }
    const bool a_held = is_held(admission, a), b_held = is_held(admission, b);
    return a_held != b_held ? b_held : n_running_of(a) < n_running_of(b);
}

// Chooses the first place again, after the line or the running jobs have changed. Called under the lock.
static void choose_first(struct sl_admission *admission) {
    admission->first = NULL;
    note_least_read(admission); // once: the line is long, and tenants are many
    for (struct sl_queue_place *at = admission->line.next, *first = NULL;
         at != &admission->line && (first == NULL || n_running_of(first) > 0 || is_held(admission, first));
         at = at->next) {
        if (!at->lacks_worker && (first == NULL || goes_before(admission, at, first))) {
            admission->first = first = at;
        }
    }
}

// Wakes the first place, when room may have appeared or another place has become the first. Only the first can start:
// waking a long line at every end of a job would cost more than the jobs. Called under the lock.
static void wake_first(struct sl_admission *admission) {
    if (admission->first != NULL) {
        sl_bell_ring_held(&admission->first->turn, 1);
    }
}

static void choose_and_wake_first(struct sl_admission *admission) {
    choose_first(admission);
    wake_first(admission);
}

// Notes whether a role that the place needs has no worker. Returns whether that changed. Called under the lock.
static bool note_lack(struct sl_admission *admission, struct sl_queue_place *place, bool lacks_worker) {
    bool changed = place->lacks_worker != lacks_worker;
    place->lacks_worker = lacks_worker;
    if (changed) {
        choose_and_wake_first(admission);
    }
    return changed;
}

// Counts one queued job of the place's tenant more or less. Called under the lock.
static void count_queued(struct sl_admission *admission, struct sl_queue_place *place, int n) {
    admission->stats.n_queued += n;
    if (place->tenant != NULL) {
        place->tenant->n_queued += n;
    }
}

static void count_running(struct sl_admission *admission, struct sl_queue_place *place, int n) {
    admission->stats.n_running += n;
    if (place->tenant != NULL) {
        place->tenant->n_running += n;
    }
}

static void note_most_read(struct sl_admission *admission, const struct sl_tenant *tenant) {
    const int64_t had_ns = read_ns(admission, tenant);
    admission->most_read_ns = had_ns > admission->most_read_ns ? had_ns : admission->most_read_ns;
}

// Counts prompts of a tenant that workers begin to read, or end, if n is negative.
static void count_reading(struct sl_admission *admission, struct sl_tenant *tenant, int n) {
    admission->n_reading += n;
    if (tenant == NULL || n == 0) {
        return;
    }
    admission->now_ns = sl_now_ns();
    note_most_read(admission, tenant);
    if (n > 0 && tenant->n_reading == 0) {
        tenant->next_reading = admission->reading;
        admission->reading = tenant;
    }
    tenant->read_ns = read_ns(admission, tenant);
    tenant->read_changed_ns = admission->now_ns;
    tenant->n_reading += n;
    if (tenant->n_reading == 0) {
        struct sl_tenant **at = &admission->reading;
        while (*at != tenant) {
            at = &(*at)->next_reading;
        }
        *at = tenant->next_reading;
    }
}

// Notes what happens to the claim's prompt. Only changes count, and none after it was read. Called under the lock.
static void move_prompt(struct sl_admission *admission, struct sl_claim *claim, enum sl_prompt_state state) {
    const enum sl_prompt_state before = claim->prompt;
    if (claim->prefill == NULL || before == SL_PROMPT_READ) {
        return;
    }
    struct sl_tenant *tenant = claim->place->tenant;
    count_reading(admission, tenant, (state == SL_PROMPT_READING) - (before == SL_PROMPT_READING));
    if (tenant != NULL) {
        tenant->n_restoring += (state == SL_PROMPT_RESTORING) - (before == SL_PROMPT_RESTORING);
    }
    claim->prompt = state;
}

// Counts for a tenant that asks what others had of the readers while it did not, but for CREDIT_NS. Called under the
// lock.
static void limit_credit(struct sl_admission *admission, struct sl_tenant *tenant) {
    for (const struct sl_tenant *at = admission->reading; at; at = at->next_reading) { // one prompt may take minutes
        note_most_read(admission, at);
    }
    const int64_t more_ns = admission->most_read_ns - CREDIT_NS - read_ns(admission, tenant);
    tenant->read_ns += more_ns > 0 ? more_ns : 0;
    const bool waits = tenant->n_reading > 0 || tenant->n_queued > 0; // until now
    tenant->read_changed_ns = waits ? tenant->read_changed_ns : admission->now_ns;
}

// Inserts a place in order of tickets: a retry goes where its job came from. Called under the lock.
static void line_insert(struct sl_admission *admission, struct sl_queue_place *place) {
    struct sl_queue_place *before = admission->line.prev;
    while (before != &admission->line && before->ticket > place->ticket) {
        before = before->prev;
    }
    place->prev = before;
    place->next = before->next;
    before->next->prev = place;
    before->next = place;
    place->in_line = true;
}

static void line_remove(struct sl_queue_place *place) {
    place->prev->next = place->next;
    place->next->prev = place->prev;
    place->next = place->prev = NULL;
    place->in_line = false;
}

static enum sl_status check_queue(const struct sl_admission *admission, const struct sl_tenant *tenant,
                                  struct sl_error *err) {
    double hint_ms = admission->place_interval_ms;
    hint_ms = hint_ms < 50 ? 50 : hint_ms > 30000 ? 30000 : hint_ms;
    SL_FAIL_IF(admission->stats.n_queued >= admission->max_queued, err, SL_ERR_EXHAUSTED,
               "%" PRId64 " jobs are queued, the most allowed; retry in %.0f ms", admission->stats.n_queued, hint_ms);
    SL_FAIL_IF(tenant != NULL && tenant->n_queued >= sl_tenant_share(tenant, admission->max_queued), err,
               SL_ERR_EXHAUSTED, "%d jobs of %s are queued, its share of the line; retry in %.0f ms", tenant->n_queued,
               tenant->name, hint_ms);
    return SL_OK;
}

int64_t sl_admission_largest_decode(struct sl_admission *admission) {
    struct sl_worker_set *set = &admission->set;
    SL_LOCKED(&admission->mutex);
    sl_registry_snapshot(admission->registry, SLUICE__V1__WORKER_ROLE__DECODE, set);
    int64_t largest = sl_route_largest(set->views, set->n);
    sl_worker_set_release(set);
    return largest;
}

// Puts a place in the line. Called under the lock.
static void enter(struct sl_admission *admission, struct sl_queue_place *place) {
    place->ticket = ++admission->next_ticket;
    admission->now_ns = sl_now_ns();
    if (place->tenant != NULL) {
        sl_askers_note(&admission->askers, place->tenant, admission->now_ns);
        limit_credit(admission, place->tenant);
    }
    line_insert(admission, place);
    choose_first(admission);
    count_queued(admission, place, 1);
}

enum sl_status sl_admission_enter(struct sl_admission *admission, const struct sl_demand *demand,
                                  struct sl_queue_place *place, struct sl_error *err) {
    SL_LOCKED(&admission->mutex);
    SL_TRY(sl_choose_check_fits(admission, demand, err));
    SL_TRY(check_queue(admission, place->tenant, err));
    place->reads = demand->n_prefill_tokens > 0;
    place->bytes = demand->decode_bytes;
    enter(admission, place);
    return SL_OK;
}

void sl_admission_enter_again(struct sl_admission *admission, struct sl_queue_place *place) {
    SL_LOCKED(&admission->mutex);
    enter(admission, place);
}

void sl_admission_leave(struct sl_admission *admission, struct sl_queue_place *place) {
    SL_LOCKED(&admission->mutex);
    if (place->in_line) {
        line_remove(place);
    }
    if (!place->was_admitted && place->ticket != 0) {
        count_queued(admission, place, -1);
    } else if (place->was_admitted) { // a moving average of the time between two ends
        int64_t now_ns = sl_now_ns();
        int64_t since_ns = admission->last_end_ns > place->admitted_ns ? admission->last_end_ns : place->admitted_ns;
        admission->place_interval_ms =
            0.8 * admission->place_interval_ms + 0.2 * (double)(now_ns - since_ns) / SL_NS_PER_MS;
        admission->last_end_ns = now_ns;
    }
    place->ticket = 0;
    place->was_admitted = false;
    choose_and_wake_first(admission);
}

// ---- claims -----------------------------------------------------------------------------------------------------

static void unref_claimed(struct sl_claim *claim) {
    sl_worker_unref(&claim->prefill);
    sl_worker_unref(&claim->decode);
    while (claim->n_shares > 0) {
        sl_worker_unref(&claim->shares[--claim->n_shares].store);
    }
}

// Takes the bytes of a base that jobs share out of the claim. Returns those to claim for the base: all of them for its
// first job.
static int64_t share_base(struct sl_admission *admission, const struct sl_claim_spec *spec, struct sl_claim *claim) {
    int64_t new_bytes = 0, shared_bytes = 0;
    if (spec->held_key != 0 && sl_shared_base_join(&admission->bases, claim->decode, spec->held_key, spec->held_bytes,
                                                   &shared_bytes, &new_bytes)) {
        claim->held_key = spec->held_key;
        claim->demand.decode_bytes -= shared_bytes < spec->held_bytes ? shared_bytes : spec->held_bytes;
    }
    return new_bytes;
}

// Notes how much of the decode worker the place would claim. Called under the lock.
static void note_bytes(struct sl_admission *admission, const struct sl_claim_spec *spec, const struct sl_claim *claim) {
    const int64_t shared_bytes = sl_shared_base_bytes(admission->bases, claim->decode, spec->held_key);
    struct sl_demand own = *spec->demand;
    own.decode_bytes -= shared_bytes < spec->held_bytes ? shared_bytes : spec->held_bytes;
    const int64_t bytes = claim->is_here ? sl_here_need(&own).bytes : own.decode_bytes;
    if (claim->place->bytes != bytes) {
        claim->place->bytes = bytes;
        choose_and_wake_first(admission);
    }
}

// Counts bytes of the decode worker that a claim takes, or gives back.
static void count_decode_bytes(struct sl_admission *admission, const struct sl_claim *claim, int64_t bytes) {
    admission->stats.claimed_bytes += bytes;
    if (claim->place->tenant != NULL) {
        claim->place->tenant->running_bytes += bytes;
    }
}

// Called under the lock, which makes choosing and claiming one step: only claims add to what a worker holds.
static enum sl_status try_claim(struct sl_admission *admission, struct sl_queue_place *place,
                                const struct sl_claim_spec *spec, struct sl_claim *claim_out, struct sl_error *err) {
    const struct sl_demand *demand = spec->demand;
    struct sl_claim claim = {.place = place, .demand = *demand};
    admission->now_ns = sl_now_ns();
    note_least_read(admission);
    enum sl_status status = demand->n_prefill_tokens > 0 ? sl_choose_places(admission, spec, &claim, err)
                                                         : sl_choose_decode(admission, spec, &claim, err);
    SL_THEN_IF(status, demand->offloaded.n > 0, sl_choose_stores(admission, spec, &claim, err));
    if (status == SL_OK) {
        note_bytes(admission, spec, &claim);
    }
    // Check the order of the line last: every job in line must learn that a role has no worker.
    SL_THEN_IF(status,
               place != admission->first || admission->stats.n_running >= admission->max_running ||
                   is_held(admission, place),
               SL_AGAIN);
    SL_TRY_OR(status, unref_claimed(&claim));
    for (int i = 0; i < claim.n_shares; i++) {
        int64_t bytes = claim.shares[i].n_offloaded_heads * claim.demand.offloaded.bytes;
        sl_worker_claim(claim.shares[i].store, (struct sl_route_need){.bytes = bytes}, 0);
        admission->stats.claimed_bytes += bytes;
    }
    int64_t base_bytes = share_base(admission, spec, &claim), here_tokens = 0;
    struct sl_route_need need = sl_decode_need(&claim.demand);
    if (claim.is_here) {
        need = sl_here_need(&claim.demand);
        claim.demand.decode_bytes = need.bytes;
        here_tokens = claim.line_tokens;
    }
    need.bytes += base_bytes;
    sl_worker_claim(claim.decode, need, here_tokens);
    count_decode_bytes(admission, &claim, need.bytes);
    if (spec->held_key != 0) {
        uint64_t worker = sl_worker_name_hash(sl_worker_name(claim.decode)), key = spec->held_key ^ worker;
        sl_affinity_put(admission->affinity, &key, 1, worker); // each worker that holds it has an entry
    }
    if (claim.prefill != NULL && !claim.is_here) {
        sl_worker_claim(claim.prefill, sl_prefill_need(demand), claim.line_tokens);
        sl_worker_await(claim.decode, 1);
        admission->stats.claimed_bytes += demand->prefill_bytes;
    }
    *claim_out = claim;
    return SL_OK;
}

struct trial {
    struct sl_admission *admission;
    struct sl_queue_place *place;
    const struct sl_claim_spec *spec;
    struct sl_claim *claim_out;
    struct sl_error *err;
    enum sl_status status;
};

static void run_trial(void *arg) {
    struct trial *trial = arg;
    trial->status = try_claim(trial->admission, trial->place, trial->spec, trial->claim_out, trial->err);
}

// Tries it on the carrier's stack: choosing takes kilobytes, and the lock is held meanwhile.
static enum sl_status try_on_stack(struct trial trial) {
    sl_fiber_call(run_trial, &trial);
    return trial.status;
}

enum sl_status sl_admission_claim(struct sl_admission *admission, struct sl_queue_place *place,
                                  const struct sl_claim_spec *spec, int64_t wait_ms, struct sl_claim *claim_out,
                                  struct sl_error *err) {
    int64_t deadline_ns = sl_deadline_in_ms(wait_ms);
    SL_LOCKED(&admission->mutex);
    assert(place->ticket != 0);
    const bool reads = spec->demand->n_prefill_tokens > 0;
    if (!place->in_line || place->reads != reads) { // a turn whose session has gone reads its prompt after all
        if (!place->in_line) {
            line_insert(admission, place);
        }
        place->reads = reads;
        choose_and_wake_first(admission);
    }
    enum sl_status status;
    const struct trial trial = {admission, place, spec, claim_out, err, SL_OK};
    while ((status = try_on_stack(trial)) == SL_AGAIN) {
        if (!note_lack(admission, place, false) &&
            sl_bell_wait(&place->turn, &admission->mutex, deadline_ns) == SL_ERR_DEADLINE) {
            break;
        }
    }
    (void)note_lack(admission, place, status == SL_ERR_PEER_LOST);
    if (status == SL_OK) {
        line_remove(place);
        count_running(admission, place, 1);
        move_prompt(admission, claim_out, SL_PROMPT_READING);
        if (!place->was_admitted) {
            place->was_admitted = true;
            place->admitted_ns = sl_now_ns();
            count_queued(admission, place, -1);
        }
        choose_and_wake_first(admission);
    }
    return status;
}

void sl_admission_let_pass(struct sl_admission *admission, struct sl_queue_place *place) {
    SL_LOCKED(&admission->mutex);
    (void)note_lack(admission, place, true);
}

struct sl_queue_place *sl_admission_first(struct sl_admission *admission) {
    SL_LOCKED(&admission->mutex);
    return admission->first;
}

// Called under the lock.
static void give_back_prefill(struct sl_admission *admission, struct sl_claim *claim) {
    move_prompt(admission, claim, SL_PROMPT_READ);
    if (claim->prefill != NULL && claim->is_here) { // the one worker of both
        sl_worker_unclaim_reading(claim->decode, sl_here_need(&claim->demand).staging_bytes, claim->line_tokens);
    } else if (claim->prefill != NULL) {
        sl_worker_await(claim->decode, -1);
        sl_worker_unclaim(claim->prefill, sl_prefill_need(&claim->demand), claim->line_tokens);
        sl_worker_unclaim_reading(claim->decode, sl_decode_need(&claim->demand).staging_bytes, 0); // the capsule came
        admission->stats.claimed_bytes -= claim->demand.prefill_bytes;
    }
    sl_worker_unref(&claim->prefill);
}

void sl_admission_note_prefill(struct sl_admission *admission, int64_t n_tokens, double read_ms, int64_t bytes,
                               double ship_ms) {
    SL_LOCKED(&admission->mutex);
    sl_place_note(&admission->rates.tokens_per_s, n_tokens, read_ms);
    sl_place_note(&admission->rates.bytes_per_s, bytes, ship_ms);
}

int64_t sl_admission_restore_ms(struct sl_admission *admission, const struct sl_demand *demand, int64_t deadline_ns) {
    double read_ms = demand->read_ms;
    if (demand->stored_bytes > 0 && !(read_ms > 0)) { // its document was imported
        SL_LOCKED(&admission->mutex);
        double rate = admission->rates.tokens_per_s;
        read_ms = rate > 0 ? (double)demand->n_prefill_tokens / rate * 1000 : 0;
    }
    return sl_place_restore_ms(read_ms, sl_deadline_left_ms(deadline_ns));
}

void sl_admission_note_prompt(struct sl_admission *admission, struct sl_claim *claim, enum sl_prompt_state state) {
    if (claim->prompt != SL_PROMPT_READ && claim->prompt != state) { // reports are many, changes three at most
        SL_LOCKED(&admission->mutex);
        move_prompt(admission, claim, state);
        choose_and_wake_first(admission);
    }
}

void sl_admission_release_prefill(struct sl_admission *admission, struct sl_claim *claim) {
    SL_LOCKED(&admission->mutex);
    give_back_prefill(admission, claim);
    choose_and_wake_first(admission);
}

void sl_admission_release(struct sl_admission *admission, struct sl_claim *claim) {
    SL_LOCKED(&admission->mutex);
    give_back_prefill(admission, claim);
    if (claim->decode != NULL) {
        int64_t bytes = claim->demand.decode_bytes;
        bytes += claim->held_key != 0 ? sl_shared_base_leave(&admission->bases, claim->decode, claim->held_key) : 0;
        sl_worker_unclaim(claim->decode, (struct sl_route_need){.bytes = bytes}, 0);
        count_decode_bytes(admission, claim, -bytes);
        count_running(admission, claim->place, -1);
        choose_first(admission);
    }
    for (int i = 0; i < claim->n_shares; i++) {
        int64_t bytes = claim->shares[i].n_offloaded_heads * claim->demand.offloaded.bytes;
        sl_worker_unclaim(claim->shares[i].store, (struct sl_route_need){.bytes = bytes}, 0);
        admission->stats.claimed_bytes -= bytes;
    }
    unref_claimed(claim);
    wake_first(admission);
}

// Counts the workers' places, and chooses anew: tenants may have stopped asking. Called under the lock.
static void note_time(struct sl_admission *admission, int64_t now_ns) {
    admission->now_ns = now_ns;
    sl_registry_count_places(admission->registry, &admission->n_readers, &admission->n_places, &admission->n_bytes);
    admission->n_places = admission->n_places < admission->max_running ? admission->n_places : admission->max_running;
    choose_first(admission);
}

bool sl_admission_rebalance(struct sl_admission *admission, int64_t now_ns) {
    static const bool nowhere[SL_N_DUTIES];
    SL_LOCKED(&admission->mutex);
    note_time(admission, now_ns);
    const bool *is_short = admission->first != NULL ? admission->is_short : nowhere;
    enum sl_duty_news news = sl_registry_rebalance(admission->registry, is_short, now_ns);
    admission->stats.n_rebalanced += news == SL_DUTIES_CHANGE;
    wake_first(admission);
    return news == SL_DUTIES_GIVEN;
}

void sl_admission_get_stats(struct sl_admission *admission, struct sl_admission_stats *stats_out) {
    SL_LOCKED(&admission->mutex);
    *stats_out = admission->stats;
    stats_out->routing = admission->policy->name;
}
