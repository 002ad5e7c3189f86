// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sessions that wait for a later answer: those of conversations between two turns, each under a lease, and
 *          bases, the capsules of stored prefixes whose pages answers share (sl_session_share()).
 *
 *     put   after an answer             take     by the next turn; the caller then owns the session
 *           a fetched base              share    by any answer whose prompt begins with it; the base stays
 *     gone  released, expired, or dropped because memory is needed: the session that has been idle for longest goes
 *     first
 *     lent  while it is copied: it stays, and a turn that wants to take it waits. A base that answers share stays too
 *
 * Invariants: a retained session has a name of 128 random bits, and records which tokens of which tenant it holds (the
 *             salted hash in `id`): a caller that takes it must know both. No memory is promised to it, so it never
 *             delays a job; except to a session that this worker has read for a job, which is not dropped either.
 * Threads: any; the engine's thread ends expired sessions, between steps or once a second.
 */
#pragma once

#include <pthread.h>

#include "base/lease_id.h"
#include "engine/kvcache/capsule.h"
#include "net/node/ledger.h"

struct sl_kept_session {
    struct sl_kept_session *next;
    char lease_id[SL_LEASE_ID_BYTES];
    struct sl_capsule_id id; // prefix_hash: hash of the tokens that the session holds
    struct sl_session *session;
    int64_t deadline_ns;
    struct sl_ledger *ledger; // of promised_bytes, which the job that takes the session owns then; NULL: none
    size_t promised_bytes;
    bool is_lent, is_over; // over: released while it was lent
    // Set for a base only:
    bool is_base;
    int64_t n_matched;         // tokens that the last prompt had in common with it, whole blocks of SL_PREFIX_BLOCK
    struct sl_hash128 matched; // their key
};

struct sl_kept {
    pthread_mutex_t mutex;
    pthread_cond_t returned;       // signaled when a lent session is returned, and when a fetch ends
    struct sl_kept_session *first; // the oldest
    struct sl_kept_fetch *fetches; // of bases
};

void sl_kept_init(struct sl_kept *kept);
void sl_kept_cleanup(struct sl_kept *kept); // frees all retained sessions

// Retains a session; takes it over on success. lease_id_out: its name.
enum sl_status sl_kept_put(struct sl_kept *kept, const struct sl_capsule_id *id, struct sl_session **session_inout,
                           int64_t keep_ms, char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err);
// Does the same for seconds with a session that a job waits for: it keeps the promise of promised_bytes that it brings.
enum sl_status sl_kept_hand_over(struct sl_kept *kept, struct sl_ledger *ledger, const struct sl_capsule_id *id,
                                 struct sl_session **session_inout, size_t promised_bytes,
                                 char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err);
// Takes the session of this name out of the list; NULL: there is none, or it stays lent until the deadline. The caller
// gives it to sl_kept_put_back() or sl_kept_free().
struct sl_kept_session *sl_kept_take(struct sl_kept *kept, const char *lease_id, int64_t deadline_ns);
void sl_kept_put_back(struct sl_kept *kept, struct sl_kept_session *one);
// Lends the session for a short time, for reading: it keeps its name. NULL: there is none, or it is lent already.
struct sl_kept_session *sl_kept_lend(struct sl_kept *kept, const char *lease_id);
void sl_kept_return(struct sl_kept *kept, struct sl_kept_session *one);
void sl_kept_free(struct sl_kept_session *one); // with what it still has of session and promise. Accepts NULL

void sl_kept_release(struct sl_kept *kept, const char *lease_id); // idempotent
bool sl_kept_drop_oldest(struct sl_kept *kept); // called when memory is needed. False: no session is retained
// Does so for a request of `bytes` of the ledger's arena. False also: it would not fit if all of them were dropped.
bool sl_kept_make_room(struct sl_kept *kept, struct sl_ledger *ledger, size_t bytes);
void sl_kept_reap(struct sl_kept *kept);     // frees expired sessions
int64_t sl_kept_count(struct sl_kept *kept); // sessions of conversations

// ---- bases ------------------------------------------------------------------------------------------------------

// A prompt that may begin with a base.
struct sl_kept_prompt {
    struct sl_capsule_id id;       // prefix_hash: the capsule's, of sl_kept_share()
    const struct sl_hash128 *keys; // [n_keys] keys[i]: of the first (i + 1) * SL_PREFIX_BLOCK tokens
    int64_t n_keys;
    int64_t max_slots;       // of the session
    sl_session_copy_fn copy; // of memory of the arena
    void *copy_arg;
};

// A base that is being fetched. It lies in the caller's memory.
struct sl_kept_fetch {
    struct sl_kept_fetch *next;
    struct sl_capsule_id id;
};
// Registers the fetch of fetch->id when no other one of this id is under way. SL_ERR_DEADLINE: there is one until then.
enum sl_status sl_kept_begin_fetch(struct sl_kept *kept, struct sl_kept_fetch *fetch, int64_t deadline_ns);
void sl_kept_end_fetch(struct sl_kept *kept, struct sl_kept_fetch *fetch);

// Retains a session as the base of prompt->id, with which the prompt has n_tokens in common; takes it over in any case. Drops another
// base of this id.
void sl_kept_put_base(struct sl_kept *kept, const struct sl_kept_prompt *prompt, int64_t n_tokens,
                      struct sl_session **session_inout);
/*
 * Creates a session that shares n_tokens of the base of prompt->id, whole blocks or all of it; the prompt has them in common with it. SL_ERR_NOT_FOUND: there
 * is no such base. Other statuses of sl_session_share().
 */
enum sl_status sl_kept_share(struct sl_kept *kept, const struct sl_kept_prompt *prompt, int64_t n_tokens,
                             struct sl_session **session_out, struct sl_error *err);
// Does the same with the base that has most in common with the prompt, as far as earlier prompts had; id.prefix_hash is ignored.
enum sl_status sl_kept_share_longest(struct sl_kept *kept, const struct sl_kept_prompt *prompt,
                                     struct sl_session **session_out, struct sl_error *err);
int64_t sl_kept_base_bytes(struct sl_kept *kept); // of the arena
