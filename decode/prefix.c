// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: begins an answer with a stored prefix of its prompt, without a prefill worker: fetches the capsule from the
 *          store, or shares the pages of one that an earlier answer fetched, and has the engine's thread read the rest.
 *
 * Design: the store is asked first, even if this worker holds a capsule: so an answer begins with the same tokens of the same
 *         capsule as if prefill had begun it, and has the same bits. If the store does not answer, the worker uses what it
 *         holds. Answers that want the same capsule at the same time wait for one fetch and share its pages (decode/kept.h).
 *         The capsule of the whole prompt is not shared: the answer continues on its last page.
 *         A capsule of which the prompt has all tokens is shared whole, and its last pages are copied. One with evicted slots
 *         (whole_tokens) cannot be cut; its tokens identify it, so the store is not asked for one that is held.
 *         Parts of the prompt that other capsules hold come the same way, and the reader joins them (engine/runner/join.h).
 * Threads: the handlers of Decode.Run.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "decode/internal.h"
#include "engine/job/job_recipe.h"
#include "engine/job/job_request.h"
#include "engine/runtime/transfer.h"

#define ALIVE_MS 250
#define MEMORY_MS                                                                                                      \
    800 // how long an answer waits for memory of others, in the time in which its caller need not hear from it
#define POLL_MS 10

_Static_assert(SL_JOB_SHORT_REST <= SL_DECODE_MAX_ROWS, "a pass can read all of it");

// The search for what an answer begins with.
struct beginning {
    struct sl_decode *decode;
    struct sl_answer *answer;
    const Sluice__V1__DecodeRequest *request;
    const struct sl_plan *plan;
    struct sl_capsule_id id;
    struct sl_hash128 salt;
    struct sl_store_job store;
    struct sl_store_match match;
    struct sl_kept_prompt prompt;
    int64_t max_new_tokens;
};

static bool tell_alive(void *call) {
    return sl_decode_send_alive(call) == SL_OK && !sl_rpc_call_cancelled(call);
}

// ---- one fetch for many answers -------------------------------------------------------------------------------------

// Waits until no other answer fetches the capsule, as long as the caller listens, and registers this fetch.
static enum sl_status begin_fetch(struct beginning *b, struct sl_kept_fetch *fetch, bool *waited_out,
                                  struct sl_error *err) {
    *waited_out = sl_kept_begin_fetch(&b->decode->kept, fetch, 0) != SL_OK;
    while (*waited_out && sl_kept_begin_fetch(&b->decode->kept, fetch, sl_deadline_in_ms(ALIVE_MS)) != SL_OK) {
        SL_FAIL_IF(!tell_alive(b->store.parent), err, SL_ERR_CANCELLED, "cancelled while a capsule was fetched");
    }
    return SL_OK;
}

// Waits a little for memory that other answers hold. False: that was long enough, or the caller does not listen.
static bool wait_for_memory(const struct beginning *b, int64_t until_ns) {
    if (sl_now_ns() >= until_ns || sl_rpc_call_cancelled(b->store.parent)) {
        return false;
    }
    sl_sleep_ms(POLL_MS);
    return true;
}

// Rejects a checkpoint of a quantized recipe: this worker would quantize all of its pages into new ones, which nothing has
// promised.
static enum sl_status reject_checkpoint(struct sl_error *err) {
    return sl_fail(err, SL_ERR_PRECONDITION, "its prompt is still being read, and its pages are not quantized yet");
}

static bool is_quantized(const struct sl_plan *plan) {
    bool any = false;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        any |= sl_kv_format_is_quantized(plan->packed[l].format);
    }
    return any;
}

// Fetches the matched capsule. Drops idle sessions if memory is short, as a reservation does. An older store does not say
// that a capsule is a checkpoint: its pages do.
static enum sl_status receive(struct beginning *b, struct sl_session **session_out, struct sl_error *err) {
    struct sl_decode *decode = b->decode;
    int64_t until_ns = sl_deadline_in_ms(MEMORY_MS);
    enum sl_status status;
    do {
        status = sl_store_receive(&b->store, &b->match, session_out, err);
    } while (status == SL_ERR_EXHAUSTED && b->match.lease_id[0] != '\0' && // else it came, and cannot come again
             (sl_decode_make_room(decode, b->match.capsule_bytes) || wait_for_memory(b, until_ns)));
    if (status == SL_OK && !sl_session_is_packed(*session_out)) {
        sl_session_destroy(session_out);
        status = reject_checkpoint(err);
    }
    if (status == SL_OK) {
        b->answer->prefix.fetched_bytes += (int64_t)b->match.capsule_bytes;
    }
    return status;
}

