// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/run/attempt.h"
#include "proto/methods.h"

#define CALL_MS     2000
#define FORGET_MS   1000
#define POLL_MS     40    // between calls of go_on()
#define ARCHIVE_MS  10000 // plus the time for the bytes
#define STORE_QUIET 15000 // a store that ships sends nothing until it is done

static struct sl_worker *find_store(struct sl_registry *registry, const char *address) {
    return address[0] != '\0' ? sl_registry_find(registry, SLUICE__V1__WORKER_ROLE__KVSTORE, NULL, address) : NULL;
}

void sl_copy_release_lease(struct sl_worker *worker, const struct sl_rpc_method *method, const char *lease_id,
                           int64_t term) {
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = (char *)lease_id;
    request.term = term;
    struct sl_error err = {0};
    if (sl_rpc_unary(sl_worker_channel(worker), method, &request.base, sl_deadline_in_ms(CALL_MS), NULL, NULL, &err) !=
        SL_OK) {
        sl_log_info("turn", "a lease at %s was not released, and expires: %s", sl_worker_name(worker), err.text);
    }
}

// Returns the copy's key at the store, which points to the copy's hash.
static Sluice__V1__StoreKey key_of(const struct sl_session_copy *copy) {
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    key.model_fingerprint = copy->model_fingerprint;
    key.recipe_fingerprint = copy->recipe_fingerprint;
    key.n_tokens = copy->n_tokens;
    key.prefix_hash = (ProtobufCBinaryData){sizeof copy->history, (uint8_t *)copy->history.bytes};
    return key;
}

// ---- to the store ---------------------------------------------------------------------------------------------------

static struct sl_session_copy name_copy(const struct sl_run *run) {
    const struct sl_job_turn *turn = &run->turn;
    return (struct sl_session_copy){.model_fingerprint =
                                        sl_model_set_fingerprint(run->context->model_fingerprint, turn->rope_set),
                                    .recipe_fingerprint = sl_recipe_fingerprint(&run->job->spec.parsed_recipe),
                                    .history = turn->history,
                                    .n_tokens = turn->n_kept,
                                    .bytes = turn->kept_bytes};
}

// Begins a step. It has one reply, and yet uses a stream: a caller can stop waiting for a stream and wait again later.
static enum sl_status ask(struct sl_copying *copying, struct sl_worker *worker, const struct sl_rpc_method *method,
                          const ProtobufCMessage *request, int64_t wait_ms, struct sl_error *err) {
    sl_rpc_stream_close(&copying->stream);
    return sl_rpc_stream_open(sl_worker_channel(worker), method, request, sl_deadline_in_ms(wait_ms), NULL,
                              &copying->stream, err);
}

enum sl_status sl_copying_begin(struct sl_run *run, struct sl_error *err) {
    const struct sl_job_spec *spec = &run->job->spec;
    struct sl_copying *copying = &run->copying;
    struct sl_session_copy copy = name_copy(run);
    sl_registry_store_address(run->context->registry, spec->n_keys > 0 ? spec->keys[0] : 0, copy.store);
    struct sl_worker *store = find_store(run->context->registry, copy.store);
    if (store == NULL) {
        return SL_OK;
    }
    *copying = (struct sl_copying){
        .store = store, .decode = sl_worker_ref(run->claim.decode), .copy = copy, .term = sl_run_last_term(run)};
    strcpy(copying->lease_id, run->turn.lease_id);
    Sluice__V1__StoreKey key = key_of(&copying->copy);
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    request.key = &key;
    request.capsule_bytes = copy.bytes;
    enum sl_status status = ask(copying, store, &sl_method_store_reserve, &request.base, CALL_MS, err);
    if (status != SL_OK) {
        sl_copying_end(copying);
    }
    return status;
}

static enum sl_status ship(struct sl_copying *copying, struct sl_error *err) {
    Sluice__V1__ArchiveRequest request = SLUICE__V1__ARCHIVE_REQUEST__INIT;
    request.kept = copying->lease_id;
    request.destination = copying->grant;
    request.term = copying->term;
    request.hash = key_of(&copying->copy).prefix_hash;
    return ask(copying, copying->decode, &sl_method_decode_archive, &request.base,
               ARCHIVE_MS + copying->copy.bytes / SL_SLOW_BYTES_PER_MS, err);
}

static void take_grant(struct sl_copying *copying, Sluice__V1__Grant *grant) {
    copying->grant = grant;
    if (strlen(grant->lease_id) < sizeof copying->place.id && grant->lease_ms > 0) { // else it is not renewed
        copying->place = (struct sl_lease){.worker = copying->store, .renew = &sl_method_store_renew};
        strcpy(copying->place.id, grant->lease_id);
        sl_lease_granted(&copying->place, grant->lease_ms);
    }
}

// Handles the end of a step. SL_AGAIN: the next step has begun.
static enum sl_status step(struct sl_copying *copying, enum sl_status status, ProtobufCMessage *reply,
                           struct sl_error *err) {
    if (copying->grant != NULL) { // when the store is lost, Archive returns PEER_STALE
        if (status == SL_OK) {
            protobuf_c_message_free_unpacked(reply, NULL);
        }
        return status;
    }
    if (status == SL_OK) {
        take_grant(copying, (Sluice__V1__Grant *)reply);
        SL_TRY(ship(copying, err));
        return SL_AGAIN;
    }
    if (status == SL_ERR_DEADLINE) { // so that the next turn does not ask it before its next heartbeat
        sl_worker_suspect(copying->store);
    }
    return status == SL_ERR_EXISTS ? SL_OK : status == SL_ERR_PEER_LOST ? SL_ERR_PEER_STALE : status;
}

