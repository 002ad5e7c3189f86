// SPDX-License-Identifier: Apache-2.0
// Purpose: see attempt.h. Read from the bottom up: sl_run_attempt(), and its four steps.
#include "coordinator/run/attempt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/log.h"
#include "base/term.h"
#include "coordinator/run/joined.h"
#include "coordinator/run/token.h"
#include "coordinator/run/worker_wait.h"
#include "coordinator/workers/stores.h"
#include "engine/job/job_request.h"
#include "net/trace/trace.h"
#include "proto/methods.h"

#define CLAIM_WAIT_MS    40   // between two checks of a job in the line
#define RESERVE_MS       2000 // a decode worker that cannot grant memory within this is lost
#define RESERVE_AGAIN_MS 150  // pause after a decode worker had no memory after all
#define CONFIRM_MS       3000 // for etcd to say who leads, after a worker has refused our term

static enum sl_status prefill(struct sl_run *run, struct sl_error *err);

// Returns the memory that the attempt needs of the cluster.
static const struct sl_demand *demand_of(const struct sl_run *run) {
    const struct sl_job_spec *spec = &run->job->spec;
    return run->mode == SL_TURN_WHOLE    ? &spec->demand
           : run->mode == SL_TURN_PREFIX ? &run->prefix_demand
                                         : &run->from.demand;
}

static Sluice__V1__TokenIds token_ids(const int32_t *ids, int64_t n) {
    Sluice__V1__TokenIds message = SLUICE__V1__TOKEN_IDS__INIT;
    message.ids = (int32_t *)ids;
    message.n_ids = (size_t)n;
    return message;
}

// ---- states and terms ---------------------------------------------------------------------------------------------

enum sl_status sl_run_move(struct sl_run *run, enum sl_run_event event, struct sl_error *err) {
    enum sl_run_state next = sl_run_next(run->state, event);
    if (next == SL_N_RUN_STATES) {
        atomic_fetch_add(&run->context->figures->n_illegal_events, 1);
        sl_log_error("job", "job=%s state=%s does not allow the event \"%s\"; please report this error", run->job->id,
                     sl_run_state_name(run->state), sl_run_event_name(event));
        return sl_fail(err, SL_ERR_INTERNAL, "the coordinator's state \"%s\" does not allow the event \"%s\"",
                       sl_run_state_name(run->state), sl_run_event_name(event));
    }
    run->state = next;
    if (sl_run_is_step(next)) {
        run->step = next;
    }
    return SL_OK;
}

// Fails an attempt for a reason that only its step knows. Returns `status`, or SL_ERR_INTERNAL.
static enum sl_status fail_as(struct sl_run *run, enum sl_run_event event, enum sl_status status,
                              struct sl_error *err) {
    SL_TRY(sl_run_move(run, event, err));
    return status;
}

// Returns the term for the next request; a worker that has seen a newer one refuses the request.
static int64_t term_of(struct sl_run *run) {
    run->term = sl_run_last_term(run);
    return run->term;
}

// SL_AGAIN: no coordinator is known to lead. SL_ERR_PEER_LOST: another one leads.
static enum sl_status check_leads(struct sl_run *run, struct sl_error *err) {
    struct sl_election *election = run->context->election;
    if (election == NULL || sl_election_term(election) != 0) {
        return SL_OK;
    }
    char leader[SL_LEADER_BYTES];
    if (!sl_election_another_leads(election, leader)) {
        return SL_AGAIN;
    }
    sl_fail(err, SL_ERR_PEER_LOST, "%s leads now: submit the job there", leader);
    return fail_as(run, SL_RUN_ON_DEPOSE, SL_ERR_PEER_LOST, err);
}

// ---- step 1: workers --------------------------------------------------------------------------------------------

