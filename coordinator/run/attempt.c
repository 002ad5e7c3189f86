// SPDX-License-Identifier: Apache-2.0
// Purpose: see attempt.h. Read from the bottom up: sl_run_attempt(), and its four steps.
#include "coordinator/run/attempt.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/term.h"
#include "coordinator/run/remote_kv.h"
#include "coordinator/run/token.h"
#include "engine/job/job_request.h"
#include "net/trace/trace.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define CLAIM_WAIT_MS    40   // between looks at the job while it is in the line
#define RESERVE_MS       2000 // a decode worker that cannot grant memory within this is lost
#define RESERVE_AGAIN_MS 150  // pause after a decode worker had no memory after all

static enum sl_status prefill(struct sl_run *run, struct sl_error *err);

// What the attempt asks of the cluster's memory.
static const struct sl_demand *demand_of(const struct sl_run *run) {
    const struct sl_job_spec *spec = &run->job->spec;
    return run->way == SL_TURN_WHOLE ? &spec->demand : &run->from.demand;
}

static Sluice__V1__TokenIds token_ids(const int32_t *ids, int64_t n) {
    Sluice__V1__TokenIds message = SLUICE__V1__TOKEN_IDS__INIT;
    message.ids = (int32_t *)ids;
    message.n_ids = (size_t)n;
    return message;
}

// ---- our right to give orders -----------------------------------------------------------------------------------

int64_t sl_run_last_term(const struct sl_run *run) {
    return run->context->election != NULL ? sl_election_last_term(run->context->election) : 0;
}

// Of an order that goes out now, and may be refused for it.
static int64_t term_of(struct sl_run *run) {
    run->term = sl_run_last_term(run);
    return run->term;
}

// SL_AGAIN: nobody else is known to lead. SL_ERR_PEER_LOST: another one does.
static enum sl_status check_leads(struct sl_run *run, struct sl_error *err) {
    struct sl_election *election = run->context->election;
    if (election == NULL || sl_election_term(election) != 0) {
        return SL_OK;
    }
    char leader[SL_LEADER_BYTES];
    if (!sl_election_another_leads(election, leader)) {
        return SL_AGAIN;
    }
    run->report.another_leads = run->hopeless = true;
    return sl_fail(err, SL_ERR_PEER_LOST, "%s leads now: submit the job there", leader);
}

// ---- step 1: workers --------------------------------------------------------------------------------------------

/*
 * Stand in the line until there is room. While a role has no worker that is ready, wait only as long as a worker takes
 * to be restarted: then the client must hear that the cluster cannot do it.
 */
static enum sl_status claim_workers(struct sl_run *run, struct sl_error *err) {
    const struct sl_job_spec *spec = &run->job->spec;
    const struct sl_claim_spec claim = {.demand = demand_of(run),
                                        .keys = spec->keys,
                                        .n_keys = spec->n_keys,
                                        .avoid = &run->avoid,
                                        .only = run->way == SL_TURN_KEPT ? run->from.worker : NULL};
    int64_t missing_since_ns = 0;
    for (;;) {
        enum sl_status status = sl_job_interrupted(run->job, err);
        if (status == SL_OK) {
            status = check_leads(run, err);
        }
        if (status == SL_AGAIN) {
            sl_sleep_ms(CLAIM_WAIT_MS);
            continue;
        }
        if (status != SL_OK) {
            return status;
        }
        status = sl_admission_claim(run->context->admission, &run->job->place, &claim, CLAIM_WAIT_MS, &run->claim, err);
        if (status == SL_AGAIN) {
            missing_since_ns = 0;
        } else if (status == SL_ERR_PEER_LOST) {
            int64_t now_ns = sl_now_ns();
            missing_since_ns = missing_since_ns == 0 ? now_ns : missing_since_ns;
            if (now_ns - missing_since_ns > run->context->worker_wait_ms * SL_NS_PER_MS) {
                run->hopeless = true;
                return status;
            }
            sl_sleep_ms(CLAIM_WAIT_MS);
        } else {
            return status;
        }
    }
}

// ---- step 2: memory for the capsule -----------------------------------------------------------------------------

static enum sl_status reserve(struct sl_run *run, struct sl_error *err) {
    const struct sl_demand *demand = demand_of(run);
    int64_t capsule_bytes = run->way == SL_TURN_STORED ? run->from.kept_bytes : demand->capsule_bytes;
    Sluice__V1__ReserveRequest request = SLUICE__V1__RESERVE_REQUEST__INIT;
    request.job_id = run->job->id;
    request.capsule_bytes = capsule_bytes;
    request.session_bytes = demand->decode_bytes - capsule_bytes;
    request.recipe = run->job->spec.recipe;
    request.term = term_of(run);
    int64_t deadline_ns = sl_deadline_in_ms(RESERVE_MS);
    deadline_ns = deadline_ns < run->job->spec.deadline_ns ? deadline_ns : run->job->spec.deadline_ns;