// Copies a page within the arena. sl_node_check_device() finds a failure.
static void copy_page(void *runtime, void *to, const void *from, size_t bytes) {
    if (((const struct sl_runtime *)runtime)->device->ops->one_memory) {
        memcpy(to, from, bytes);
    } else {
        (void)sl_transfer_in(runtime, to, from, bytes, NULL);
    }
}

// Fetches the capsule, and retains it as a base.
static enum sl_status fetch_base(struct beginning *b, struct sl_session **session_out, struct sl_error *err) {
    struct sl_session *base;
    SL_TRY(receive(b, &base, err));
    enum sl_status status = sl_session_share(base, b->match.n_tokens, b->prompt.max_slots, copy_page,
                                             &b->decode->node.runtime, session_out, err);
    if (status == SL_OK) {
        sl_kept_put_base(&b->decode->kept, &b->prompt, b->match.n_tokens, &base);
    }
    sl_session_destroy(&base);
    return status;
}

static enum sl_status share_or_fetch(struct beginning *b, struct sl_session **session_out, struct sl_error *err) {
    struct sl_kept *kept = &b->decode->kept;
    struct sl_kept_fetch fetch = {.id = b->prompt.id};
    enum sl_status status = sl_kept_share(kept, &b->prompt, b->match.n_tokens, session_out, err);
    if (status != SL_ERR_NOT_FOUND) {
        return status;
    }
    bool waited;
    SL_TRY(begin_fetch(b, &fetch, &waited, err));
    status = sl_kept_share(kept, &b->prompt, b->match.n_tokens, session_out, err); // another answer's fetch ended
    if (status == SL_ERR_NOT_FOUND) {
        // An answer that waited for a fetch that failed does not try again: the waiting answers would fail one after another
        status =
            sl_store_channels_standing(sl_store_client_channels(b->store.client), b->store.address) != SL_STORE_GOOD
                ? sl_fail(err, SL_ERR_PEER_STALE, "kvstore %s has failed lately", b->store.address)
            : waited
                ? sl_fail(err, SL_ERR_EXHAUSTED, "the fetch of another answer, which this one waited for, has failed")
                : fetch_base(b, session_out, err);
    }
    sl_kept_end_fetch(kept, &fetch);
    return status;
}

// ---- the session ----------------------------------------------------------------------------------------------------

// Returns how many tokens of a part follow the first n_tokens of the prompt.
static int64_t tokens_after(const Sluice__V1__JoinedPart *part, int64_t n_tokens) {
    int64_t covered = n_tokens > part->at ? n_tokens - part->at : 0;
    return part->n_tokens > covered ? part->n_tokens - covered : 0;
}

static int64_t count_joined(const Sluice__V1__DecodeRequest *request, int64_t n_tokens) {
    int64_t n = 0;
    for (size_t i = 0; i < request->n_joined; i++) {
        n += tokens_after(request->joined[i], n_tokens);
    }
    return n;
}

// Promises memory for n_rest tokens of the prompt and for the answer.
static enum sl_status promise(struct beginning *b, int64_t n_rest, struct sl_error *err) {
    struct sl_answer *answer = b->answer;
    size_t bytes = sl_plan_turn_bytes(b->plan, n_rest + b->max_new_tokens);
    int64_t until_ns = sl_deadline_in_ms(MEMORY_MS);
    enum sl_status status;
    do {
        status = sl_decode_promise(b->decode, answer, bytes, err);
    } while (status == SL_ERR_EXHAUSTED && wait_for_memory(b, until_ns));
    answer->session_bytes = answer->promised_bytes;
    return status;
}

