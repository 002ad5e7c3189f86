// SPDX-License-Identifier: Apache-2.0
/*
 * Design: of the two stores that may hold a share, the one that answered last is asked first. The other is asked after
 *         half of the time, or at once when the connection to the first is cut; the first answer wins. A cut connection
 *         is opened again until the deadline, because a store that was briefly unreachable still has the remote KV.
 *         Answers arrive in reused buffers: after the first few steps, a step allocates nothing.
 * Delta:  a store remembers what it has sent, and does not know what another one sent. `holder` is the replica whose
 *         answer was used last for some offloaded heads; any other one that is asked about them starts anew
 *         (SL_NEAR_RESET).
 * Reads:  for retrieve=pull: net/offload/remote/remote_reads.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/offload/remote_kv/offloaded_heads.h"
#include "net/offload/remote/remote_internal.h"

// --- shares ----------------------------------------------------------------------------------------------------------

#define RETRY_NS (100 * SL_NS_PER_MS) // between two attempts to open a cut connection
#define TURN_NS  (SL_NS_PER_MS)       // waits this long for one of two stores before polling the other

static void destroy(struct sl_source **source) {
    struct sl_remote *r = (struct sl_remote *)*source;
    if (!r) {
        return;
    }
    sl_asked_free_all(&r->base, &r->unused);
    for (int s = 0; s < SL_MAX_SHARES; s++) {
        for (int i = 0; i < r->shares[s].n_replicas; i++) {
            struct sl_replica *replica = &r->shares[s].replicas[i];
            sl_fabric_request_close(&replica->map_request);
            sl_connections_give(r->connections, &replica->connection);
            free(replica->map_answer);
            free(replica->map.segments);
            free(replica->window);
            free(replica->store);
            free(replica->address);
        }
    }
    free(r->ranges);
    free(r->holder);
    free(r);
    *source = NULL;
}

// --- asking ----------------------------------------------------------------------------------------------------------

static bool is_delta(const struct sl_near_request *head) {
    return head->kind == SL_NEAR_TOPK && !(head->flags & SL_NEAR_PROBE);
}

// Asks one of the stores that hold the share; opens a cut connection first. SL_AGAIN: too soon after the last attempt.
static enum sl_status ask_replica(struct sl_remote *r, struct sl_asked *asked, int i, struct sl_error *err) {
    struct sl_replica *replica = &asked->share->replicas[i];
    int64_t now = sl_now_ns();
    if (now < asked->replicas[i].retry_ns) {
        return SL_AGAIN;
    }
    asked->replicas[i].retry_ns = now + RETRY_NS;
    SL_FAIL_IF(!sl_asked_make_room(&r->base, asked, i), err, SL_ERR_EXHAUSTED, "no memory for an answer of %zu bytes",
               asked->capacity);
    if (!replica->connection) {
        SL_TRY(sl_connections_take(r->connections, replica->address, replica->epoch, &replica->connection, err));
        replica->n_connections++;
    }
    asked->replicas[i].n_connections = replica->n_connections;
    asked->replicas[i].sent_ns = now;
    struct sl_near_request head;
    memcpy(&head, asked->request, sizeof head);
    head.remote_kv_id = replica->remote_kv_id;
    if (is_delta(&head) && r->holder[head.first_offloaded_head] != i) {
        head.flags |= SL_NEAR_RESET;
    }
    memcpy(asked->request, &head, sizeof head);
    r->base.n_asks++;
    r->base.n_replica_asks += i != asked->share->first;
    r->base.bytes_sent += asked->request_bytes;
    struct sl_fabric_question question = {.body = asked->request,
                                          .body_bytes = asked->request_bytes,
                                          .reply_out = asked->replicas[i].answer,
                                          .reply_capacity = asked->capacity,
                                          .deadline_ns = asked->deadline_ns};
    return sl_fabric_request_open(replica->connection, &question, &asked->replicas[i].request, err);
}

static struct sl_remote_share *share_of(struct sl_remote *r, const struct sl_near_request *head) {
    for (int s = 0; s < r->base.n_shares; s++) {
        int64_t first = r->base.shares[s].first_offloaded_head, last = first + r->base.shares[s].n_offloaded_heads;
        if (head->first_offloaded_head >= first &&
            (int64_t)head->first_offloaded_head + head->n_offloaded_heads <= last) {
            return &r->shares[s];
        }
    }
    return NULL;
}

static void forget(struct sl_source *source, struct sl_asked **asked_inout) {
    struct sl_remote *r = (struct sl_remote *)source;
    struct sl_asked *asked = *asked_inout;
    if (!asked) {
        return;
    }
    sl_fetch_close(&asked->fetch);
    for (int i = 0; i < SL_MAX_REPLICAS; i++) {
        sl_fabric_request_close(&asked->replicas[i].request);
    }
    sl_asked_give(&r->unused, asked_inout);
}

static enum sl_status ask(struct sl_source *source, struct sl_near_request *request, size_t request_bytes,
                          size_t answer_capacity, int64_t deadline_ns, struct sl_asked **asked_out,
                          struct sl_error *err) {
    struct sl_remote *r = (struct sl_remote *)source;
    struct sl_remote_share *share = share_of(r, request);
    SL_FAIL_IF(!share, err, SL_ERR_INVALID, "offloaded heads %u to %u are in no share", request->first_offloaded_head,
               request->first_offloaded_head + request->n_offloaded_heads - 1);
    struct sl_asked *asked = sl_asked_take(&r->unused, request, request_bytes, answer_capacity);
    SL_FAIL_IF(!asked, err, SL_ERR_EXHAUSTED, "no memory for a question of %zu bytes", request_bytes);
    asked->share = share;
    asked->asked_ns = sl_now_ns();
    asked->deadline_ns = deadline_ns;
    struct sl_error why;
    if (!sl_remote_begin_read(r, asked) &&
        ask_replica(r, asked, share->first, &why) == SL_OK) { // otherwise wait() tries again
        memcpy(request, asked->request, sizeof *request);
    }
    *asked_out = asked;
    return SL_OK;
}

// --- waiting ---------------------------------------------------------------------------------------------------------

/*
 * Maps a refusal of a store that cannot answer although another might: it does not hold the remote KV any more, is
 * overloaded, or is about to stop. Any other refusal concerns the question, and is the answer.
 */