// Waits in the line until there is room. While a role has no ready worker, worker_wait.h says for how long.
static enum sl_status claim_workers(struct sl_run *run, struct sl_error *err) {
    const struct sl_job_spec *spec = &run->job->spec;
    const struct sl_claim_spec claim = {.demand = demand_of(run),
                                        .keys = spec->keys,
                                        .n_keys = spec->n_keys,
                                        .reads_all = spec->no_reuse,
                                        .held_key = run->mode == SL_TURN_PREFIX ? run->held_key : 0,
                                        .held_bytes = run->held_bytes,
                                        .stores = (const char(*)[64])spec->stores,
                                        .n_stores = spec->n_stores,
                                        .avoid = &run->avoid,
                                        .deadline_ns = spec->deadline_ns,
                                        .only = run->mode == SL_TURN_KEPT ? run->from.worker : NULL};
    for (struct sl_worker_wait wait = {0};;) {
        enum sl_status status = sl_job_interrupted(run->job, err);
        SL_THEN(status, check_leads(run, err));
        if (status == SL_AGAIN) {
            sl_wait_ms(CLAIM_WAIT_MS);
            continue;
        }
        if (status != SL_OK) {
            return sl_worker_wait_explain(&wait, status, err);
        }
        status = sl_admission_claim(run->context->admission, &run->job->place, &claim, CLAIM_WAIT_MS, &run->claim, err);
        if (status == SL_AGAIN) {
            wait.since_ns = 0;
        } else if (status == SL_ERR_PEER_LOST) {
            if (sl_worker_wait_ends(&wait, run->job, run->context->worker_wait_ms, err)) {
                return fail_as(run, SL_RUN_ON_LOSE_HOPE, status, err);
            }
            sl_wait_ms(CLAIM_WAIT_MS);
        } else {
            return status;
        }
    }
}

// ---- step 2: memory for the capsule -----------------------------------------------------------------------------

static enum sl_status reserve(struct sl_run *run, struct sl_error *err) {
    const struct sl_demand *demand = demand_of(run);
    int64_t capsule_bytes = run->mode == SL_TURN_STORED ? run->from.kept_bytes : demand->capsule_bytes;
    Sluice__V1__ReserveRequest request = SLUICE__V1__RESERVE_REQUEST__INIT;
    request.job_id = run->job->id;
    request.capsule_bytes = capsule_bytes;
    request.session_bytes = demand->decode_bytes - capsule_bytes;
    request.recipe = run->job->spec.recipe;
    request.term = term_of(run);
    int64_t deadline_ns = sl_deadline_in_ms(RESERVE_MS);
    deadline_ns = deadline_ns < run->job->spec.deadline_ns ? deadline_ns : run->job->spec.deadline_ns;