    // A grant that is made after we stopped listening goes back when its lease ends.
    struct sl_leg leg = {.job = run->job, .worker = run->claim.decode, .silence_ms = RESERVE_MS};
    ProtobufCMessage *message = NULL;
    enum sl_status status = sl_leg_open(&leg, &sl_method_decode_reserve, &request.base, deadline_ns, err);
    if (status == SL_OK) {
        status = sl_leg_next(&leg, &message, err);
        sl_leg_close(&leg);
    }
    if (status != SL_OK) {
        return status;
    }
    Sluice__V1__Grant *grant = (Sluice__V1__Grant *)message;
    size_t id_bytes = strlen(grant->lease_id);
    if (id_bytes < 1 || id_bytes >= sizeof(run->lease.id) || grant->lease_ms < 1 ||
        grant->capacity_bytes < capsule_bytes) {
        protobuf_c_message_free_unpacked(message, NULL);
        return sl_fail(err, SL_ERR_INTERNAL, "%s: its grant makes no sense", sl_worker_name(run->claim.decode));
    }
    strcpy(run->lease.id, grant->lease_id);
    run->lease.worker = run->claim.decode;
    run->lease.renew = &sl_method_decode_renew;
    run->lease.release = &sl_method_decode_release;
    sl_lease_granted(&run->lease, grant->lease_ms);
    run->grant = grant;
    return SL_OK;
}

// A step as a span, of which its worker's are parts.
static enum sl_status traced(struct sl_run *run, const char *name,
                             enum sl_status (*step_fn)(struct sl_run *run, struct sl_error *err),
                             struct sl_error *err) {
    struct sl_span span;
    const struct sl_worker *worker = step_fn == prefill ? run->claim.prefill : run->claim.decode;
    sl_span_begin(&span, name, SL_SPAN_CLIENT);
    sl_span_set_text(&span, "sluice.worker", sl_worker_name(worker));
    enum sl_status status = step_fn(run, err);
    sl_span_end(&span, status, err->text);
    return status;
}

// Steps 1 and 2 until both succeed. "Not now" from the decode worker itself is no loss: wait and try again.
static enum sl_status acquire(struct sl_run *run, struct sl_error *err) {
    for (;;) {
        enum sl_status status = claim_workers(run, err);
        if (status != SL_OK || (run->claim.prefill == NULL && run->way != SL_TURN_STORED)) {
            return status;
        }
        status = traced(run, "reserve", reserve, err);
        if (status != SL_ERR_EXHAUSTED) {
            return status;
        }
        sl_log_info("job", "job=%s waits: %s", run->job->id, err->text);
        sl_admission_release(run->context->admission, &run->claim);
        sl_sleep_ms(RESERVE_AGAIN_MS);
    }
}

// ---- step 3: prefill --------------------------------------------------------------------------------------------

static enum sl_status hear_prefill(struct sl_run *run, const Sluice__V1__PrefillEvent *event, struct sl_error *err) {
    struct sl_job *job = run->job;
    switch (event->what_case) {
    case SLUICE__V1__PREFILL_EVENT__WHAT_PREFILL:
        sl_run_report_prefill(&run->report, job, event->prefill);
        return SL_OK;
    case SLUICE__V1__PREFILL_EVENT__WHAT_SHIP:
        if (sl_job_state(job) == SLUICE__V1__JOB_STATE__PREFILLING) {
            sl_job_move(job, SLUICE__V1__JOB_STATE__SHIPPING, sl_worker_name(run->claim.decode));
        }
        sl_run_report_ship(&run->report, job, event->ship);
        return SL_OK;
    case SLUICE__V1__PREFILL_EVENT__WHAT_DONE:
        sl_run_report_prefill_done(&run->report, job, event->done->statistics);
        return sl_annex_check(&run->claim, event->done, err);
    default:
        return sl_fail(err, SL_ERR_INTERNAL, "%s sent an event of an unknown kind", sl_worker_name(run->claim.prefill));
    }
}

// For workers, who compute the hashes. Empty where nobody is told apart.
static ProtobufCBinaryData salt_of(const struct sl_job_spec *spec) {
    size_t bytes = sl_hash128_is_zero(&spec->salt) ? 0 : sizeof spec->salt;
    return (ProtobufCBinaryData){bytes, (uint8_t *)spec->salt.bytes};
}