/*
 * Promises memory for the rest of the prompt and for the answer. Rejects a prefix after which too much is left to read here; *why_out is
 * set then.
 */
static enum sl_status promise_rest(struct beginning *b, int64_t n_tokens, Sluice__V1__NotCached *why_out,
                                   struct sl_error *err) {
    int64_t n_rest = b->plan->n_prompt - n_tokens, n_read = n_rest - count_joined(b->request, n_tokens);
    if (n_read > SL_JOB_SHORT_REST) {
        *why_out = SLUICE__V1__NOT_CACHED__NOT_CACHED_TOO_LITTLE;
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "%lld tokens follow the stored prefix, and a decode worker reads up to %d", (long long)n_read,
                       SL_JOB_SHORT_REST);
    }
    return promise(b, n_rest, err);
}

static enum sl_status use_match(struct beginning *b, struct sl_session **session_out, Sluice__V1__NotCached *why_out,
                                struct sl_error *err) {
    enum sl_status status = SL_OK;
    if (!sl_store_match_pays(&b->store, &b->match)) {
        *why_out = SLUICE__V1__NOT_CACHED__NOT_CACHED_TOO_LITTLE;
        status = sl_fail(err, SL_ERR_PRECONDITION, "the store has only %lld tokens of the prompt, in a capsule of %lld",
                         (long long)b->match.n_tokens, (long long)b->match.capsule_tokens);
    }
    SL_THEN_IF(status, b->match.is_checkpoint && is_quantized(b->plan), reject_checkpoint(err));
    SL_THEN(status, promise_rest(b, b->match.n_tokens, why_out, err));
    SL_TRY(status);
    b->prompt.id.prefix_hash = b->match.capsule_hash;
    bool shareable = b->match.n_tokens % SL_PAGE_SLOTS == 0 || b->match.n_tokens == b->match.capsule_tokens;
    bool shared = shareable && b->match.n_tokens >= SL_PREFIX_BLOCK && !sl_store_match_is_whole(&b->store, &b->match) &&
                  !sl_hash128_is_zero(&b->match.capsule_hash);
    if (shared) {
        return share_or_fetch(b, session_out, err);
    }
    SL_TRY(receive(b, session_out, err));
    if (b->match.capsule_tokens > b->match.n_tokens) {
        SL_TRY(sl_session_truncate(*session_out, b->match.n_tokens, err));
    }
    return SL_OK;
}

// Shares the capsule of whole_tokens, which this worker may hold.
static enum sl_status share_whole(struct beginning *b, struct sl_session **session_out, struct sl_error *err) {
    int64_t n_tokens = b->store.whole_tokens;
    SL_FAIL_IF(n_tokens < SL_PREFIX_BLOCK, err, SL_ERR_NOT_FOUND, "no whole capsule is known");
    b->prompt.id.prefix_hash = sl_prefix_hash_after(&b->salt, b->prompt.keys, b->request->prompt->ids, n_tokens);
    return sl_kept_share(&b->decode->kept, &b->prompt, n_tokens, session_out, err);
}

// Asks the store. Uses what this worker holds if the store does not answer.
static enum sl_status find_session(struct beginning *b, struct sl_session **session_out, Sluice__V1__NotCached *why_out,
                                   struct sl_error *err) {
    enum sl_status status = sl_store_lookup(&b->store, &b->match, err);
    if (status == SL_OK) {
        status = use_match(b, session_out, why_out, err);
        sl_store_release(b->store.client, b->store.address, b->match.lease_id);
        return status;
    }
    if (status == SL_ERR_NOT_FOUND) {
        *why_out = SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_STORED;
        return status;
    }
    struct sl_error none = {0};
    if (status == SL_ERR_CANCELLED ||
        (share_whole(b, session_out, &none) != SL_OK &&
         sl_kept_share_longest(&b->decode->kept, &b->prompt, session_out, &none) != SL_OK)) {
        return status;
    }
    sl_log_info("decode", "job=%s uses what this worker holds: %s", b->answer->job_id, err->text);
    return promise_rest(b, (*session_out)->n_tokens, why_out, err);
}

