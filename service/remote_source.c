// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: offloaded layers in kvstores, asked over lines. See remote_source.h.
 *
 * Design: of the two stores that may hold a share one is asked first: who answered last. The other is asked when half of
 *         the time has gone, or at once when the line to the first is cut; whoever answers first is taken. A line that is
 *         cut is opened anew, because a store that was away for a moment still has the annex, until the time is over.
 *         Answers land in buffers that are used again: a step allocates nothing once the first few have run.
 * Delta:  a store remembers what it has sent, and knows nothing of what another one sent: `holder` says whose answer was
 *         the last to be used for some lanes, and whoever else is asked about them begins anew (SL_NEAR_RESET).
 * Reads:  of retrieve=pull, from whom would be asked first, into the buffer of its answer. They get half of the time, too;
 *         where one fails the question is asked as if it never had been. A store's map is asked for when something could
 *         have been read, and is not waited for. Reads renew no lease, and what is read from an annex without one may be
 *         another's: a question goes out whenever a third of the lease has gone without, and what comes behind its end is
 *         not used.
 */
#include "service/remote_source.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "retrieve/lanes.h"
#include "service/annex_map.h"

// --- shares ----------------------------------------------------------------------------------------------------------

#define MAX_REPLICAS 2
#define RETRY_NS     (100 * SL_NS_PER_MS) // between two attempts to open a line that is cut
#define TURN_NS      (SL_NS_PER_MS)       // that one of two stores is waited for before the other is looked at
#define MAP_MS       2000

struct replica {
    char *store, *address; // of its gRPC, for people; of its fabric
    uint64_t epoch, annex_id;
    struct sl_line *line; // NULL while it is cut
    int n_lines;          // that have been opened
    bool is_gone; // another process is there now, one that does not answer such questions, or holds no such annex
    // Reads:
    bool is_read;    // retrieve=pull, and nothing speaks against it
    uint8_t *window; // its ticket
    size_t window_bytes;
    int64_t lease_ms, renewed_ns; // the annex lives so long from then on, at least
    struct sl_annex_map map;
    struct sl_ask *map_ask; // under way
    void *map_answer;
};

struct share {
    int n_replicas, first; // first: who is asked first
    struct replica replicas[MAX_REPLICAS];
};

struct remote {
    struct sl_source base;
    struct sl_lines *lines;
    struct share shares[SL_MAX_SHARES];
    int8_t *holder; // [n_lanes] by first lane of a TOPK request: whose answer was used last; -1: nobody's
    int n_lanes;
    int64_t n_prompt;
    struct sl_fetch_range *ranges; // [ranges_cap] scratch
    size_t ranges_cap;
    struct sl_asked *unused;
};

struct sl_asked {
    struct sl_asked *next; // in remote.unused
    struct share *share;
    char *request;
    size_t request_bytes, request_cap;
    int64_t asked_ns, deadline_ns;
    size_t capacity;        // of an answer
    struct sl_fetch *fetch; // into the answer of replica `reads`: asked for only if that fails
    int reads;
    size_t read_bytes; // of the answer
    struct {
        struct sl_ask *ask;
        void *answer;
        size_t cap;
        int64_t sent_ns;
        int n_lines;      // of the replica: by which line it was asked
        int64_t retry_ns; // not asked again before
        bool was_cut;     // its line, while it was asked
    } replicas[MAX_REPLICAS];
};