static enum sl_status prefill(struct sl_run *run, struct sl_error *err) {
    const struct sl_job_spec *spec = &run->job->spec;
    char store[SL_ADDRESS_BYTES];
    uint64_t first_key = spec->n_keys > 0 ? spec->keys[0] : 0;
    int64_t store_bytes = sl_registry_store_address(run->context->registry, first_key, store);
    Sluice__V1__TokenIds tokens = token_ids(spec->tokens, spec->demand.n_prefill_tokens);
    Sluice__V1__PrefillRequest request = SLUICE__V1__PREFILL_REQUEST__INIT;
    request.job_id = run->job->id;
    request.tokens = &tokens;
    request.recipe = (char *)spec->recipe;
    request.destination = run->grant;
    request.kvstore_address = store;
    request.kvstore_bytes = store_bytes;
    request.estimate_errors = spec->estimate_errors;
    request.n_positions = spec->n_tokens + spec->max_new_tokens;
    request.salt = salt_of(spec);
    request.term = term_of(run);
    struct sl_store_shares shares;
    sl_store_shares_fill(&run->claim, &shares);
    request.stores = shares.pointers;
    request.n_stores = shares.n;

    struct sl_leg leg = {.job = run->job,
                         .worker = run->claim.prefill,
                         .peer = run->claim.decode,
                         .lease = &run->lease,
                         .lease_is_vital = true,
                         .silence_ms = run->context->silence_ms};
    sl_run_report_start(&run->report);
    enum sl_status status = sl_leg_open(&leg, &sl_method_prefill_run, &request.base, spec->deadline_ns, err);
    while (status == SL_OK && run->prefilled == NULL) {
        ProtobufCMessage *message = NULL;
        status = sl_leg_next(&leg, &message, err);
        if (status == SL_OK) {
            Sluice__V1__PrefillEvent *event = (Sluice__V1__PrefillEvent *)message;
            status = hear_prefill(run, event, err);
            if (event->what_case == SLUICE__V1__PREFILL_EVENT__WHAT_DONE) {
                run->prefilled = event;
            } else {
                protobuf_c_message_free_unpacked(message, NULL);
            }
        }
    }
    sl_leg_close(&leg);
    if (status != SL_OK) {
        return status;
    }
    sl_affinity_put(run->context->affinity, spec->keys, spec->n_keys,
                    sl_worker_name_hash(sl_worker_name(run->claim.prefill)));
    sl_admission_release_prefill(run->context->admission, &run->claim);
    if (sl_job_state(run->job) == SLUICE__V1__JOB_STATE__PREFILLING) { // too quick to have reported any shipping
        sl_job_move(run->job, SLUICE__V1__JOB_STATE__SHIPPING, sl_worker_name(run->claim.decode));
    }
    return SL_OK;
}

// Instead of it, of a turn whose session a store has.
static enum sl_status restore(struct sl_run *run, struct sl_error *err) {
    sl_run_report_start(&run->report);
    struct sl_error why = {0};
    enum sl_status status =
        sl_copy_restore(run->context, run->job, &run->from.copy, run->claim.decode, &run->lease, run->grant, &why);
    if (status == SL_OK) {
        return SL_OK;
    }
    status = sl_job_interrupted(run->job, err);
    if (status != SL_OK) {
        return status;
    }
    run->blameless = true;
    return sl_fail_from(err, SL_ERR_PEER_STALE, &why, "no session from the store: %.300s", why.text);
}

// ---- step 4: decode ---------------------------------------------------------------------------------------------

/*
 * How many of the tokens that clients have the next worker reads. All but the last one if that may have been the job's
 * end, of which a lost worker had no time to tell: who is told that it has been said writes it again, and decides whether to stop.
 */
static int64_t count_resumed(const struct sl_run *run) {
    const struct sl_job *job = run->job;
    if (job->n_output == 0) {
        return 0;
    }
    bool may_end = job->n_output == job->spec.max_new_tokens || job->spec.n_stop > 0;
    for (int i = 0; i < run->context->model->ends.n && !job->spec.ignore_eos; i++) {
        may_end |= job->output[job->n_output - 1] == run->context->model->ends.ids[i];
    }
    return job->n_output - may_end;
}

// The first word of the answer: the session of a turn was there.
static void hear_accepted(struct sl_run *run) {
    if (run->way != SL_TURN_WHOLE && !run->accepted) {
        sl_run_report_reused(&run->report, run->job, run->from.n_kept);
    }
    run->accepted = true;
}