static enum sl_status begin(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                            struct sl_rpc_call *call, struct sl_answer *answer, struct sl_plan *plan,
                            struct beginning *b, struct sl_error *err) {
    const struct sl_recipe *recipe = &answer->recipe;
    struct sl_kv_geometry geometry = sl_model_geometry(decode->node.runtime.config);
    int64_t n_prompt = (int64_t)request->prompt->n_ids - 1;
    SL_FAIL_IF(n_prompt < 1 || (sl_recipe_evicts(recipe) && request->whole_tokens == 0) || sl_recipe_offloads(recipe),
               err, SL_ERR_PRECONDITION, "its recipe evicts or offloads, or there is one token");
    *b = (struct beginning){.decode = decode,
                            .answer = answer,
                            .request = request,
                            .plan = plan,
                            .max_new_tokens = request->max_new_tokens};
    enum sl_status status = sl_plan_make(recipe, &geometry, n_prompt, sl_decode_rope_set(decode, request), plan, err);
    SL_THEN(status, sl_decode_make_id(decode, request, recipe, n_prompt, &b->id, err));
    SL_THEN(status, sl_job_read_salt(&request->salt, &b->salt, err));
    struct sl_hash128 *keys = malloc(sizeof *keys * (size_t)(n_prompt / SL_PREFIX_BLOCK + 1));
    if (status != SL_OK || !keys) {
        free(keys);
        return status != SL_OK ? status : sl_fail(err, SL_ERR_EXHAUSTED, "decode: out of memory");
    }
    b->prompt = (struct sl_kept_prompt){.id = b->id,
                                        .keys = keys,
                                        .max_slots = sl_decode_most_slots(decode, request),
                                        .copy = copy_page,
                                        .copy_arg = &decode->node.runtime};
    b->prompt.n_keys = sl_prefix_keys(&b->salt, request->prompt->ids, n_prompt, keys, n_prompt / SL_PREFIX_BLOCK);
    b->store = (struct sl_store_job){.client = decode->store,
                                     .address = request->kvstore_address,
                                     .plan = plan,
                                     .id = &b->id,
                                     .tokens = request->prompt->ids,
                                     .salt = &b->salt,
                                     .parent = call,
                                     .alive = tell_alive,
                                     .arg = call,
                                     .max_slots = b->prompt.max_slots,
                                     .whole_tokens = request->whole_tokens};
    return SL_OK;
}

// ---- parts of other capsules ----------------------------------------------------------------------------------------

// Checks a part, which an untrusted caller might have made: its tokens are those of the prompt.
static enum sl_status check_part(const Sluice__V1__DecodeRequest *request, const Sluice__V1__JoinedPart *part,
                                 struct sl_error *err) {
    int64_t n_prompt = (int64_t)request->prompt->n_ids - 1, n_capsule = part->tokens ? (int64_t)part->tokens->n_ids : 0;
    SL_FAIL_IF(part->from < 0 || part->at < 0 || part->n_tokens < 1 || part->from >= n_capsule ||
                   part->at >= n_prompt || part->n_tokens >= n_capsule - part->from ||
                   part->n_tokens >= n_prompt - part->at || (part->from + part->n_tokens) % SL_PAGE_SLOTS != 0 ||
                   memcmp(part->tokens->ids + part->from, request->prompt->ids + part->at,
                          (size_t)part->n_tokens * sizeof *part->tokens->ids) != 0,
               err, SL_ERR_INVALID, "joined: tokens %lld of %lld are not those of the prompt at %lld",
               (long long)part->from, (long long)n_capsule, (long long)part->at);
    return SL_OK;
}

static enum sl_status check_parts(const struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                  struct sl_error *err) {
    SL_FAIL_IF(request->n_joined > SL_MAX_JOINS, err, SL_ERR_INVALID, "joined: %zu parts, at most %d",
               request->n_joined, SL_MAX_JOINS);
    SL_TRY(request->n_joined > 0 ? sl_join_check_device(&decode->node.runtime, err) : SL_OK);
    for (size_t i = 0; i < request->n_joined; i++) {
        SL_TRY(check_part(request, request->joined[i], err));
    }
    return SL_OK;
}

