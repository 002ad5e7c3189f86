// SPDX-License-Identifier: Apache-2.0
// Purpose: see run_turn.h.
#include "coordinator/run_turn.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "job/job_recipe.h"
#include "kvcache/capsule.h"
#include "proto/methods.h"

#define CALL_MS       2000
#define POLL_MS       40 // between looks at the job
#define ARCHIVE_MS    10000
#define STORE_QUIET   15000 // a store that ships says nothing until it is done
#define MAX_KEPT_SIZE (INT64_C(1) << 46)

enum sl_turn_way sl_turn_first_way(const struct sl_job_turn *turn) {
    return turn->n_kept == 0   ? SL_TURN_WHOLE
           : turn->lease_id[0] ? SL_TURN_KEPT
           : turn->store[0]    ? SL_TURN_STORED
                               : SL_TURN_WHOLE;
}

// The worker of a role that has this name, or this address; the other is NULL. A reference, or NULL.
static struct sl_worker *find(struct sl_registry *registry, Sluice__V1__WorkerRole role, const char *name,
                              const char *address) {
    struct sl_worker_set set;
    struct sl_worker *found = NULL;
    sl_registry_snapshot(registry, role, &set);
    for (int i = 0; i < set.n && found == NULL; i++) {
        bool same = name != NULL ? strcmp(sl_worker_name(set.workers[i]), name) == 0
                                 : strcmp(sl_worker_address(set.workers[i]), address) == 0;
        found = same ? sl_worker_ref(set.workers[i]) : NULL;
    }
    sl_worker_set_release(&set);
    return found;
}

// Under what a store knows it. *key and *hash_inout belong together.
static enum sl_status make_key(const struct sl_run_context *context, const struct sl_job *job,
                               const struct sl_job_turn *turn, uint64_t *model_out, uint64_t *recipe_out,
                               struct sl_error *err) {
    struct sl_recipe recipe;
    enum sl_status status = sl_job_recipe(job->spec.recipe, context->model, &recipe, err);
    if (status == SL_OK) {
        *model_out = sl_model_set_fingerprint(context->model_fingerprint, turn->rope_set);
        *recipe_out = sl_recipe_fingerprint(&recipe);
    }
    return status;
}

// ---- from the store -------------------------------------------------------------------------------------------------

static enum sl_status look_up(const struct sl_run_context *context, struct sl_job *job, struct sl_worker *store,
                              Sluice__V1__LookupReply **reply_out, struct sl_error *err) {
    const struct sl_job_turn *turn = &job->spec.turn;
    struct sl_hash128 hash = turn->history;
    Sluice__V1__PrefixKey key = SLUICE__V1__PREFIX_KEY__INIT, *keys[1] = {&key};
    Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
    key.n_tokens = turn->n_kept;
    key.hash = (ProtobufCBinaryData){sizeof hash, hash.bytes};
    request.prefixes = keys;
    request.n_prefixes = 1;
    enum sl_status status = make_key(context, job, turn, &request.model_fingerprint, &request.recipe_fingerprint, err);
    return status == SL_OK ? sl_rpc_unary(sl_worker_channel(store), &sl_method_store_lookup, &request.base,
                                          sl_deadline_in_ms(CALL_MS), NULL, (ProtobufCMessage **)reply_out, err)
                           : status;
}