static void destroy(struct sl_source **source) {
    struct remote *r = (struct remote *)*source;
    if (!r) {
        return;
    }
    for (struct sl_asked *asked = r->unused, *next; asked; asked = next) {
        next = asked->next;
        for (int i = 0; i < MAX_REPLICAS; i++) {
            free(asked->replicas[i].answer);
        }
        free(asked->request);
        free(asked);
    }
    for (int s = 0; s < SL_MAX_SHARES; s++) {
        for (int i = 0; i < r->shares[s].n_replicas; i++) {
            struct replica *replica = &r->shares[s].replicas[i];
            sl_ask_close(&replica->map_ask);
            sl_lines_give(r->lines, &replica->line);
            free(replica->map_answer);
            free(replica->map.stretches);
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

// One with room, best without growing: the smallest that has enough, else the largest.
static struct sl_asked *take_unused(struct remote *r, size_t capacity) {
    struct sl_asked **best = NULL;
    for (struct sl_asked **at = &r->unused; *at; at = &(*at)->next) {
        size_t cap = (*at)->replicas[0].cap, best_cap = best ? (*best)->replicas[0].cap : 0;
        bool fits = cap >= capacity, best_fits = best && best_cap >= capacity;
        if (!best || (fits && (!best_fits || cap < best_cap)) || (!fits && !best_fits && cap > best_cap)) {
            best = at;
        }
    }
    if (!best) {
        return calloc(1, sizeof(struct sl_asked));
    }
    struct sl_asked *asked = *best;
    *best = asked->next;
    return asked;
}

static bool make_room(struct sl_asked *asked, int replica) {
    if (asked->replicas[replica].cap < asked->capacity) {
        free(asked->replicas[replica].answer);
        asked->replicas[replica].cap = (asked->capacity + 63) / 64 * 64;
        asked->replicas[replica].answer = aligned_alloc(64, asked->replicas[replica].cap);
        if (!asked->replicas[replica].answer) {
            asked->replicas[replica].cap = 0;
        }
    }
    return asked->replicas[replica].cap > 0;
}

static bool is_delta(const struct sl_near_request *head) {
    return head->kind == SL_NEAR_TOPK && !(head->flags & SL_NEAR_PROBE);
}

// Until then who is asked first is waited for alone.
static int64_t half_of(const struct sl_asked *asked) {
    return asked->asked_ns + (asked->deadline_ns - asked->asked_ns) / 2;
}

// Nothing was wrong with the question: the same store may answer it a little later.
static bool may_pass(enum sl_status status) {
    return status == SL_ERR_DEADLINE || status == SL_ERR_PEER_LOST || status == SL_ERR_EXHAUSTED;
}

// Ask one of the stores that hold the share; a line that is cut is opened first. SL_AGAIN: not so soon again.
static enum sl_status ask_replica(struct remote *r, struct sl_asked *asked, int i, struct sl_error *err) {
    struct replica *replica = &asked->share->replicas[i];
    int64_t now = sl_now_ns();
    if (now < asked->replicas[i].retry_ns) {
        return SL_AGAIN;
    }
    asked->replicas[i].retry_ns = now + RETRY_NS;
    if (!make_room(asked, i)) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an answer of %zu bytes", asked->capacity);
    }
    if (!replica->line) {
        enum sl_status status = sl_lines_take(r->lines, replica->address, replica->epoch, &replica->line, err);
        if (status != SL_OK) {
            return status;
        }
        replica->n_lines++;
    }
    asked->replicas[i].n_lines = replica->n_lines;
    asked->replicas[i].sent_ns = now;
    struct sl_near_request head;
    memcpy(&head, asked->request, sizeof head);
    head.annex_id = replica->annex_id;
    if (is_delta(&head) && r->holder[head.first_lane] != i) {
        head.flags |= SL_NEAR_RESET;
    }
    memcpy(asked->request, &head, sizeof head);
    r->base.n_asks++;
    r->base.n_replica_asks += i != asked->share->first;
    r->base.bytes_sent += asked->request_bytes;
    return sl_ask_open(replica->line, asked->request, asked->request_bytes, asked->replicas[i].answer, asked->capacity,
                       asked->deadline_ns, &asked->replicas[i].ask, err);
}

// --- reading ---------------------------------------------------------------------------------------------------------

// By such lines windows are mapped or read by hardware; by others the peer's progress thread would send as it does answers.
static bool reads_well(const struct sl_line *line) {
    const char *transport = sl_line_transport(line);
    return strcmp(transport, "shm") == 0 || strcmp(transport, "rdma") == 0;
}

static void read_no_more(struct replica *replica, const struct sl_error *why) {
    sl_log_warn("retrieve", "store %s is asked for what could be read there: %s", replica->store, why->text);
    replica->is_read = false;
}

// Whether it is known where the store's stretches lie; otherwise it is asked for that, and the answer looked at next time.
static bool has_map(struct remote *r, struct replica *replica) {
    if (replica->map.stretches) {
        return true;
    }
    struct sl_near_request request = sl_annex_map_request(&replica->map, replica->annex_id);
    size_t capacity = sl_annex_map_answer_limit(r->n_prompt), bytes;
    struct sl_error why = {0};
    enum sl_status status = SL_OK;
    if (!replica->map_ask) {
        if (!replica->map_answer && !(replica->map_answer = aligned_alloc(64, (capacity + 63) / 64 * 64))) {
            status = sl_fail(&why, SL_ERR_EXHAUSTED, "no memory for a map of %zu bytes", capacity);
        } else {
            status = sl_ask_open(replica->line, &request, sizeof request, replica->map_answer, capacity,
                                 sl_deadline_in_ms(MAP_MS), &replica->map_ask, &why);
        }
        if (status != SL_OK) {
            read_no_more(replica, &why);
        }
        return false;
    }
    status = sl_ask_wait(replica->map_ask, 0, &bytes, &why);
    if (status == SL_AGAIN) {
        return false;
    }
    sl_ask_close(&replica->map_ask);
    status = status == SL_OK ? sl_annex_map_read(&replica->map, &request, replica->map_answer, bytes, r->n_prompt, &why)
                             : status;
    if (status != SL_OK && !may_pass(status)) {
        read_no_more(replica, &why);
    }
    return status == SL_OK;
}

// The ranges of a request's answer, in r->ranges. 0: it must be asked for.
static size_t list_ranges(struct remote *r, const struct sl_annex_map *map, const struct sl_near_request *head,
                          struct sl_asked *asked, int i) {
    const char *body = asked->request + sizeof *head;
    size_t n = sl_annex_map_n_ranges(map, head, body);
    if (n > r->ranges_cap) {
        free(r->ranges);
        r->ranges = malloc(n * sizeof *r->ranges);
        r->ranges_cap = r->ranges ? n : 0;
    }
    if (n == 0 || n > r->ranges_cap || !make_room(asked, i)) {
        return 0;
    }
    asked->read_bytes = sl_annex_map_answer(map, head, body, asked->replicas[i].answer, r->ranges);
    return n;
}

static bool begin_read(struct remote *r, struct sl_asked *asked) {
    int i = asked->share->first;
    struct replica *replica = &asked->share->replicas[i];
    struct sl_near_request head;
    memcpy(&head, asked->request, sizeof head);
    if (!replica->is_read || !replica->line || !reads_well(replica->line) ||
        (head.kind != SL_NEAR_ROWS && head.kind != SL_NEAR_CHANNELS) || !has_map(r, replica) ||
        asked->asked_ns - replica->renewed_ns > replica->lease_ms * SL_NS_PER_MS / 3) {
        return false;
    }
    size_t n = list_ranges(r, &replica->map, &head, asked, i);
    if (n == 0) {
        return false;
    }
    struct sl_error why = {0};
    asked->reads = i;
    enum sl_status status = sl_fetch_open(replica->line, replica->window, replica->window_bytes, r->ranges, n,
                                          half_of(asked), &asked->fetch, &why);
    if (status != SL_OK && !may_pass(status)) {
        read_no_more(replica, &why);
    }
    return status == SL_OK;
}

// SL_OK: everything has been read while the annex had its lease. Else it is as if it had never begun.
static enum sl_status end_read(struct remote *r, struct sl_asked *asked) {
    struct replica *replica = &asked->share->replicas[asked->reads];
    struct sl_error why = {0};
    enum sl_status status = sl_fetch_wait(asked->fetch, half_of(asked), &why);
    sl_fetch_close(&asked->fetch);
    if (status == SL_OK && sl_now_ns() - replica->renewed_ns >= replica->lease_ms * SL_NS_PER_MS) {
        status = SL_ERR_DEADLINE;
    }
    if (status < SL_OK && !may_pass(status)) {
        read_no_more(replica, &why);
    }
    r->base.n_reads += status == SL_OK;
    return status;
}

static struct share *share_of(struct remote *r, const struct sl_near_request *head) {
    for (int s = 0; s < r->base.n_shares; s++) {
        int64_t first = r->base.shares[s].first_lane, last = first + r->base.shares[s].n_lanes;
        if (head->first_lane >= first && (int64_t)head->first_lane + head->n_lanes <= last) {
            return &r->shares[s];
        }
    }
    return NULL;
}

static void forget(struct sl_source *source, struct sl_asked **asked_inout) {
    struct remote *r = (struct remote *)source;
    struct sl_asked *asked = *asked_inout;
    if (!asked) {
        return;
    }
    sl_fetch_close(&asked->fetch);
    for (int i = 0; i < MAX_REPLICAS; i++) {
        sl_ask_close(&asked->replicas[i].ask);
    }
    asked->next = r->unused;
    r->unused = asked;
    *asked_inout = NULL;
}

static enum sl_status ask(struct sl_source *source, struct sl_near_request *request, size_t request_bytes,
                          size_t answer_capacity, int64_t deadline_ns, struct sl_asked **asked_out,
                          struct sl_error *err) {
    struct remote *r = (struct remote *)source;
    struct share *share = share_of(r, request);
    if (!share) {
        return sl_fail(err, SL_ERR_INVALID, "lanes %u to %u are in no share", request->first_lane,
                       request->first_lane + request->n_lanes - 1);
    }
    struct sl_asked *asked = take_unused(r, answer_capacity);
    if (asked && asked->request_cap < request_bytes) {
        free(asked->request);
        asked->request = malloc(request_bytes);
        asked->request_cap = asked->request ? request_bytes : 0;
    }
    if (!asked || asked->request_cap < request_bytes) {
        forget(source, &asked);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a question of %zu bytes", request_bytes);
    }
    memcpy(asked->request, request, request_bytes);
    asked->share = share;
    asked->request_bytes = request_bytes;
    asked->capacity = answer_capacity;
    asked->asked_ns = sl_now_ns();
    asked->deadline_ns = deadline_ns;
    for (int i = 0; i < MAX_REPLICAS; i++) {
        asked->replicas[i].retry_ns = 0;
        asked->replicas[i].was_cut = false;
    }
    struct sl_error why;
    if (!begin_read(r, asked) && ask_replica(r, asked, share->first, &why) == SL_OK) { // otherwise wait() tries again
        memcpy(request, asked->request, sizeof *request);
    }
    *asked_out = asked;
    return SL_OK;
}

// --- waiting ---------------------------------------------------------------------------------------------------------

/*
 * What a store says that cannot answer, though another might: it does not hold the annex any more, has too much to do, or is
 * about to stop. Any other refusal is about the question, and is the answer.
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

// Look at one store's answer until until_ns. SL_AGAIN: none yet.
static enum sl_status look(struct remote *r, struct sl_asked *asked, int i, int64_t until_ns, size_t *bytes_out,
                           struct sl_error *err) {
    struct replica *replica = &asked->share->replicas[i];
    enum sl_status status = SL_OK;
    if (replica->is_gone) {
        return SL_ERR_PEER_STALE;
    }
    if (!asked->replicas[i].ask) {
        status = ask_replica(r, asked, i, err);
    }
    if (status == SL_OK) {
        status = sl_ask_wait(asked->replicas[i].ask, until_ns, bytes_out, err);
    }
    if (status == SL_OK) {
        status = check_refusal(asked, i, *bytes_out, err);
    }
    if (status < SL_OK) {
        sl_ask_close(&asked->replicas[i].ask);
        replica->is_gone = !may_pass(status);
        asked->replicas[i].was_cut |= status == SL_ERR_PEER_LOST;
        if (status == SL_ERR_PEER_LOST && asked->replicas[i].n_lines == replica->n_lines) {
            sl_lines_give_cut(r->lines, &replica->line);
        }
    }
    return status;
}

static enum sl_status take(struct remote *r, struct sl_asked *asked, int i, size_t bytes, const void **answer_out,
                           size_t *bytes_out) {
    struct sl_near_request head;
    memcpy(&head, asked->request, sizeof head);
    if (is_delta(&head)) {
        r->holder[head.first_lane] = (int8_t)i;
    }
    struct replica *replica = &asked->share->replicas[i];
    if (asked->replicas[i].ask && asked->replicas[i].sent_ns > replica->renewed_ns) {
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
    const struct share *share = asked->share;
    bool two = share->n_replicas > 1;
    long long ms = (long long)((sl_now_ns() - asked->asked_ns) / SL_NS_PER_MS);
    return sl_fail(err, status, "store %s%s%s: no answer in %lld ms%s%s", share->replicas[share->first].store,
                   two ? " nor " : "", two ? share->replicas[1 - share->first].store : "", ms, why->text[0] ? ": " : "",
                   why->text);
}

static void sleep_ns(int64_t ns) {
    struct timespec pause = {.tv_sec = ns / SL_NS_PER_S, .tv_nsec = ns % SL_NS_PER_S};
    nanosleep(&pause, NULL);
}

static enum sl_status wait(struct sl_source *source, struct sl_asked *asked, const void **answer_out, size_t *bytes_out,
                           struct sl_error *err) {
    struct remote *r = (struct remote *)source;
    const struct share *share = asked->share;
    int64_t half_ns = half_of(asked);
    struct sl_error why = {0};
    enum sl_status last = SL_ERR_DEADLINE;
    if (asked->fetch && end_read(r, asked) == SL_OK) {
        return take(r, asked, asked->reads, asked->read_bytes, answer_out, bytes_out);
    }
    for (bool both = false;;) { // the second store is asked as well
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
            n_waiting += asked->replicas[i].ask != NULL;
            n_gone += share->replicas[i].is_gone;
            n_lost += share->replicas[i].is_gone || asked->replicas[i].was_cut;
            if (said.text[0] && (status != SL_ERR_DEADLINE || !why.text[0])) { // a reason says more than the time
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
        if (n_waiting == 0 && both == was_both) { // every line is cut, or the store is too busy to take a question
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
    for (int i = 0; i < MAX_REPLICAS; i++) {
        if (asked->replicas[i].ask && sl_ask_is_done(asked->replicas[i].ask)) {
            return true;
        }
    }
    return false;
}

static const struct sl_source_ops remote_ops = {ask, wait, is_there, forget, destroy};

// --- creation --------------------------------------------------------------------------------------------------------

// What reads of a replica need to know. It is asked for everything where they would not be true or not be of use.
static bool set_up_reads(struct replica *replica, const Sluice__V1__AnnexShare *annex, const struct sl_plan *plan) {
    int layer = 0;
    while (!sl_layers_has(&plan->recipe.offload, layer)) {
        layer++;
    }
    replica->map = (struct sl_annex_map){.first_lane = annex->share->first_lane,
                                         .n_lanes = annex->share->n_lanes,
                                         .work = plan->work[layer], // of all: compress/recipe.h
                                         .scan = sl_plan_scan_format(plan)};
    replica->lease_ms = annex->lease_ms;
    replica->window_bytes = annex->window.len;
    replica->is_read =
        plan->recipe.retrieve == SL_RETRIEVE_PULL && annex->lease_ms > 0 && annex->window.len > 0 &&
        sl_page_layout_init(&replica->map.kept, sl_plan_row_format(plan), plan->geometry.head_dim, 0, false) == SL_OK;
    replica->window = malloc(annex->window.len + 1);
    if (replica->window && annex->window.len > 0) {
        memcpy(replica->window, annex->window.data, annex->window.len);
    }
    return replica->window != NULL;
}

static enum sl_status add_replica(struct remote *r, const Sluice__V1__AnnexShare *annex, const struct sl_plan *plan,
                                  struct sl_error *err) {
    const Sluice__V1__StoreShare *share = annex->share;
    if (!share || share->first_lane < 0 || share->n_lanes < 1 || share->first_lane > r->n_lanes - share->n_lanes) {
        return sl_fail(err, SL_ERR_INVALID, "annex: lanes %d and %d more: the session has %d",
                       share ? share->first_lane : 0, share ? share->n_lanes : 0, r->n_lanes);
    }
    int s = 0; // ascending
    while (s < r->base.n_shares && r->base.shares[s].first_lane < share->first_lane) {
        s++;
    }
    if (s == r->base.n_shares || r->base.shares[s].first_lane != share->first_lane) {
        if (r->base.n_shares == SL_MAX_SHARES) {
            return sl_fail(err, SL_ERR_UNSUPPORTED, "annex: more than %d shares", SL_MAX_SHARES);
        }
        size_t n_behind = (size_t)(r->base.n_shares++ - s);
        memmove(&r->shares[s + 1], &r->shares[s], n_behind * sizeof r->shares[s]);
        memmove(&r->base.shares[s + 1], &r->base.shares[s], n_behind * sizeof r->base.shares[s]);
        r->shares[s] = (struct share){0};
        r->base.shares[s].first_lane = share->first_lane;
        r->base.shares[s].n_lanes = share->n_lanes;
    }
    struct share *mine = &r->shares[s];
    if (r->base.shares[s].n_lanes != share->n_lanes || mine->n_replicas == MAX_REPLICAS) {
        return sl_fail(err, SL_ERR_INVALID, "annex: shares of lanes from %d on that are not %d replicas of each other",
                       share->first_lane, MAX_REPLICAS);
    }
    struct replica *replica = &mine->replicas[mine->n_replicas];
    replica->store = strdup(share->address);
    replica->address = strdup(annex->fabric_address);
    replica->epoch = annex->fabric_epoch;
    replica->annex_id = annex->annex_id;
    mine->n_replicas++;
    if (!set_up_reads(replica, annex, plan) || !replica->store || !replica->address) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "annex: out of memory");
    }
    if (mine->n_replicas == MAX_REPLICAS && share->replica == 0) { // 0 is asked first, whichever comes first
        mine->first = MAX_REPLICAS - 1;
    }
    return SL_OK;
}

static enum sl_status check_cover(const struct remote *r, struct sl_error *err) {
    int next = 0, s = 0;
    while (s < r->base.n_shares && r->base.shares[s].first_lane == next) {
        next += r->base.shares[s++].n_lanes;
    }
    return s == r->base.n_shares && next == r->n_lanes
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "annex: the shares do not cover each of the %d lanes once", r->n_lanes);
}

enum sl_status sl_remote_source_create(struct sl_lines *lines, Sluice__V1__AnnexShare *const *shares, size_t n_shares,
                                       const struct sl_plan *plan, struct sl_source **source_out,
                                       struct sl_error *err) {
    struct sl_lanes lanes;
    sl_lanes_init(&lanes, &plan->recipe.offload, &plan->geometry);
    int n_lanes = sl_lanes_count(&lanes);
    struct remote *r = calloc(1, sizeof *r);
    if (!r || !(r->holder = malloc((size_t)n_lanes))) {
        free(r);
        return sl_fail(err, SL_ERR_EXHAUSTED, "annex: out of memory");
    }
    r->base.ops = &remote_ops;
    r->lines = lines;
    r->n_lanes = n_lanes;
    r->n_prompt = plan->n_prompt;
    memset(r->holder, -1, (size_t)n_lanes);
    enum sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < n_shares; i++) {
        status = add_replica(r, shares[i], plan, err);
    }
    if (status == SL_OK) {
        status = check_cover(r, err);
    }
    if (status != SL_OK) {
        struct sl_source *source = &r->base;
        destroy(&source);
        return status;
    }
    *source_out = &r->base;
    return SL_OK;
}