enum sl_status sl_copying_wait(struct sl_copying *copying, int64_t until_ns, bool (*go_on)(void *arg), void *arg,
                               struct sl_error *err) {
    enum sl_status status = SL_AGAIN;
    while (status == SL_AGAIN && sl_now_ns() < until_ns && go_on(arg)) {
        ProtobufCMessage *reply = NULL;
        struct sl_error unused;
        (void)sl_lease_renew_if_due(&copying->place, &unused); // if it is lost, Archive fails
        status = sl_rpc_stream_next(copying->stream, POLL_MS, &reply, err);
        if (status != SL_AGAIN) {
            status = step(copying, status, reply, err);
        }
    }
    if (status != SL_AGAIN) {
        bool stalled = status == SL_ERR_DEADLINE; // the store ends the lease by itself
        if (status == SL_OK || stalled) {
            sluice__v1__grant__free_unpacked(copying->grant, NULL);
            copying->grant = NULL;
        }
        sl_copying_end(copying);
    }
    return status;
}

void sl_copying_end(struct sl_copying *copying) {
    sl_rpc_stream_close(&copying->stream);
    if (copying->grant != NULL) {
        sl_copy_release_lease(copying->store, &sl_method_store_release, copying->grant->lease_id, 0);
        sluice__v1__grant__free_unpacked(copying->grant, NULL);
        copying->grant = NULL;
    }
    copying->place.worker = NULL;
    sl_worker_unref(&copying->store);
    sl_worker_unref(&copying->decode);
}

// ---- from the store -------------------------------------------------------------------------------------------------

static enum sl_status look_up(const struct sl_session_copy *copy, struct sl_worker *store,
                              Sluice__V1__LookupReply **reply_out, struct sl_error *err) {
    Sluice__V1__PrefixKey key = SLUICE__V1__PREFIX_KEY__INIT, *keys[1] = {&key};
    Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
    request.model_fingerprint = copy->model_fingerprint;
    request.recipe_fingerprint = copy->recipe_fingerprint;
    key.n_tokens = copy->n_tokens;
    key.hash = key_of(copy).prefix_hash;
    request.prefixes = keys;
    request.n_prefixes = 1;
    return sl_rpc_unary(sl_worker_channel(store), &sl_method_store_lookup, &request.base, sl_deadline_in_ms(CALL_MS),
                        NULL, (ProtobufCMessage **)reply_out, err);
}

static enum sl_status fetch(struct sl_run *run, struct sl_worker *store, const char *pin, struct sl_error *err) {
    Sluice__V1__FetchRequest request = SLUICE__V1__FETCH_REQUEST__INIT;
    request.lease_id = (char *)pin;
    request.destination = run->grant;
    struct sl_worker_call call = {.job = run->job,
                                  .worker = store,
                                  .peer = run->claim.decode,
                                  .lease = &run->lease,
                                  .lease_is_vital = true,
                                  .silence_ms = STORE_QUIET};
    ProtobufCMessage *message = NULL;
    enum sl_status status =
        sl_worker_call_unary(&call, &sl_method_store_fetch, &request.base, run->job->spec.deadline_ns, &message, err);
    if (status == SL_OK) {
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return status;
}

enum sl_status sl_copy_restore(struct sl_run *run, struct sl_error *err) {
    const struct sl_session_copy *copy = &run->from.copy;
    struct sl_worker *store = find_store(run->context->registry, copy->store);
    SL_FAIL_IF(store == NULL, err, SL_ERR_PEER_STALE, "the store of the turn before is gone");
    Sluice__V1__LookupReply *reply = NULL;
    enum sl_status status = look_up(copy, store, &reply, err);
    if (status == SL_OK) {
        bool fits = reply->n_tokens == copy->n_tokens && reply->capsule_tokens == copy->n_tokens &&
                    reply->capsule_bytes <= run->grant->capacity_bytes;
        status = fits                   ? fetch(run, store, reply->lease_id, err)
                 : reply->n_tokens == 0 ? sl_fail(err, SL_ERR_PEER_STALE, "%s has dropped it", sl_worker_name(store))
                                        : sl_fail(err, SL_ERR_PEER_CORRUPT, "%s has another session under this key",
                                                  sl_worker_name(store));
        sl_copy_release_lease(store, &sl_method_store_release, reply->lease_id, 0);
        sluice__v1__lookup_reply__free_unpacked(reply, NULL);
    }
    sl_worker_unref(&store);
    return status;
}

// ---- not needed any more --------------------------------------------------------------------------------------------

bool sl_copy_forget(struct sl_registry *registry, const struct sl_session_copy *copy, int64_t term) {
    struct sl_worker *store = find_store(registry, copy->store);
    if (store == NULL) {
        return true; // the copy is lost with its store, or returns with the disk
    }
    Sluice__V1__StoreKey key = key_of(copy);
    Sluice__V1__ForgetRequest request = SLUICE__V1__FORGET_REQUEST__INIT;
    struct sl_error err = {0};
    request.key = &key;
    request.term = term;
    enum sl_status status = sl_rpc_unary(sl_worker_channel(store), &sl_method_store_forget, &request.base,
                                         sl_deadline_in_ms(FORGET_MS), NULL, NULL, &err);
    if (status != SL_OK) {
        sl_log_info("turn", "a copy of a conversation stays at %s until the store needs the memory: %s",
                    sl_worker_name(store), err.text);
    }
    sl_worker_unref(&store);
    return status == SL_OK;
}