static enum sl_status check_refusal(const struct sl_asked *asked, int i, size_t bytes, struct sl_error *err) {
    struct sl_near_request request;
    struct sl_near_answer head;
    struct sl_error said = {0};
    const uint8_t *body;
    memcpy(&request, asked->request, sizeof request);
    enum sl_status status = sl_near_check(&request, asked->replicas[i].answer, bytes, &head, &body, &said);
    if (status != SL_ERR_NOT_FOUND && status != SL_ERR_EXHAUSTED && status != SL_ERR_PEER_LOST) {
        return SL_OK;
    }
    *err = said;
    return status;
}

// Polls one store's answer until until_ns. SL_AGAIN: none yet.
static enum sl_status look(struct sl_remote *r, struct sl_asked *asked, int i, int64_t until_ns, size_t *bytes_out,
                           struct sl_error *err) {
    struct sl_replica *replica = &asked->share->replicas[i];
    enum sl_status status = SL_OK;
    if (replica->is_gone) {
        return SL_ERR_PEER_STALE;
    }
    if (!asked->replicas[i].request) {
        status = ask_replica(r, asked, i, err);
    }
    SL_THEN(status, sl_fabric_request_wait(asked->replicas[i].request, until_ns, bytes_out, err));
    SL_THEN(status, check_refusal(asked, i, *bytes_out, err));
    if (status < SL_OK) {
        sl_fabric_request_close(&asked->replicas[i].request);
        replica->is_gone = !sl_ask_may_pass(status);
        asked->replicas[i].was_cut |= status == SL_ERR_PEER_LOST;
        if (status == SL_ERR_PEER_LOST && asked->replicas[i].n_connections == replica->n_connections) {
            sl_connections_give_lost(r->connections, &replica->connection);
        }
    }
    return status;
}

static enum sl_status take(struct sl_remote *r, struct sl_asked *asked, int i, size_t bytes, const void **answer_out,
                           size_t *bytes_out) {
    struct sl_near_request head;
    memcpy(&head, asked->request, sizeof head);
    if (is_delta(&head)) {
        r->holder[head.first_offloaded_head] = (int8_t)i;
    }
    struct sl_replica *replica = &asked->share->replicas[i];
    if (asked->replicas[i].request && asked->replicas[i].sent_ns > replica->renewed_ns) {
        replica->renewed_ns = asked->replicas[i].sent_ns;
    }
    asked->share->first = i;
    r->base.bytes_received += bytes;
    *answer_out = asked->replicas[i].answer;
    *bytes_out = bytes;
    return SL_OK;
}

