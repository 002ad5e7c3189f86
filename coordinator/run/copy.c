// SPDX-License-Identifier: Apache-2.0
// Purpose: see copy.h.
#include "coordinator/run/copy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/run/worker_call.h"
#include "engine/job/job_recipe.h"
#include "proto/methods.h"

#define CALL_MS     2000
#define FORGET_MS   1000
#define POLL_MS     40 // between looks at who waits
#define ARCHIVE_MS  10000
#define STORE_QUIET 15000 // a store that ships says nothing until it is done

struct sl_worker *sl_copy_find_worker(struct sl_registry *registry, Sluice__V1__WorkerRole role, const char *name,
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

static struct sl_worker *find_store(struct sl_registry *registry, const char *address) {
    return address[0] != '\0' ? sl_copy_find_worker(registry, SLUICE__V1__WORKER_ROLE__KVSTORE, NULL, address) : NULL;
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

// Its name at the store; the hash stays the copy's.
static Sluice__V1__StoreKey key_of(const struct sl_session_copy *copy) {
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    key.model_fingerprint = copy->model_fingerprint;
    key.recipe_fingerprint = copy->recipe_fingerprint;
    key.n_tokens = copy->n_tokens;
    key.prefix_hash = (ProtobufCBinaryData){sizeof copy->history, (uint8_t *)copy->history.bytes};
    return key;
}

// ---- to the store ---------------------------------------------------------------------------------------------------

static enum sl_status name_copy(const struct sl_run_context *context, const struct sl_job *job,
                                const struct sl_job_turn *turn, struct sl_session_copy *copy, struct sl_error *err) {
    struct sl_recipe recipe;
    enum sl_status status = sl_job_recipe(job->spec.recipe, context->model, &recipe, err);
    if (status == SL_OK) {
        copy->model_fingerprint = sl_model_set_fingerprint(context->model_fingerprint, turn->rope_set);
        copy->recipe_fingerprint = sl_recipe_fingerprint(&recipe);
        copy->history = turn->history;
        copy->n_tokens = turn->n_kept;
        copy->bytes = turn->kept_bytes;
    }
    return status;
}

// A stream, though there is one reply: those can be looked up from.
static enum sl_status ask(struct sl_copying *copying, struct sl_worker *worker, const struct sl_rpc_method *method,
                          const ProtobufCMessage *request, int64_t wait_ms, struct sl_error *err) {
    sl_rpc_stream_close(&copying->stream);
    return sl_rpc_stream_open(sl_worker_channel(worker), method, request, sl_deadline_in_ms(wait_ms), NULL,
                              &copying->stream, err);
}

enum sl_status sl_copying_begin(const struct sl_run_context *context, const struct sl_job *job,
                                struct sl_worker *decode, const struct sl_job_turn *turn, int64_t term,
                                struct sl_copying *copying, struct sl_error *err) {
    struct sl_session_copy copy = {.store = ""};
    sl_registry_store_address(context->registry, job->spec.n_keys > 0 ? job->spec.keys[0] : 0, copy.store);
    struct sl_worker *store = find_store(context->registry, copy.store);
    if (store == NULL) {
        return SL_OK;
    }
    enum sl_status status = name_copy(context, job, turn, &copy, err);
    *copying = (struct sl_copying){.store = store, .decode = sl_worker_ref(decode), .copy = copy, .term = term};
    strcpy(copying->lease_id, turn->lease_id);
    if (status == SL_OK) {
        Sluice__V1__StoreKey key = key_of(&copying->copy);
        Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
        request.key = &key;
        request.capsule_bytes = copy.bytes;
        status = ask(copying, store, &sl_method_store_reserve, &request.base, CALL_MS, err);
    }
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
    return ask(copying, copying->decode, &sl_method_decode_archive, &request.base, ARCHIVE_MS, err);
}

// What a step has come to. SL_AGAIN: the next one has begun.
static enum sl_status step(struct sl_copying *copying, enum sl_status status, ProtobufCMessage *reply,
                           struct sl_error *err) {
    if (copying->grant != NULL) { // of a store's loss Archive says PEER_STALE
        if (status == SL_OK) {
            protobuf_c_message_free_unpacked(reply, NULL);
        }
        return status;
    }
    if (status == SL_OK) {
        copying->grant = (Sluice__V1__Grant *)reply;
        status = ship(copying, err);
        return status == SL_OK ? SL_AGAIN : status;
    }
    if (status == SL_ERR_DEADLINE) { // the next turn does not ask it before it is heard of
        sl_worker_suspect(copying->store);
    }
    return status == SL_ERR_EXISTS ? SL_OK : status == SL_ERR_PEER_LOST ? SL_ERR_PEER_STALE : status;
}

enum sl_status sl_copying_wait(struct sl_copying *copying, int64_t until_ns, bool (*go_on)(void *arg), void *arg,
                               struct sl_error *err) {
    enum sl_status status = SL_AGAIN;
    while (status == SL_AGAIN && sl_now_ns() < until_ns && go_on(arg)) {
        ProtobufCMessage *reply = NULL;
        status = sl_rpc_stream_next(copying->stream, POLL_MS, &reply, err);
        if (status != SL_AGAIN) {
            status = step(copying, status, reply, err);
        }
    }
    if (status != SL_AGAIN) {
        bool stands_still = status == SL_ERR_DEADLINE; // it ends the lease by itself
        if (status == SL_OK || stands_still) {
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
        release_at_store(copying->store, copying->grant->lease_id);
        sluice__v1__grant__free_unpacked(copying->grant, NULL);
        copying->grant = NULL;
    }
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

enum sl_status sl_copy_restore(const struct sl_run_context *context, struct sl_job *job,
                               const struct sl_session_copy *copy, struct sl_worker *decode, struct sl_lease *lease,
                               const Sluice__V1__Grant *grant, struct sl_error *err) {
    struct sl_worker *store = find_store(context->registry, copy->store);
    if (store == NULL) {
        return sl_fail(err, SL_ERR_PEER_STALE, "the store of the turn before is gone");
    }
    Sluice__V1__LookupReply *reply = NULL;
    enum sl_status status = look_up(copy, store, &reply, err);
    if (status == SL_OK) {
        bool fits = reply->n_tokens == copy->n_tokens && reply->capsule_tokens == copy->n_tokens &&
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

// ---- not needed any more --------------------------------------------------------------------------------------------

bool sl_copy_forget(struct sl_registry *registry, const struct sl_session_copy *copy, int64_t term) {
    struct sl_worker *store = find_store(registry, copy->store);
    if (store == NULL) {
        return true; // it has gone with its store, or comes back with its disk
    }
    Sluice__V1__StoreKey key = key_of(copy);
    Sluice__V1__ForgetRequest request = SLUICE__V1__FORGET_REQUEST__INIT;
    struct sl_error err = {0};
    request.key = &key;
    request.term = term;
    enum sl_status status = sl_rpc_unary(sl_worker_channel(store), &sl_method_store_forget, &request.base,
                                         sl_deadline_in_ms(FORGET_MS), NULL, NULL, &err);
    if (status != SL_OK) {
        sl_log_info("turn", "a copy of a conversation stays with %s until that needs the memory: %s",
                    sl_worker_name(store), err.text);
    }
    sl_worker_unref(&store);
    return status == SL_OK;
}
