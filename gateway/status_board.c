// SPDX-License-Identifier: Apache-2.0
#include "gateway/status_board.h"

#include <stdlib.h>
#include <string.h>

#include "base/locked.h"
#include "base/loop.h"
#include "gateway/status_json.h"

enum {
    MAX_WAITING = 256,
    ASK_MS = 2000, // for all calls of one query together
    MAX_RUNNING = 200,
    MAX_QUEUED = 100,
    MAX_ENDED = 50,
};

#define QUEUED (1U << SLUICE__V1__JOB_STATE__QUEUED)
#define ENDED                                                                                                          \
    (1U << SLUICE__V1__JOB_STATE__DONE | 1U << SLUICE__V1__JOB_STATE__FAILED | 1U << SLUICE__V1__JOB_STATE__CANCELLED)
#define RUNNING                                                                                                        \
    (1U << SLUICE__V1__JOB_STATE__PREFILLING | 1U << SLUICE__V1__JOB_STATE__SHIPPING |                                 \
     1U << SLUICE__V1__JOB_STATE__DECODING)

struct sl_snapshot {
    struct sl_board *board;
    struct sl_client *client;
    bool shows_workers;
    struct MHD_Connection *connection;
    // Written under the board's mutex until the connection is resumed.
    char *text; // malloc'd
    struct sl_refusal refusal;
    struct sl_snapshot *next;
};

struct sl_board {
    struct sl_served *served;
    struct sl_loop loop;         // its mutex guards the fields below
    struct sl_snapshot *waiting; // list of queries, oldest first
    int n_waiting;
    int64_t moved_ns; // time when a query was last answered, or the first one came
};

// ---- asking ---------------------------------------------------------------------------------------------------------

struct replies {
    Sluice__V1__ListReply *running, *queued, *ended;
    Sluice__V1__WorkersReply *workers;
};

static void free_replies(struct replies *replies) {
    Sluice__V1__ListReply *lists[] = {replies->running, replies->queued, replies->ended};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        sluice__v1__list_reply__free_unpacked(lists[i], NULL);
    }
    sluice__v1__workers_reply__free_unpacked(replies->workers, NULL);
    *replies = (struct replies){0};
}

static enum sl_status ask(struct sl_client *client, bool shows_workers, struct replies *replies, struct sl_error *err) {
    int64_t deadline_ns = sl_deadline_in_ms(ASK_MS);
    // Asked in the order in which jobs change state, so that no job is missed.
    enum sl_status status = sl_client_list(client, QUEUED, MAX_QUEUED, deadline_ns, &replies->queued, err);
    SL_THEN(status, sl_client_list(client, RUNNING, MAX_RUNNING, deadline_ns, &replies->running, err));
    SL_THEN(status, sl_client_list(client, ENDED, MAX_ENDED, deadline_ns, &replies->ended, err));
    if (status == SL_OK && shows_workers &&
        replies->running->everybody) { // asked only with the right to see all, because the coordinator logs refusals
        status = sl_client_workers(client, deadline_ns, &replies->workers, err);
    }
    return status;
}

// Returns true if the coordinator is away, or so busy that it seems to be.
static bool is_away(enum sl_status status) {
    return status == SL_ERR_PEER_LOST || status == SL_ERR_PEER_STALE || status == SL_ERR_DEADLINE;
}

// Returns the text for this client, or NULL and *refusal.
static char *look_up(struct sl_board *board, struct sl_client *client, bool shows_workers, struct sl_refusal *refusal) {
    struct sl_served_model model = sl_served_model(board->served);
    struct replies replies = {0};
    struct sl_error err = {0};
    enum sl_status status = SL_ERR_PEER_LOST;
    if (model.answers) {
        status = ask(client, shows_workers, &replies, &err);
    }
    char *text = NULL;
    if (status == SL_OK || is_away(status)) {
        if (status != SL_OK) {
            free_replies(&replies);
        }
        struct sl_status_input input = {.model = &model,
                                        .why = status == SL_OK ? ""
                                               : model.answers ? err.text
                                                               : model.why,
                                        .running = replies.running,
                                        .queued = replies.queued,
                                        .ended = replies.ended,
                                        .workers = replies.workers,
                                        .now_ms = sl_wall_ms()};
        text = sl_status_json(&input);
        sl_refuse(refusal, 500, "no memory for the cluster's state");
    } else {
        sl_refuse_error(refusal, &err);
    }
    free_replies(&replies);
    return text;
}

// ---- waiting queries ------------------------------------------------------------------------------------------------