static enum sl_status nobody(const struct sl_asked *asked, enum sl_status status, const struct sl_error *why,
                             struct sl_error *err) {
    const struct sl_remote_share *share = asked->share;
    bool two = share->n_replicas > 1;
    long long ms = (long long)((sl_now_ns() - asked->asked_ns) / SL_NS_PER_MS);
    sl_fail(err, status, "store %s%s%s: no answer in %lld ms%s%s", share->replicas[share->first].store,
            two ? " nor " : "", two ? share->replicas[1 - share->first].store : "", ms, why->text[0] ? ": " : "",
            why->text);
    for (int i = 0; i < share->n_replicas; i++) {
        sl_error_blame(err, SL_REASON_STORE, share->replicas[i].store);
    }
    return status;
}

static void sleep_ns(int64_t ns) {
    struct timespec pause = {.tv_sec = ns / SL_NS_PER_S, .tv_nsec = ns % SL_NS_PER_S};
    nanosleep(&pause, NULL);
}

static enum sl_status wait(struct sl_source *source, struct sl_asked *asked, const void **answer_out, size_t *bytes_out,
                           struct sl_error *err) {
    struct sl_remote *r = (struct sl_remote *)source;
    const struct sl_remote_share *share = asked->share;
    int64_t half_ns = sl_asked_half(asked);
    struct sl_error why = {0};
    enum sl_status last = SL_ERR_DEADLINE;
    if (asked->fetch && sl_remote_end_read(r, asked) == SL_OK) {
        return take(r, asked, asked->reads, asked->read_bytes, answer_out, bytes_out);
    }
    for (bool both = false;;) { // both: the second store is asked as well
        int n_waiting = 0, n_gone = 0, n_lost = 0, n_looked = both ? share->n_replicas : 1;
        for (int turn = 0; turn < n_looked; turn++) {
            int i = turn == 0 ? share->first : 1 - share->first;
            int64_t until = both ? sl_now_ns() + TURN_NS : share->n_replicas > 1 ? half_ns : asked->deadline_ns;
            size_t bytes;
            struct sl_error said = {0};
            enum sl_status status =
                look(r, asked, i, until < asked->deadline_ns ? until : asked->deadline_ns, &bytes, &said);
            if (status == SL_OK) {
                return take(r, asked, i, bytes, answer_out, bytes_out);
            }
            n_waiting += asked->replicas[i].request != NULL;
            n_gone += share->replicas[i].is_gone;
            n_lost += share->replicas[i].is_gone || asked->replicas[i].was_cut;
            if (said.text[0] && (status != SL_ERR_DEADLINE || !why.text[0])) { // a reason is more useful than a timeout
                why = said;
            }
            last = status == SL_ERR_EXHAUSTED ? status : last;
        }
        int64_t now = sl_now_ns();
        if (n_gone == share->n_replicas || now >= asked->deadline_ns) {
            enum sl_status status = n_gone == share->n_replicas   ? SL_ERR_PEER_STALE
                                    : n_lost == share->n_replicas ? SL_ERR_PEER_LOST
                                                                  : last;
            return nobody(asked, status, &why, err);
        }
        bool was_both = both;
        both |= share->n_replicas > 1 && (n_waiting == 0 || now >= half_ns);
        if (n_waiting == 0 &&
            both == was_both) { // every connection is cut, or the store is too busy to take a question
            sleep_ns(now + TURN_NS < asked->deadline_ns ? TURN_NS : asked->deadline_ns - now);
        }
    }
}

static bool is_there(struct sl_source *source, struct sl_asked *asked) {
    struct sl_error why;
    (void)source;
    if (asked->fetch) {
        return sl_fetch_wait(asked->fetch, 0, &why) == SL_OK;
    }
    for (int i = 0; i < SL_MAX_REPLICAS; i++) {
        if (asked->replicas[i].request && sl_fabric_request_is_done(asked->replicas[i].request)) {
            return true;
        }
    }
    return false;
}

static const struct sl_source_ops remote_ops = {ask, wait, is_there, forget, destroy};

// --- creation --------------------------------------------------------------------------------------------------------