// Finds the capsule of a part. Shares its pages up to the part's end.
static enum sl_status find_part(struct beginning *b, const Sluice__V1__JoinedPart *part,
                                struct sl_session **session_out, struct sl_error *err) {
    int64_t n_tokens = part->from + part->n_tokens;
    SL_TRY(sl_store_lookup(&b->store, &b->match, err));
    enum sl_status status = SL_OK;
    if (b->match.n_tokens < n_tokens || sl_hash128_is_zero(&b->match.capsule_hash)) {
        status = sl_fail(err, SL_ERR_NOT_FOUND, "the store has only %lld tokens of a joined document",
                         (long long)b->match.n_tokens);
    } else if (b->match.is_checkpoint && is_quantized(b->plan)) {
        status = reject_checkpoint(err);
    } else {
        b->prompt.id.prefix_hash = b->match.capsule_hash;
        b->match.n_tokens = n_tokens;
        status = share_or_fetch(b, session_out, err);
    }
    sl_store_release(b->store.client, b->store.address, b->match.lease_id);
    return status;
}

/*
 * Opens the session of a part. Its id is made with the frequencies of the whole answer: a capsule with others is not
 * found. *plan is the caller's memory.
 */
static enum sl_status open_part(const struct beginning *whole, const Sluice__V1__JoinedPart *part, struct sl_plan *plan,
                                struct sl_session **session_out, struct sl_error *err) {
    const Sluice__V1__DecodeRequest *request = whole->request;
    Sluice__V1__DecodeRequest other = *request;
    other.prompt = part->tokens;
    other.max_new_tokens =
        (int32_t)((int64_t)request->prompt->n_ids + request->max_new_tokens - (int64_t)part->tokens->n_ids);
    other.kvstore_address = part->kvstore_address;
    other.whole_tokens = 0;
    struct beginning b = {0};
    enum sl_status status = begin(whole->decode, &other, whole->store.parent, whole->answer, plan, &b, err);
    SL_THEN(status, find_part(&b, part, session_out, err));
    free((void *)b.prompt.keys);
    return status;
}

// Opens the sessions of the parts that follow the first n_tokens of the prompt.
static enum sl_status open_parts(const struct beginning *b, int64_t n_tokens, struct sl_error *err) {
    const Sluice__V1__DecodeRequest *request = b->request;
    struct sl_answer *answer = b->answer;
    struct sl_plan *plan = malloc(sizeof *plan);
    enum sl_status status = plan ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "decode: out of memory");
    for (size_t i = 0; status == SL_OK && i < request->n_joined; i++) {
        const Sluice__V1__JoinedPart *part = request->joined[i];
        int64_t n_left = tokens_after(part, n_tokens), n_covered = part->n_tokens - n_left;
        if (n_left > 0) {
            struct sl_join *join = &answer->joins[answer->n_joins];
            *join = (struct sl_join){
                .first = part->from + n_covered, .n_tokens = n_left, .at = part->at + n_covered, .from = NULL};
            status = open_part(b, part, plan, &join->from, err);
            answer->n_joins += status == SL_OK;
        }
    }
    free(plan);
    return status;
}

void sl_decode_drop_joined(struct sl_answer *answer) {
    while (answer->n_joins > 0) {
        sl_session_destroy(&answer->joins[--answer->n_joins].from);
    }
}

// ---- a capsule with evicted slots -----------------------------------------------------------------------------------

static enum sl_status find_whole(struct beginning *b, struct sl_session **session_out, struct sl_error *err) {
    int64_t n_tokens = b->plan->n_prompt;
    if (sl_kept_share(&b->decode->kept, &b->prompt, n_tokens, session_out, err) == SL_OK) {
        return SL_OK;
    }
    SL_TRY(sl_store_lookup(&b->store, &b->match, err));
    enum sl_status status = !sl_store_match_is_whole(&b->store, &b->match)
                                ? sl_fail(err, SL_ERR_NOT_FOUND, "the store has only %lld of the capsule's %lld tokens",
                                          (long long)b->match.n_tokens, (long long)n_tokens)
                            : n_tokens < SL_PREFIX_BLOCK ? receive(b, session_out, err)
                                                         : share_or_fetch(b, session_out, err);
    sl_store_release(b->store.client, b->store.address, b->match.lease_id);
    return status;
}