    // A grant that arrives after this call has ended returns to the worker when its lease ends.
    struct sl_worker_call call = {.job = run->job, .worker = run->claim.decode, .silence_ms = RESERVE_MS};
    ProtobufCMessage *message = NULL;
    SL_TRY(sl_worker_call_unary(&call, &sl_method_decode_reserve, &request.base, deadline_ns, &message, err));
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

// Runs a step inside a span; the worker's spans are children of it.
SL_APART static enum sl_status run_in_span(struct sl_run *run, const char *name,
                                           enum sl_status (*step_fn)(struct sl_run *run, struct sl_error *err),
                                           struct sl_error *err) {
    struct sl_span span;
    sl_span_begin(&span, name, SL_SPAN_CLIENT);
    sl_span_set_text(&span, "sluice.worker",
                     sl_worker_name(step_fn == prefill ? run->claim.prefill : run->claim.decode));
    enum sl_status status = step_fn(run, err);
    sl_span_end(&span, status, err->text);
    return status;
}

static enum sl_status traced(struct sl_run *run, const char *name,
                             enum sl_status (*step_fn)(struct sl_run *run, struct sl_error *err),
                             struct sl_error *err) {
    return sl_spans_are_on() ? run_in_span(run, name, step_fn, err) : step_fn(run, err);
}

/*
 * Repeats steps 1 and 2 until both succeed. A decode worker that has no memory now is not lost: the job waits and tries
 * again. The state is then PREFILLING, RESTORING or STARTING.
 */
static enum sl_status acquire(struct sl_run *run, struct sl_error *err) {
    for (;;) {
        SL_TRY(claim_workers(run, err));
        bool stored = run->mode == SL_TURN_STORED;
        if (run->claim.prefill == NULL && !stored) {
            return sl_run_move(run, SL_RUN_ON_CLAIMED_ALONE, err);
        }
        enum sl_status status = sl_run_move(run, SL_RUN_ON_CLAIMED, err);
        if (status == SL_OK && !run->claim.is_here) { // a worker that also reads promises the memory itself
            status = traced(run, "reserve", reserve, err);
        }
        if (status == SL_OK) {
            return sl_run_move(run, stored ? SL_RUN_ON_GRANTED_FOR_COPY : SL_RUN_ON_GRANTED, err);
        }
        if (status != SL_ERR_EXHAUSTED) {
            return status;
        }
        sl_log_info("job", "job=%s waits: %s", run->job->id, err->text);
        sl_admission_release(run->context->admission, &run->claim);
        sl_wait_ms(RESERVE_AGAIN_MS);
        SL_TRY(sl_run_move(run, SL_RUN_ON_NO_MEMORY, err));
    }
}

// ---- step 3: prefill --------------------------------------------------------------------------------------------

// Updates the measured rate of reading. Workers that also write are left out: they read between two steps.
static void note_prefill(struct sl_run *run, const Sluice__V1__Statistics *known) {
    if (known != NULL && !run->claim.is_here) {
        int64_t n_read = run->job->spec.demand.n_prefill_tokens - known->n_reused_tokens;
        sl_admission_note_prefill(run->context->admission, n_read, known->prefill_ms, known->capsule_bytes,
                                  known->ship_ms);
    }
}

static enum sl_status hear_prefill(struct sl_run *run, const Sluice__V1__PrefillEvent *event, struct sl_error *err) {
    sl_admission_note_prompt(run->context->admission, &run->claim, sl_run_report_prompt_state(event));
    switch (event->what_case) {
    case SLUICE__V1__PREFILL_EVENT__WHAT_PREFILL:
        sl_run_report_prefill(&run->report, run->job, event->prefill);
        return SL_OK;
    case SLUICE__V1__PREFILL_EVENT__WHAT_SHIP:
        if (sl_job_state(run->job) == SLUICE__V1__JOB_STATE__PREFILLING) {
            sl_job_move(run->job, SLUICE__V1__JOB_STATE__SHIPPING, sl_worker_name(run->claim.decode));
        }
        sl_run_report_ship(&run->report, run->job, event->ship);
        return SL_OK;
    case SLUICE__V1__PREFILL_EVENT__WHAT_DONE:
        sl_run_report_prefill_done(&run->report, run->job, event->done->statistics, !run->claim.is_here);
        note_prefill(run, event->done->statistics);
        return sl_remote_kv_check(&run->claim, event->done, err);
    default:
        return sl_fail(err, SL_ERR_INTERNAL, "%s sent an event of an unknown kind", sl_worker_name(run->claim.prefill));
    }
}

// Returns the salt for workers, which compute the hashes; empty when tenants are not told apart.
static ProtobufCBinaryData salt_of(const struct sl_job_spec *spec) {
    size_t bytes = sl_hash128_is_zero(&spec->salt) ? 0 : sizeof spec->salt;
    return (ProtobufCBinaryData){bytes, (uint8_t *)spec->salt.bytes};
}

static enum sl_status prefill(struct sl_run *run, struct sl_error *err) {
    const struct sl_job_spec *spec = &run->job->spec;
    char store[SL_ADDRESS_BYTES];
    Sluice__V1__TokenIds tokens = token_ids(spec->tokens, spec->demand.n_prefill_tokens);
    Sluice__V1__PrefillRequest request = SLUICE__V1__PREFILL_REQUEST__INIT;
    request.job_id = run->job->id;
    request.tokens = &tokens;
    request.recipe = (char *)spec->recipe;
    request.destination = run->grant;
    request.kvstore_address = store;
    request.kvstore_bytes = sl_turn_choose_store(run, store);
    request.whole_tokens = spec->whole.n_tokens;
    request.restore_ms = sl_admission_restore_ms(run->context->admission, &spec->demand, spec->deadline_ns);
    request.estimate_errors = spec->estimate_errors;
    request.no_reuse = spec->no_reuse;
    request.n_positions = spec->n_tokens + spec->max_new_tokens;
    request.salt = salt_of(spec);
    request.term = term_of(run);
    if (run->claim.is_here) {
        request.session_bytes = spec->demand.decode_bytes - spec->demand.capsule_bytes;
        request.most_slots = spec->turn.keep_ms > 0 ? run->context->model->max_positions : request.n_positions;
    }
    struct sl_store_shares *shares = NULL; // few recipes have any: kilobytes that most jobs do without
    if (run->claim.n_shares > 0) {
        shares = malloc(sizeof *shares);
        SL_FAIL_IF(shares == NULL, err, SL_ERR_EXHAUSTED, "no memory for the shares of stores");
        sl_store_shares_fill(&run->claim, shares);
        request.stores = shares->pointers;
        request.n_stores = shares->n;
    }
    struct sl_worker_call call = {.job = run->job,
                                  .worker = run->claim.prefill,
                                  .peer = run->claim.decode,
                                  .lease = &run->lease,
                                  .lease_is_vital = true,
                                  .silence_ms = run->context->silence_ms};
    sl_run_report_start(&run->report);
    enum sl_status status = sl_worker_call_open(&call, &sl_method_prefill_run, &request.base, spec->deadline_ns, err);
    free(shares); // the request has been packed
    while (status == SL_OK && run->prefilled == NULL) {
        ProtobufCMessage *message = NULL;
        status = sl_worker_call_next(&call, &message, err);
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
    sl_worker_call_close(&call);
    SL_TRY(status);
    sl_affinity_put(run->context->affinity, spec->keys, spec->n_keys,
                    sl_worker_name_hash(sl_worker_name(run->claim.prefill)));
    sl_admission_release_prefill(run->context->admission, &run->claim);
    if (!run->claim.is_here &&
        sl_job_state(run->job) == SLUICE__V1__JOB_STATE__PREFILLING) { // it shipped before it could report progress
        sl_job_move(run->job, SLUICE__V1__JOB_STATE__SHIPPING, sl_worker_name(run->claim.decode));
    }
    return SL_OK;
}

// Replaces prefill for a turn whose session a store has.
static enum sl_status restore(struct sl_run *run, struct sl_error *err) {
    sl_run_report_start(&run->report);
    struct sl_error why = {0};
    enum sl_status status = sl_copy_restore(run, &why);
    if (status == SL_OK) {
        return SL_OK;
    }
    SL_TRY(sl_job_interrupted(run->job, err));
    sl_fail_from(err, SL_ERR_PEER_STALE, &why, "no session from the store: %.300s", why.text);
    return fail_as(run, SL_RUN_ON_MISS_SESSION, SL_ERR_PEER_STALE, err);
}

// ---- step 4: decode ---------------------------------------------------------------------------------------------

/*
 * Returns how many tokens the next worker replays: those that clients have, without the last one if it may have ended
 * the job before the lost worker could report that. The next worker samples that token again and decides whether to
 * stop.
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

// The first token, or the end of an answer without tokens, shows that the session of a turn was there.
static enum sl_status hear(struct sl_run *run, enum sl_run_event event, struct sl_error *err) {
    if (sl_turn_continues(run->mode) && run->state == SL_RUN_STARTING) {
        sl_run_report_reused(&run->report, run->job, run->from.n_kept,
                             run->mode == SL_TURN_STORED ? run->from.kept_bytes : 0);
    }
    return sl_run_move(run, event, err);
}

static enum sl_status hear_decode(struct sl_run *run, const Sluice__V1__DecodeEvent *event, struct sl_error *err) {
    switch (event->what_case) {
    case SLUICE__V1__DECODE_EVENT__WHAT_TOKEN:
        SL_TRY(hear(run, SL_RUN_ON_HEARD, err));
        return sl_run_token_hear(run, event->token, err);
    case SLUICE__V1__DECODE_EVENT__WHAT_DONE:
        SL_TRY(hear(run, SL_RUN_ON_ENDED, err));
        if (run->turn.id[0] != '\0') {
            sl_turn_hear_kept(run, event->done);
        }
        if (run->mode == SL_TURN_PREFIX && event->done->statistics != NULL) {
            sl_run_report_prefix(&run->report, run->job, event->done->statistics);
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

/*
 * Chooses the store from which the decode worker takes the beginning of the prompt; "" in other modes.
 * SL_ERR_PRECONDITION: no store is ready now, and the next attempt reads the whole prompt.
 */
static enum sl_status choose_store(const struct sl_run *run, char store_out[SL_ADDRESS_BYTES], struct sl_error *err) {
    store_out[0] = '\0';
    if (run->mode != SL_TURN_PREFIX) {
        return SL_OK;
    }
    (void)sl_turn_choose_store(run, store_out);
    return store_out[0] != '\0' ? SL_OK
                                : sl_fail(err, SL_ERR_PRECONDITION, "no stored prefix: no kvstore is ready any more");
}

// Sends the request. The caller closes the call.
SL_APART static enum sl_status open_decode(struct sl_run *run, const struct sl_rpc_method *method, int64_t n_resumed,
                                           struct sl_worker_call *call, struct sl_error *err) {
    struct sl_job *job = run->job;
    const struct sl_job_spec *spec = &job->spec;
    Sluice__V1__Sampling sampling = sl_job_sampling_message(&spec->sampling);
    Sluice__V1__TokenIds prompt = token_ids(spec->tokens, spec->n_tokens);
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
    request.turn = sl_turn_continues(run->mode);
    if (run->mode == SL_TURN_STORED) {
        request.capsule_hash = (ProtobufCBinaryData){sizeof run->from.history, run->from.history.bytes};
    }
    if (run->mode == SL_TURN_KEPT) {
        request.kept = run->from.lease_id;
        request.session_bytes = run->claim.demand.decode_bytes - run->from.kept_bytes;
    }
    char store[SL_ADDRESS_BYTES];
    struct sl_joined_parts joined;
    SL_TRY(choose_store(run, store, err));
    SL_TRY(sl_joined_parts_fill(run, &joined, &request, err));
    if (run->remote_kvs == NULL && run->prefilled != NULL && run->prefilled->done->n_annex > 0) {
        run->remote_kvs = malloc(SL_MAX_SHARES * sizeof *run->remote_kvs);
        SL_FAIL_IF(run->remote_kvs == NULL, err, SL_ERR_EXHAUSTED, "no memory for leases of stores");
    }
    request.kvstore_address = store;
    request.whole_tokens = run->mode == SL_TURN_PREFIX ? spec->whole.n_tokens : 0;
    if (run->prefilled != NULL) {
        request.annex = run->prefilled->done->annex;
        request.n_annex = run->prefilled->done->n_annex;
    }
    if (run->claim.is_here) {
        request.kept = run->prefilled->done->kept;
        request.here = true;
    }