static enum sl_status hear_decode(struct sl_run *run, const Sluice__V1__DecodeEvent *event, struct sl_error *err) {
    switch (event->what_case) {
    case SLUICE__V1__DECODE_EVENT__WHAT_TOKEN:
        hear_accepted(run);
        return sl_run_token_hear(run->context, &run->report, run->job, sl_worker_name(run->claim.decode), event->token,
                                 err);
    case SLUICE__V1__DECODE_EVENT__WHAT_DONE:
        hear_accepted(run);
        run->decode_done = true;
        if (run->turn.id[0] != '\0') {
            sl_turn_hear_kept(run->job, run->claim.decode, event->done, &run->turn);
        }
        return sl_run_report_decode_done(&run->report, run->job, event->done, err);
    case SLUICE__V1__DECODE_EVENT__WHAT_ALIVE:
        return SL_OK;
    case SLUICE__V1__DECODE_EVENT__WHAT_NOTICE:
        sl_log_warn("job", "job=%s %s: %.300s", run->job->id, sl_worker_name(run->claim.decode), event->notice->text);
        sl_run_report_notice(&run->report, run->job, event->notice);
        return SL_OK;
    default:
        return sl_fail(err, SL_ERR_INTERNAL, "%s sent an event of an unknown kind", sl_worker_name(run->claim.decode));
    }
}

static enum sl_status decode(struct sl_run *run, struct sl_error *err) {
    struct sl_job *job = run->job;
    const struct sl_job_spec *spec = &job->spec;
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&spec->sampling);
    Sluice__V1__TokenIds prompt = token_ids(spec->tokens, spec->n_tokens);
    int64_t n_resumed = count_resumed(run);
    Sluice__V1__TokenIds resumed = token_ids(job->output, n_resumed);
    Sluice__V1__TokenIds said = token_ids(job->output + n_resumed, job->n_output - n_resumed);
    Sluice__V1__DecodeRequest request = SLUICE__V1__DECODE_REQUEST__INIT;
    request.job_id = job->id;
    request.lease_id = run->lease.id; // "" when there is no capsule
    request.prompt = &prompt;
    request.resumed = &resumed;
    request.said = &said;
    request.sampling = &sampling;
    request.max_new_tokens = spec->max_new_tokens; // of the whole job, resumed ones included
    request.stop = (char **)spec->stop;
    request.n_stop = (size_t)spec->n_stop;
    request.ignore_eos = spec->ignore_eos;
    request.recipe = (char *)spec->recipe;
    request.estimate_errors = spec->estimate_errors;
    request.salt = salt_of(spec);
    request.term = term_of(run);
    request.keep_ms = spec->turn.keep_ms;
    request.turn = run->way != SL_TURN_WHOLE;
    struct sl_hash128 history = run->from.history;
    if (run->way == SL_TURN_STORED) {
        request.capsule_hash = (ProtobufCBinaryData){sizeof history, history.bytes};
    }
    if (run->way == SL_TURN_KEPT) {
        request.kept = run->from.lease_id;
        request.session_bytes = run->claim.demand.decode_bytes - run->from.kept_bytes;
    }
    if (run->prefilled != NULL) {
        request.annex = run->prefilled->done->annex;
        request.n_annex = run->prefilled->done->n_annex;
    }

    sl_job_move(job, SLUICE__V1__JOB_STATE__DECODING, sl_worker_name(run->claim.decode));
    // The session that is being decoded keeps itself; the lease is renewed so that a worker may treat both alike.
    struct sl_lease annexes[SL_MAX_SHARES];
    struct sl_leg leg = {
        .job = job,
        .worker = run->claim.decode,
        .lease = &run->lease,
        .others = annexes,
        .n_others = sl_annex_leases(&run->claim, run->prefilled != NULL ? run->prefilled->done : NULL, annexes),
        .silence_ms = run->context->silence_ms};
    enum sl_status status = sl_leg_open(&leg, &sl_method_decode_run, &request.base, spec->deadline_ns, err);
    while (status == SL_OK && !run->decode_done) {
        ProtobufCMessage *message = NULL;
        status = sl_leg_next(&leg, &message, err);
        if (status == SL_OK) {
            status = hear_decode(run, (Sluice__V1__DecodeEvent *)message, err);
            protobuf_c_message_free_unpacked(message, NULL);
        }
    }
    sl_leg_close(&leg);
    return status;
}

// ---- the attempt ------------------------------------------------------------------------------------------------