// Opens the session of the capsule, and what reads the rest of the prompt.
static enum sl_status open_whole(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                 struct sl_rpc_call *call, struct sl_answer *answer, struct sl_plan *plan,
                                 struct beginning *b, struct sl_error *err) {
    int64_t n_tokens = request->whole_tokens, n_prompt = (int64_t)request->prompt->n_ids - 1;
    SL_FAIL_IF(!sl_recipe_keeps_documents(&answer->recipe) || sl_recipe_offloads(&answer->recipe), err, SL_ERR_INVALID,
               "whole_tokens: the recipe evicts again, and other answers share the capsule's pages, or it offloads");
    int64_t n_rest = n_prompt - n_tokens;
    Sluice__V1__DecodeRequest first = *request;
    Sluice__V1__TokenIds ids = *request->prompt;
    ids.n_ids = (size_t)n_tokens + 1;
    first.prompt = &ids;
    first.max_new_tokens = (int32_t)(n_rest + request->max_new_tokens);
    SL_TRY(begin(decode, &first, call, answer, plan, b, err));
    b->max_new_tokens = request->max_new_tokens;
    SL_TRY(promise(b, n_rest, err));
    SL_TRY(find_whole(b, &answer->writer.session, err));
    struct sl_session_stats stats;
    sl_session_get_stats(answer->writer.session, &stats);
    answer->prefix.slots_per_head = stats.n_slots_mean;
    answer->prefix.n_reused = n_tokens;
    return sl_decode_open_turn(decode, request, answer, plan, err);
}

// ---- opening --------------------------------------------------------------------------------------------------------

// Returns whether one step reads what is left together with the prompt's last token, which saves a pass over the whole cache
// and leaves every bit as it is: the rest fills no page, which a reader would quantize. A step is not interrupted for others.
static bool reads_in_step(const struct sl_decode *decode, const struct sl_answer *answer, const struct sl_plan *plan,
                          int64_t n_tokens) {
    const struct sl_runtime *runtime = &decode->node.runtime;
    return answer->n_joins == 0 && !sl_writer_one_by_one(&answer->writer) && atomic_load(&decode->n_here) == 0 &&
           plan->n_prompt - n_tokens < SL_PAGE_SLOTS - n_tokens % SL_PAGE_SLOTS && runtime->device->ops->one_memory &&
           sl_runtime_ranks(runtime) == 1;
}

// Opens the writer on the session, and a reader if something is left to read that no step reads.
static enum sl_status open_writer(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                  struct sl_answer *answer, const struct sl_plan *plan, struct sl_error *err) {
    struct sl_session_stats stats;
    struct sl_prefix_use *prefix = &answer->prefix;
    sl_session_get_stats(answer->writer.session, &stats);
    int64_t n_joined = count_joined(request, stats.n_tokens);
    prefix->slots_per_head = stats.n_slots_mean + (double)n_joined;
    prefix->n_reused = stats.n_tokens + n_joined;
    struct sl_writer_config writing = {.plan = plan, .n_read = plan->n_prompt};
    enum sl_status status = sl_writer_open(&answer->writer, &decode->node.runtime, &writing, err);
    answer->reads_in_step = status == SL_OK && reads_in_step(decode, answer, plan, stats.n_tokens);
    if (status != SL_OK || stats.n_tokens == plan->n_prompt || answer->reads_in_step) {
        return status;
    }
    struct sl_reader_config config = {.plan = plan,
                                      .runtime = &decode->node.runtime,
                                      .arena = decode->node.arena,
                                      .resumed = answer->writer.session,
                                      .tokens = request->prompt->ids,
                                      .joins = answer->joins,
                                      .n_joins = answer->n_joins};
    SL_TRY(sl_reader_create(&config, &answer->reader, err));
    answer->writer.session = NULL; // owned by the reader until all has been read
    return SL_OK;
}