    sl_job_move(job, SLUICE__V1__JOB_STATE__DECODING, sl_worker_name(run->claim.decode));
    // A session that is being decoded does not expire; its lease is renewed so that a worker may treat both alike.
    *call =
        (struct sl_worker_call){.job = job,
                                .worker = run->claim.decode,
                                .lease = &run->lease,
                                .others = run->remote_kvs,
                                .n_others = sl_remote_kv_leases(
                                    &run->claim, run->prefilled != NULL ? run->prefilled->done : NULL, run->remote_kvs),
                                .silence_ms = run->context->silence_ms};
    return sl_worker_call_open(call, method, &request.base, spec->deadline_ns, err);
}

static enum sl_status decode(struct sl_run *run, struct sl_error *err) {
    struct sl_worker_call call = {0};
    enum sl_status status = open_decode(run, &sl_method_decode_run, count_resumed(run), &call, err);
    while (status == SL_OK && run->state != SL_RUN_ANSWERED) {
        ProtobufCMessage *message = NULL;
        status = sl_worker_call_next(&call, &message, err);
        if (status == SL_OK) {
            status = hear_decode(run, (Sluice__V1__DecodeEvent *)message, err);
            protobuf_c_message_free_unpacked(message, NULL);
        }
    }
    sl_worker_call_close(&call);
    return status;
}

// ---- the attempt ------------------------------------------------------------------------------------------------

/*
 * Decides which workers the next attempt avoids. The stores that the failure names as culprits, and those that do not
 * answer, are avoided; then the worker that reported them is not. Otherwise the worker whose call has failed is
 * avoided. A decode worker that could not be told to free its session (released is false) is avoided whichever call has
 * failed. A prefill worker that answers PEER_STALE could not ship: the data plane of one of the two hangs, and both are
 * avoided. A decode worker that answers PEER_STALE for a retained session has dropped it, which it may. Returns whether
 * a store refused the attempt, for which it is avoided from now on.
 */
static bool find_guilty(struct sl_run *run, enum sl_status status, const struct sl_error *err, bool released) {
    bool lost = sl_status_is_lost(status) && !sl_term_is_refusal(status, err);
    int n_avoided = run->avoid.n;
    int n_stores = status != SL_OK ? sl_remote_kv_find_named(&run->claim, err, &run->avoid) : 0;
    bool store_refused = status == SL_ERR_EXHAUSTED && run->avoid.n > n_avoided; // once a store
    n_stores += lost ? sl_remote_kv_find_lost(&run->claim, &run->avoid) : 0;
    bool dropped = run->mode == SL_TURN_KEPT && status == SL_ERR_PEER_STALE;
    if (lost && n_stores == 0 && run->claim.decode != NULL && run->state != SL_RUN_NO_SESSION && !dropped) {
        bool prefilling = run->step == SL_RUN_PREFILLING;
        bool decode_lives = released && !sl_worker_is_lost(run->claim.decode);
        if (prefilling && decode_lives) {
            sl_avoid_add(&run->avoid, run->claim.prefill);
        }
        if (!prefilling || !decode_lives || status == SL_ERR_PEER_STALE) {
            sl_avoid_add(&run->avoid, run->claim.decode);
        }
    }
    return store_refused;
}

/*
 * Gives back everything that the attempt holds. A decode worker that has sent its last event has already freed the
 * session; another one is asked to. Returns whether a store refused the attempt and other stores have room.
 */
static bool give_back(struct sl_run *run, enum sl_status status, const struct sl_error *err) {
    run->lease.term = sl_run_last_term(run);
    if (run->claim.is_here && run->prefilled != NULL && run->step != SL_RUN_ANSWERED) {
        run->lease.worker = run->claim.decode; // the session that was read there
        run->lease.release = &sl_method_decode_release;
        snprintf(run->lease.id, sizeof run->lease.id, "%s", run->prefilled->done->kept);
    }
    bool released = run->step == SL_RUN_ANSWERED || sl_lease_release(&run->lease, run->job->id);
    sl_remote_kv_release(&run->claim, run->prefilled != NULL ? run->prefilled->done : NULL, run->job->id,
                         run->lease.term);
    run->lease = (struct sl_lease){0};
    bool store_refused = find_guilty(run, status, err, released);
    if (run->prefilled != NULL) {
        protobuf_c_message_free_unpacked(&run->prefilled->base, NULL);
        run->prefilled = NULL;
    }
    if (run->grant != NULL) {
        protobuf_c_message_free_unpacked(&run->grant->base, NULL);
        run->grant = NULL;
    }
    sl_admission_release(run->context->admission, &run->claim);
    return store_refused && sl_admission_has_other_stores(run->context->admission, &run->job->spec.demand, &run->avoid);
}

// Asks etcd who leads, after a worker has refused the term. If this coordinator still leads under that term, the worker
// is wrong, and err becomes the failure of a lost worker: the job avoids it.
static void judge_refusal(struct sl_run *run, struct sl_error *err) {
    struct sl_election *election = run->context->election;
    if (election != NULL && sl_election_confirm(election, sl_deadline_in_ms(CONFIRM_MS)) == run->term) {
        sl_log_warn("job", "job=%s term=%" PRId64 " is current, as etcd says, but a worker refuses it: %.200s",
                    run->job->id, run->term, err->text);
        err->reason = SL_REASON_NONE;
    }
}

// Returns the event of a refusal that etcd does not contradict. Under a newer term of this coordinator, the job tries
// again.
static enum sl_run_event hear_refusal(struct sl_run *run) {
    struct sl_election *election = run->context->election;
    if (election == NULL) {
        return SL_RUN_ON_LOSE_HOPE;
    }
    return sl_election_term(election) == 0 ? SL_RUN_ON_DEPOSE : SL_RUN_ON_LOSE;
}

static enum sl_run_event failure_of(struct sl_run *run, enum sl_status status, const struct sl_error *err,
                                    bool other_stores) {
    if (sl_term_is_refusal(status, err)) {
        return hear_refusal(run);
    }
    if (sl_status_is_lost(status)) {
        return SL_RUN_ON_LOSE;
    }
    if (other_stores) {
        return SL_RUN_ON_FILL_STORE;
    }
    return status == SL_ERR_EXHAUSTED || status == SL_ERR_PRECONDITION ? SL_RUN_ON_REFUSE : SL_RUN_ON_STOP;
}

// Runs steps 3 and 4 on the workers that step 1 has claimed.
static enum sl_status answer(struct sl_run *run, struct sl_error *err) {
    enum sl_status status = SL_OK;
    sl_turn_announce(run);
    if (run->state != SL_RUN_STARTING) {
        status = run->state == SL_RUN_PREFILLING ? traced(run, "prefill", prefill, err)
                                                 : traced(run, "restore", restore, err);
        SL_THEN(status, sl_run_move(run, SL_RUN_ON_ARRIVED, err));
    }
    if (status == SL_OK) {
        run->report.decode_start_ns = sl_now_ns();
        status = traced(run, "decode", decode, err);
    }
    return status == SL_OK && run->turn.id[0] != '\0' ? sl_turn_end(run, err) : status;
}

enum sl_status sl_run_attempt(struct sl_run *run, struct sl_error *err) {
    run->step = run->state;
    enum sl_status status = acquire(run, err);
    SL_THEN(status, answer(run, err));
    if (sl_term_is_refusal(status, err)) {
        judge_refusal(run, err);
    }
    bool other_stores = give_back(run, status, err);
    if (status == SL_OK) {
        return sl_run_move(run, SL_RUN_ON_COMPLETED, err);
    }
    if (sl_run_is_step(run->state)) { // a step that knows the reason has moved already
        (void)sl_run_move(run, failure_of(run, status, err, other_stores), NULL); // every step allows this event
    }
    return status;
}