// Answers all queries of the same client and rights; client NULL: all queries. Mutex held.
static void tell(struct sl_board *board, struct sl_client *client, bool shows_workers, const char *text,
                 const struct sl_refusal *refusal) {
    struct sl_snapshot **at = &board->waiting;
    while (*at) {
        struct sl_snapshot *snapshot = *at;
        if (client && (snapshot->client != client || snapshot->shows_workers != shows_workers)) {
            at = &snapshot->next;
            continue;
        }
        *at = snapshot->next;
        board->n_waiting--;
        board->moved_ns = sl_now_ns();
        snapshot->text = text ? strdup(text) : NULL;
        snapshot->refusal = *refusal;
        MHD_resume_connection(snapshot->connection);
    }
}

static void *look_always(void *arg) {
    struct sl_board *board = arg;
    struct sl_refusal refusal;
    pthread_mutex_lock(&board->loop.mutex);
    while (!board->loop.stopping) {
        if (!board->waiting) {
            (void)sl_loop_wait(&board->loop, SL_NO_DEADLINE);
            continue;
        }
        struct sl_client *client = board->waiting->client;
        bool shows_workers = board->waiting->shows_workers;
        pthread_mutex_unlock(&board->loop.mutex);
        char *text = look_up(board, client, shows_workers, &refusal);
        pthread_mutex_lock(&board->loop.mutex);
        tell(board, client, shows_workers, text, &refusal);
        free(text);
    }
    sl_refuse(&refusal, 503, "the gateway stops");
    tell(board, NULL, false, NULL, &refusal);
    pthread_mutex_unlock(&board->loop.mutex);
    return NULL;
}

enum sl_status sl_board_ask(struct sl_board *board, struct sl_client *client, bool shows_workers,
                            struct MHD_Connection *connection, struct sl_snapshot **snapshot_out,
                            struct sl_refusal *refusal) {
    struct sl_snapshot *snapshot = calloc(1, sizeof *snapshot);
    enum sl_status status = SL_OK;
    pthread_mutex_lock(&board->loop.mutex);
    if (board->loop.stopping) {
        sl_refuse(refusal, 503, "the gateway stops");
        status = SL_ERR_CANCELLED;
    } else if (!snapshot || board->n_waiting >= MAX_WAITING) {
        sl_refuse(refusal, 429, "%d requests wait for the cluster's state", board->n_waiting);
        status = SL_ERR_EXHAUSTED;
    } else {
        *snapshot = (struct sl_snapshot){
            .board = board, .client = client, .shows_workers = shows_workers, .connection = connection};
        struct sl_snapshot **at = &board->waiting;
        while (*at) {
            at = &(*at)->next;
        }
        *at = snapshot;
        board->moved_ns = board->n_waiting++ == 0 ? sl_now_ns() : board->moved_ns;
        MHD_suspend_connection(connection); // while the mutex is held, it cannot be resumed too early
        pthread_cond_signal(&board->loop.changed);
        *snapshot_out = snapshot;
    }
    pthread_mutex_unlock(&board->loop.mutex);
    if (status != SL_OK) {
        free(snapshot);
    }
    return status;
}

int64_t sl_board_still_ms(struct sl_board *board) {
    SL_LOCKED(&board->loop.mutex);
    return board->waiting ? (sl_now_ns() - board->moved_ns) / SL_NS_PER_MS : 0;
}

char *sl_snapshot_take(struct sl_snapshot *snapshot, struct sl_refusal *refusal_out) {
    SL_LOCKED(&snapshot->board->loop.mutex);
    char *text = snapshot->text;
    snapshot->text = NULL;
    *refusal_out = snapshot->refusal;
    return text;
}

void sl_snapshot_end(struct sl_snapshot **snapshot_ptr) {
    struct sl_snapshot *snapshot = *snapshot_ptr;
    *snapshot_ptr = NULL;
    free(snapshot->text); // it is not in the list: its connection was resumed, or it would not have ended
    free(snapshot);
}

// ---- life -----------------------------------------------------------------------------------------------------------

enum sl_status sl_board_create(struct sl_served *served, struct sl_board **board_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_board, board, err, "no memory for a gateway");
    board->served = served;
    sl_loop_init(&board->loop);
    SL_TRY_OR(sl_loop_start(&board->loop, "status", look_always, board, err), sl_board_destroy(&board));
    *board_out = board;
    return SL_OK;
}

void sl_board_stop(struct sl_board *board) {
    if (board) {
        sl_loop_stop(&board->loop);
    }
}

void sl_board_destroy(struct sl_board **board_ptr) {
    SL_TAKE_OR_RETURN(board, board_ptr);
    sl_loop_cleanup(&board->loop);
    free(board);
}