// Finds the session and the parts, and opens them.
static enum sl_status open_prefix(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                  struct sl_answer *answer, struct beginning *b, Sluice__V1__NotCached *why_out,
                                  struct sl_error *err) {
    SL_TRY(check_parts(decode, request, err)); // before anything is fetched
    SL_TRY(find_session(b, &answer->writer.session, why_out, err));
    SL_TRY(sl_job_check_session(b->plan, answer->writer.session, err));
    SL_TRY(open_parts(b, answer->writer.session->n_tokens, err));
    return open_writer(decode, request, answer, b->plan, err);
}

enum sl_status sl_decode_open_prefix(struct sl_decode *decode, const Sluice__V1__DecodeRequest *request,
                                     struct sl_rpc_call *call, struct sl_answer *answer, struct sl_plan *plan,
                                     struct sl_error *err) {
    struct beginning b = {0};
    struct sl_error why = {0};
    Sluice__V1__NotCached reason = SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_SAID;
    answer->prefix.begin_ns = sl_now_ns();
    bool cut = !sl_recipe_evicts(&answer->recipe); // the capsule can be
    enum sl_status status = cut ? begin(decode, request, call, answer, plan, &b, &why)
                                : open_whole(decode, request, call, answer, plan, &b, &why);
    SL_THEN_IF(status, cut, open_prefix(decode, request, answer, &b, &reason, &why));
    free((void *)b.prompt.keys);
    if (status == SL_OK) {
        answer->prefix.opened_ns = sl_now_ns();
        answer->prefix.shared = answer->prefix.fetched_bytes == 0;
        atomic_fetch_add(answer->prefix.shared ? &decode->n_prefixes_held : &decode->n_prefixes_fetched, 1);
        return SL_OK;
    }
    if (status == SL_ERR_CANCELLED) {
        return sl_fail_from(err, status, &why, "%s", why.text);
    }
    reason = reason == SLUICE__V1__NOT_CACHED__NOT_CACHED_NOT_SAID ? sl_store_not_cached(status) : reason;
    atomic_fetch_add(&decode->n_prefixes_not_used[reason], 1);
    return sl_fail(err, SL_ERR_PRECONDITION, "no stored prefix (%s): %.400s", sl_not_cached_word(reason), why.text);
}

// ---- what it saved --------------------------------------------------------------------------------------------------

void sl_decode_describe_prefix(const struct sl_answer *answer, Sluice__V1__Statistics *statistics) {
    const struct sl_prefix_use *prefix = &answer->prefix;
    if (prefix->n_reused == 0) {
        return;
    }
    int64_t read_ns = answer->read_ns > 0 ? answer->read_ns - prefix->opened_ns : 0;
    statistics->n_reused_tokens = prefix->n_reused;
    statistics->capsule_bytes = prefix->fetched_bytes;
    statistics->slots_per_head = prefix->slots_per_head;
    statistics->ship_ms = (double)(prefix->opened_ns - prefix->begin_ns) / SL_NS_PER_MS;
    statistics->prefill_ms = (double)read_ns / SL_NS_PER_MS;
    statistics->transport = prefix->shared ? (char *)"held" : (char *)"store";
}

void sl_decode_write_prefix_metrics(struct sl_decode *decode, FILE *page) {
    static const char used[] = "sluice_prefixes_used_total", not_used[] = "sluice_prefixes_not_used_total";
    sl_metrics_declare(page, SL_COUNTER, used, "Answers that began with a stored prefix, without a prefill worker.");
    sl_metrics_sample(page, used, (double)atomic_load(&decode->n_prefixes_fetched), "source", "store", NULL);
    sl_metrics_sample(page, used, (double)atomic_load(&decode->n_prefixes_held), "source", "held", NULL);
    sl_metrics_declare(page, SL_COUNTER, not_used, "Answers that should have, and that prefill had to begin.");
    for (int i = 1; i < SL_N_NOT_CACHED; i++) {
        sl_metrics_sample(page, not_used, (double)atomic_load(&decode->n_prefixes_not_used[i]), "reason",
                          sl_not_cached_word((Sluice__V1__NotCached)i), NULL);
    }
    sl_metrics_write(page, SL_GAUGE, "sluice_prefix_bytes",
                     "Arena bytes of stored prefixes that later answers can share.",
                     (double)sl_kept_base_bytes(&decode->kept));
}