static enum sl_status fetch(struct sl_job *job, struct sl_worker *store, struct sl_worker *decode,
                            struct sl_lease *lease, const char *pin, const Sluice__V1__Grant *grant,
                            struct sl_error *err) {
    Sluice__V1__FetchRequest request = SLUICE__V1__FETCH_REQUEST__INIT;
    request.lease_id = (char *)pin;
    request.destination = (Sluice__V1__Grant *)grant;
    struct sl_leg leg = {
        .job = job, .worker = store, .peer = decode, .lease = lease, .lease_is_vital = true, .silence_ms = STORE_QUIET};
    ProtobufCMessage *message = NULL;
    enum sl_status status = sl_leg_open(&leg, &sl_method_store_fetch, &request.base, job->spec.deadline_ns, err);
    if (status == SL_OK) {
        status = sl_leg_next(&leg, &message, err);
        sl_leg_close(&leg);
    }
    if (status == SL_OK) {
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return status;
}

static void release_at_store(struct sl_worker *store, const char *lease_id) {
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = (char *)lease_id;
    struct sl_error err = {0};
    if (sl_rpc_unary(sl_worker_channel(store), &sl_method_store_release, &request.base, sl_deadline_in_ms(CALL_MS),
                     NULL, NULL, &err) != SL_OK) {
        sl_log_info("turn", "lease at %s ends by itself: %s", sl_worker_name(store), err.text);
    }
}

enum sl_status sl_turn_restore(const struct sl_run_context *context, struct sl_job *job, struct sl_worker *decode,
                               struct sl_lease *lease, const Sluice__V1__Grant *grant, struct sl_error *err) {
    const struct sl_job_turn *turn = &job->spec.turn;
    struct sl_worker *store = find(context->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, NULL, turn->store);
    if (store == NULL) {
        return sl_fail(err, SL_ERR_PEER_STALE, "the store of the turn before is gone");
    }
    Sluice__V1__LookupReply *reply = NULL;
    enum sl_status status = look_up(context, job, store, &reply, err);
    if (status == SL_OK) {
        bool fits = reply->n_tokens == turn->n_kept && reply->capsule_tokens == turn->n_kept &&
                    reply->capsule_bytes <= grant->capacity_bytes;
        status = fits                   ? fetch(job, store, decode, lease, reply->lease_id, grant, err)
                 : reply->n_tokens == 0 ? sl_fail(err, SL_ERR_PEER_STALE, "%s has dropped it", sl_worker_name(store))
                                        : sl_fail(err, SL_ERR_PEER_CORRUPT, "%s has another session under this key",
                                                  sl_worker_name(store));
        release_at_store(store, reply->lease_id);
        sluice__v1__lookup_reply__free_unpacked(reply, NULL);
    }
    sl_worker_unref(&store);
    return status;
}

/*
 * At the end of an answer, whose client waits: until the job's own deadline at most, and no longer than it wants the job. A stream, though
 * there is one reply: those can be looked up from.
 */
static enum sl_status ask(struct sl_job *job, struct sl_worker *worker, const struct sl_rpc_method *method,
                          const ProtobufCMessage *request, int64_t wait_ms, ProtobufCMessage **reply_out,
                          struct sl_error *err) {
    int64_t deadline_ns = sl_deadline_in_ms(wait_ms);
    deadline_ns = deadline_ns < job->spec.deadline_ns ? deadline_ns : job->spec.deadline_ns;
    struct sl_rpc_stream *stream = NULL;
    enum sl_status status =
        sl_rpc_stream_open(sl_worker_channel(worker), method, request, deadline_ns, NULL, &stream, err);
    if (status == SL_OK) {
        do {
            status = sl_job_interrupted(job, err);
            status = status == SL_OK ? sl_rpc_stream_next(stream, POLL_MS, reply_out, err) : status;
        } while (status == SL_AGAIN);
        sl_rpc_stream_close(&stream);
    }
    return status;
}

// ---- to the store ---------------------------------------------------------------------------------------------------

void sl_turn_hear_kept(const struct sl_job *job, const struct sl_worker *decode, const Sluice__V1__DecodeDone *done,
                       struct sl_job_turn *turn) {
    size_t n_id = strlen(done->kept);
    turn->lease_id[0] = turn->worker[0] = '\0';
    turn->n_kept = 0;
    if (n_id == 0) {
        return;
    }
    if (n_id >= sizeof turn->lease_id || done->kept_bytes < 1 || done->kept_bytes > MAX_KEPT_SIZE ||
        done->kept_tokens != job->spec.n_tokens + job->n_output - 1) {
        sl_log_warn("turn", "job=%s what %s says of the session that it keeps makes no sense", job->id,
                    sl_worker_name(decode));
        return;
    }
    strcpy(turn->lease_id, done->kept);
    snprintf(turn->worker, sizeof turn->worker, "%s", sl_worker_name(decode));
    turn->n_kept = done->kept_tokens;
    turn->kept_bytes = done->kept_bytes;
}

static enum sl_status reserve(const struct sl_run_context *context, struct sl_job *job, struct sl_worker *store,
                              const struct sl_job_turn *turn, Sluice__V1__Grant **grant_out, struct sl_error *err) {
    struct sl_hash128 hash = turn->history;
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    key.n_tokens = turn->n_kept;
    key.prefix_hash = (ProtobufCBinaryData){sizeof hash, hash.bytes};
    request.key = &key;
    request.capsule_bytes = turn->kept_bytes;
    enum sl_status status = make_key(context, job, turn, &key.model_fingerprint, &key.recipe_fingerprint, err);
    status = status == SL_OK ? ask(job, store, &sl_method_store_reserve, &request.base, CALL_MS,
                                   (ProtobufCMessage **)grant_out, err)
                             : status;
    if (status == SL_ERR_DEADLINE) { // the next turn does not ask it before it is heard of
        sl_worker_suspect(store);
    }
    return status;
}

static enum sl_status ship(struct sl_job *job, struct sl_worker *decode, const struct sl_job_turn *turn,
                           Sluice__V1__Grant *grant, int64_t term, struct sl_error *err) {
    Sluice__V1__ArchiveRequest request = SLUICE__V1__ARCHIVE_REQUEST__INIT;
    request.kept = (char *)turn->lease_id;
    struct sl_hash128 hash = turn->history;
    request.destination = grant;
    request.term = term;
    request.hash = (ProtobufCBinaryData){sizeof hash, hash.bytes};
    ProtobufCMessage *reply = NULL;
    enum sl_status status = ask(job, decode, &sl_method_decode_archive, &request.base, ARCHIVE_MS, &reply, err);
    if (status == SL_OK) {
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}

// Into the store that keeps what begins as this conversation does. Without it a lost worker costs the next turn the whole conversation.
static enum sl_status archive(const struct sl_run_context *context, struct sl_job *job, struct sl_worker *decode,
                              int64_t term, struct sl_job_turn *turn, struct sl_error *err) {
    char address[SL_ADDRESS_BYTES];
    sl_registry_store_address(context->registry, job->spec.n_keys > 0 ? job->spec.keys[0] : 0, address);
    struct sl_worker *store =
        address[0] ? find(context->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, NULL, address) : NULL;
    turn->store[0] = '\0';
    if (store == NULL) {
        return SL_OK;
    }
    Sluice__V1__Grant *grant = NULL;
    bool lost = false;
    enum sl_status status = reserve(context, job, store, turn, &grant, err);
    if (status == SL_OK) {
        status = ship(job, decode, turn, grant, term, err);
        lost = status == SL_ERR_PEER_LOST;                  // of a store's loss it says PEER_STALE
        if (status != SL_OK && status != SL_ERR_DEADLINE) { // what stands still ends it by itself
            release_at_store(store, grant->lease_id);
        }
        sluice__v1__grant__free_unpacked(grant, NULL);
    }
    if (status == SL_OK || status == SL_ERR_EXISTS) {
        strcpy(turn->store, address);
    } else {
        sl_log_warn("turn", "job=%s its session is in no store: %s", job->id, err->text);
    }
    sl_worker_unref(&store);
    if (!lost) {
        *err = (struct sl_error){0};
    }
    return lost ? status : SL_OK;
}

enum sl_status sl_turn_end(const struct sl_run_context *context, struct sl_job *job, struct sl_worker *decode,
                           enum sl_turn_way way, Sluice__V1__Finished__Reason reason, const char *answer, int64_t term,
                           struct sl_job_turn *turn, struct sl_sessions_left *left, struct sl_error *err) {
    const struct sl_job_spec *spec = &job->spec;
    // A session behind a stop string holds that, and the answer does not: the next turn goes on behind the turn before.
    if (reason == SLUICE__V1__FINISHED__REASON__STOP_STRING || turn->keep_ms == 0) {
        sl_sessions_left_add(left, turn);
        return SL_OK;
    }
    bool ended_by_token = reason == SLUICE__V1__FINISHED__REASON__STOP_TOKEN;
    int64_t n_output = job->n_output - (ended_by_token && job->n_output > 0), n_all = spec->n_tokens + job->n_output;
    int32_t *tokens = malloc(sizeof *tokens * (size_t)(n_all + 1));
    if (tokens == NULL) {
        sl_sessions_left_add(left, turn);
        return SL_OK; // the next turn reads everything
    }
    memcpy(tokens, spec->tokens, sizeof *tokens * (size_t)spec->n_tokens);
    memcpy(tokens + spec->n_tokens, job->output, sizeof *tokens * (size_t)job->n_output);
    enum sl_status status = SL_OK;
    if (turn->n_kept > 0) {
        struct sl_hash128 hash = sl_prefix_hash(&spec->salt, tokens, turn->n_kept);
        struct sl_hash128 before = way == SL_TURN_WHOLE ? (struct sl_hash128){{0}} : spec->turn.history;
        turn->history = sl_salted_hash(&hash, &before, sizeof before);
        status = archive(context, job, decode, term, turn, err);
    }
    if (status == SL_OK) {
        sl_conversations_end_turn(context->conversations, spec, turn, tokens, spec->n_tokens + n_output, answer, left);
    }
    free(tokens);
    return status;
}

void sl_turn_end_without(const struct sl_run_context *context, struct sl_job *job, Sluice__V1__Finished__Reason reason,
                         const char *answer, struct sl_job_turn *turn, struct sl_sessions_left *left) {
    struct sl_error err = {0};
    turn->n_kept = 0; // nothing is copied
    turn->lease_id[0] = turn->worker[0] = turn->store[0] = '\0';
    (void)sl_turn_end(context, job, NULL, SL_TURN_WHOLE, reason, answer, 0, turn, left, &err);
}

// ---- the end --------------------------------------------------------------------------------------------------------

void sl_turn_release(struct sl_registry *registry, const struct sl_job_turn *turn, int64_t term) {
    struct sl_worker *worker =
        turn->lease_id[0] ? find(registry, SLUICE__V1__WORKER_ROLE__DECODE, turn->worker, NULL) : NULL;
    if (worker == NULL) {
        return;
    }
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = (char *)turn->lease_id;
    request.term = term;
    struct sl_error err = {0};
    if (sl_rpc_unary(sl_worker_channel(worker), &sl_method_decode_release, &request.base, sl_deadline_in_ms(CALL_MS),
                     NULL, NULL, &err) != SL_OK) {
        sl_log_info("turn", "the session at %s ends by itself: %s", turn->worker, err.text);
    }
    sl_worker_unref(&worker);
}

void sl_turn_release_left(struct sl_registry *registry, const struct sl_job_turn *spent, struct sl_sessions_left *left,
                          int64_t term) {
    for (int i = 0; i < left->n; i++) {
        if (spent == NULL || strcmp(left->of[i].lease_id, spent->lease_id) != 0) {
            sl_turn_release(registry, &left->of[i], term);
        }
    }
    left->n = 0;
}