static void announce_workers(struct sl_run *run) {
    const char *prefill_name = run->claim.prefill != NULL ? sl_worker_name(run->claim.prefill) : NULL;
    const char *decode_name = sl_worker_name(run->claim.decode);
    char detail[160];
    if (prefill_name != NULL) {
        snprintf(detail, sizeof(detail), "%s -> %s", prefill_name, decode_name);
    } else {
        static const char *const whys[] = {[SL_TURN_WHOLE] = "nothing to prefill",
                                           [SL_TURN_STORED] = "with the session of the turn before from its store",
                                           [SL_TURN_KEPT] = "where the session of the turn before is"};
        snprintf(detail, sizeof(detail), "%s, %s", decode_name, whys[run->way]);
    }
    sl_job_set_workers(run->job, prefill_name, decode_name);
    sl_run_report_admitted(&run->report, run->job);
    sl_job_move(run->job, SLUICE__V1__JOB_STATE__PREFILLING, detail);
}

/*
 * Decides which workers the next attempt avoids. The stores that the failure names as culprits, and those that do not
 * answer, are avoided; then the worker that reported them is not. Otherwise the worker whose call has failed is avoided. A
 * decode worker that could not be told to free its session (released is false) is avoided whichever call has failed. A prefill
 * worker that answers PEER_STALE could not ship: the data plane of one of the two hangs, and both are avoided. A decode worker
 * that answers PEER_STALE for a retained session has dropped it, which it may.
 */
static void find_guilty(struct sl_run *run, enum sl_status status, const struct sl_error *err, bool released) {
    bool lost = sl_status_is_lost(status) && !sl_term_is_refusal(status, err);
    int n_avoided = run->avoid.n;
    int n_stores = status != SL_OK ? sl_annex_find_named(&run->claim, err, &run->avoid) : 0;
    run->elsewhere = status == SL_ERR_EXHAUSTED && run->avoid.n > n_avoided; // once a store
    n_stores += lost ? sl_annex_find_lost(&run->claim, &run->avoid) : 0;
    bool let_go = run->way == SL_TURN_KEPT && status == SL_ERR_PEER_STALE;
    if (lost && n_stores == 0 && run->claim.decode != NULL && !run->blameless && !let_go) {
        bool prefilling = run->claim.prefill != NULL && run->grant != NULL;
        bool decode_lives = released && !sl_worker_is_lost(run->claim.decode);
        if (prefilling && decode_lives) {
            sl_avoid_add(&run->avoid, run->claim.prefill);
        }
        if (!prefilling || !decode_lives || status == SL_ERR_PEER_STALE) {
            sl_avoid_add(&run->avoid, run->claim.decode);
        }
    }
}

/*
 * Everything that the attempt holds. A decode worker that has sent its last event has already freed the session; one
 * that has not is told to.
 */
static void give_back(struct sl_run *run, enum sl_status status, const struct sl_error *err) {
    run->lease.term = sl_run_last_term(run);
    bool released = run->decode_done || sl_lease_release(&run->lease, run->job->id);
    sl_annex_release(&run->claim, run->prefilled != NULL ? run->prefilled->done : NULL, run->job->id, run->lease.term);
    run->lease = (struct sl_lease){0};
    find_guilty(run, status, err, released);
    if (run->prefilled != NULL) {
        protobuf_c_message_free_unpacked(&run->prefilled->base, NULL);
        run->prefilled = NULL;
    }
    if (run->grant != NULL) {
        protobuf_c_message_free_unpacked(&run->grant->base, NULL);
        run->grant = NULL;
    }
    sl_admission_release(run->context->admission, &run->claim);
    run->elsewhere =
        run->elsewhere && sl_admission_has_other_stores(run->context->admission, &run->job->spec.demand, &run->avoid);
}

enum sl_status sl_run_attempt(struct sl_run *run, struct sl_error *err) {
    run->accepted = false;
    enum sl_status status = acquire(run, err);
    if (status == SL_OK) {
        announce_workers(run);
        if (run->claim.prefill != NULL) {
            status = traced(run, "prefill", prefill, err);
        } else if (run->way == SL_TURN_STORED) {
            status = traced(run, "restore", restore, err);
        }
    }
    if (status == SL_OK) {
        run->report.decode_start_ns = sl_now_ns();
        status = traced(run, "decode", decode, err);
        run->answered |= status == SL_OK;
    }
    if (status == SL_OK && run->turn.id[0] != '\0') {
        const struct sl_hash128 *before = run->way != SL_TURN_WHOLE ? &run->from.history : NULL;
        status = sl_turn_end(run->context, run->job, run->claim.decode, before, run->report.reason, run->report.text,
                             sl_run_last_term(run), &run->turn, &run->left, &run->copying, err);
    }
    give_back(run, status, err);
    run->decode_done = false;
    return status;
}