static enum sl_status add_replica(struct sl_remote *r, const Sluice__V1__AnnexShare *remote_kv,
                                  const struct sl_plan *plan, struct sl_error *err) {
    const Sluice__V1__StoreShare *share = remote_kv->share;
    if (!share || share->first_lane < 0 || share->n_lanes < 1 ||
        share->first_lane > r->n_offloaded_heads - share->n_lanes) {
        return sl_fail(err, SL_ERR_INVALID, "remote KV: offloaded heads %d and %d more: the session has %d",
                       share ? share->first_lane : 0, share ? share->n_lanes : 0, r->n_offloaded_heads);
    }
    int s = 0; // position that keeps the order ascending
    while (s < r->base.n_shares && r->base.shares[s].first_offloaded_head < share->first_lane) {
        s++;
    }
    if (s == r->base.n_shares || r->base.shares[s].first_offloaded_head != share->first_lane) {
        SL_FAIL_IF(r->base.n_shares == SL_MAX_SHARES, err, SL_ERR_UNSUPPORTED, "remote KV: more than %d shares",
                   SL_MAX_SHARES);
        size_t n_behind = (size_t)(r->base.n_shares++ - s);
        memmove(&r->shares[s + 1], &r->shares[s], n_behind * sizeof r->shares[s]);
        memmove(&r->base.shares[s + 1], &r->base.shares[s], n_behind * sizeof r->base.shares[s]);
        r->shares[s] = (struct sl_remote_share){0};
        r->base.shares[s].first_offloaded_head = share->first_lane;
        r->base.shares[s].n_offloaded_heads = share->n_lanes;
    }
    struct sl_remote_share *mine = &r->shares[s];
    SL_FAIL_IF(r->base.shares[s].n_offloaded_heads != share->n_lanes || mine->n_replicas == SL_MAX_REPLICAS, err,
               SL_ERR_INVALID, "remote KV: shares of offloaded heads from %d on that are not %d replicas of each other",
               share->first_lane, SL_MAX_REPLICAS);
    struct sl_replica *replica = &mine->replicas[mine->n_replicas];
    replica->store = strdup(share->address);
    replica->address = strdup(remote_kv->fabric_address);
    replica->epoch = remote_kv->fabric_epoch;
    replica->remote_kv_id = remote_kv->annex_id;
    mine->n_replicas++;
    SL_FAIL_IF(!sl_replica_set_up_reads(replica, remote_kv, plan) || !replica->store || !replica->address, err,
               SL_ERR_EXHAUSTED, "remote KV: out of memory");
    if (mine->n_replicas == SL_MAX_REPLICAS && share->replica == 0) { // replica 0 is asked first, in whatever order
                                                                      // they are added
        mine->first = SL_MAX_REPLICAS - 1;
    }
    return SL_OK;
}

static enum sl_status check_cover(const struct sl_remote *r, struct sl_error *err) {
    int next = 0, s = 0;
    while (s < r->base.n_shares && r->base.shares[s].first_offloaded_head == next) {
        next += r->base.shares[s++].n_offloaded_heads;
    }
    return s == r->base.n_shares && next == r->n_offloaded_heads
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "remote KV: the shares do not cover each of the %d offloaded heads once",
                         r->n_offloaded_heads);
}

enum sl_status sl_remote_source_create(struct sl_connections *connections, Sluice__V1__AnnexShare *const *shares,
                                       size_t n_shares, const struct sl_plan *plan, struct sl_source **source_out,
                                       struct sl_error *err) {
    struct sl_offloaded_heads offloaded_heads;
    sl_offloaded_heads_init(&offloaded_heads, &plan->recipe.offload, &plan->geometry);
    int n_offloaded_heads = sl_offloaded_heads_count(&offloaded_heads);
    struct sl_remote *r = calloc(1, sizeof *r);
    SL_FAIL_OR(!r || !(r->holder = malloc((size_t)n_offloaded_heads)), free(r), err, SL_ERR_EXHAUSTED,
               "remote KV: out of memory");
    r->base.ops = &remote_ops;
    r->connections = connections;
    r->n_offloaded_heads = n_offloaded_heads;
    r->n_prompt = sl_plan_offloaded_slots(plan, plan->n_prompt);
    memset(r->holder, -1, (size_t)n_offloaded_heads);
    enum sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < n_shares; i++) {
        status = add_replica(r, shares[i], plan, err);
    }
    SL_THEN(status, check_cover(r, err));
    if (status != SL_OK) {
        struct sl_source *source = &r->base;
        destroy(&source);
        return status;
    }
    *source_out = &r->base;
    return SL_OK;
}
