// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the progress thread, from its start to its stop.
 *
 * Design: it runs one loop: commands of other threads, UCX, links, the clock (heartbeats, deadlines), and the verbs'
 *         pending work. When nothing has moved for SPIN_NS it sleeps in poll() on UCX's descriptor, the links' and an
 *         eventfd, never past the next tick: the clock does not depend on new work. post.c shows how others wake it.
 *         UCX starts on that thread too, and the creator waits at most START_NS: a start that hangs keeps its thread
 *         and memory, which cannot be reclaimed, and nothing else.
 */
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/fabric/core/ucx.h"

#define START_NS    (20 * SL_NS_PER_S) // a start of UCX that takes longer will never end
#define SPIN_NS     50000              // of idleness before it sleeps
#define TICK_MAX_NS (50 * SL_NS_PER_MS)
#define LINKS_NS    20000 // between two polls of the links if UCX carries the messages: a poll is a system call
#define PART_MS     1000  // for the peers to receive BYE and close

// ---- the loop ------------------------------------------------------------------------------------------------------

static bool has_work(struct sl_fabric *fabric) {
    if (atomic_load(&fabric->posted) || atomic_load(&fabric->stopping)) {
        return true;
    }
    SL_VERBS_WITH(has_work, fabric, verb) {
        if (verb->ops->has_work(verb)) {
            return true;
        }
    }
    return false;
}

static void sleep_until_work(struct sl_fabric *fabric, int64_t now_ns) {
    atomic_store(&fabric->sleeping, true);
    int ucx_fd = fabric->ucx ? sl_ucx_arm(fabric->ucx) : -1;
    if (!has_work(fabric) && !sl_links_busy(fabric->links) && (!fabric->ucx || ucx_fd >= 0)) {
        struct pollfd fds[] = {
            {fabric->wake_fd, POLLIN, 0}, {sl_links_fd(fabric->links), POLLIN, 0}, {ucx_fd, POLLIN, 0}};
        int64_t left_ms = (fabric->next_tick_ns - now_ns) / SL_NS_PER_MS + 1;
        poll(fds, sizeof fds / sizeof *fds, left_ms < 1 ? 1 : (int)left_ms);
        if (fds[0].revents) {
            uint64_t count;
            ssize_t n = read(fabric->wake_fd, &count, sizeof count);
            (void)n;
        }
        fabric->links_ns = 0;
    }
    atomic_store(&fabric->sleeping, false);
}

static bool turn_transports(struct sl_fabric *fabric, int64_t now_ns) {
    bool moved = fabric->ucx && sl_ucx_progress(fabric->ucx);
    if (!fabric->ucx || now_ns - fabric->links_ns > LINKS_NS || sl_links_busy(fabric->links)) {
        fabric->links_ns = now_ns;
        moved |= sl_links_progress(fabric->links);
    }
    return moved;
}

// Runs one turn. Returns true if anything moved.
static bool turn(struct sl_fabric *fabric, int64_t now_ns) {
    sl_progress_counter_tick(&fabric->progress_counter);
    bool moved = sl_fabric_run_commands(fabric);
    moved |= turn_transports(fabric, now_ns);
    if (fabric->peers_changed) {
        for (int i = 0; i < 64 && fabric->ucx && sl_ucx_progress(fabric->ucx); i++) {
        } // first handle what a lost peer had sent before
        sl_peers_reconcile(fabric);
    }
    if (now_ns >= fabric->next_tick_ns) {
        int64_t period = fabric->heartbeat_ms * SL_NS_PER_MS / 4;
        fabric->next_tick_ns = now_ns + (period < TICK_MAX_NS ? period : TICK_MAX_NS);
        sl_links_tick(fabric->links, now_ns);
        SL_VERBS_WITH(tick, fabric, verb) {
            verb->ops->tick(verb, now_ns);
        }
    }
    SL_VERBS_WITH(pump, fabric, verb) {
        moved |= verb->ops->pump(verb, now_ns);
    }
    return moved;
}

static void run(struct sl_fabric *fabric) {
    int64_t moved_ns = sl_now_ns();
    while (!atomic_load(&fabric->stopping)) {
        int64_t now = sl_now_ns();
        if (turn(fabric, now)) {
            moved_ns = now;
        } else if (now - moved_ns > SPIN_NS) {
            sleep_until_work(fabric, now);
        } else {
            sched_yield(); // the thread that prepares the next message may need this processor
        }
    }
}

// ---- the stop ------------------------------------------------------------------------------------------------------

// Turns until `done` or for at most ms.
static bool turn_until(struct sl_fabric *fabric, bool (*done)(const struct sl_fabric *fabric), int64_t ms) {
    int64_t deadline = sl_deadline_in_ms(ms);
    while (!done(fabric)) {
        int64_t now = sl_now_ns();
        if (now > deadline) {
            return false;
        }
        if (!turn(fabric, now)) {
            sched_yield();
        }
    }
    return true;
}

static bool verbs_over(const struct sl_fabric *fabric) {
    SL_VERBS_WITH(is_over, fabric, verb) {
        if (!verb->ops->is_over(verb)) {
            return false;
        }
    }
    return true;
}

static bool sends_over(const struct sl_fabric *fabric) {
    for (const struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        if (peer->n_operations > 0) {
            return false;
        }
    }
    return true;
}

static bool peers_over(const struct sl_fabric *fabric) {
    return fabric->peers == NULL;
}

static void part(struct sl_fabric *fabric) {
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        peer->parting = true;
        if (peer->state == PEER_UP) {
            sl_peer_tell(peer, SL_WIRE_BYE, NULL, 0);
        } else {
            sl_peer_close(peer, SL_ERR_CANCELLED, "this fabric stops"); // BYE cannot reach it
        }
    }
    turn_until(fabric, sends_over, 200);
    // A peer that gets BYE closes. If we closed first, that could overtake BYE, because over shared memory it travels
    // another way than messages: a peer that was not scheduled for a while would report an orderly stop as a loss.
    turn_until(fabric, peers_over, PART_MS);
    for (struct sl_peer *peer = fabric->peers; peer; peer = peer->next) {
        sl_peer_close(peer, SL_ERR_CANCELLED, "this fabric stops");
    }
    if (!turn_until(fabric, peers_over, 5000)) {
        sl_log_error("fabric", "connections do not close; their memory stays registered");
    }
}

// Tells all peers and verbs and closes everything; after that no callback can run any more.
static void wind_down(struct sl_fabric *fabric) {
    sl_gate_shut(fabric->gate);
    sl_fabric_run_commands(fabric);
    SL_VERBS_WITH(stop, fabric, verb) {
        verb->ops->stop(verb);
    }
    turn_until(fabric, verbs_over, 500);
    part(fabric);
    turn_until(fabric, verbs_over, 500);
    sl_fabric_run_commands(fabric);
    SL_VERBS_WITH(release, fabric, verb) {
        verb->ops->release(verb);
    }
}

// ---- the thread ----------------------------------------------------------------------------------------------------

static void stop_transports(struct sl_fabric *fabric) {
    sl_links_destroy(&fabric->links);
    sl_fabric_free_regions(fabric);
    sl_ucx_stop(fabric);
}

static enum sl_status listen_to_links(struct sl_fabric *fabric, struct sl_error *err) {
    unsigned port = 0;
    struct sl_error why = {0};
    enum sl_status status =
        sl_links_listen(fabric->links, (const struct sockaddr *)&fabric->listen, fabric->listen_bytes, &port, &why);
    SL_FAIL_IF(status != SL_OK, err, status, "cannot listen on %s: %s", fabric->listen_text, why.text);
    const char *name = sl_links_name(fabric->links);
    const char *format = strchr(fabric->listen_host, ':') ? "%s%s[%s]:%u" : "%s%s%s:%u";
    const int n =
        snprintf(fabric->address, sizeof fabric->address, format, name, name[0] ? "@" : "", fabric->listen_host, port);
    return n < (int)sizeof fabric->address
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "the address of %s at %s is too long", name, fabric->listen_text);
}

static enum sl_status start_transports(struct sl_fabric *fabric, struct sl_error *err) {
    enum sl_status status = sl_links_create(fabric->tls, &sl_peer_link_events, fabric, &fabric->links, err);
    SL_THEN(status, fabric->listen_text ? listen_to_links(fabric, err) : SL_OK);
    SL_THEN(status, sl_ucx_start(fabric, &sl_peer_ucx_events, err));
    if (status != SL_OK) {
        stop_transports(fabric);
    }
    return status;
}

static void *progress_main(void *arg) {
    struct sl_fabric *fabric = arg;
    struct sl_error err = {0};
    enum sl_status status = start_transports(fabric, &err);
    pthread_mutex_lock(&fabric->lock);
    bool abandoned = fabric->abandoned;
    fabric->started = true;
    fabric->start_error = err;
    fabric->start_error.status = status;
    pthread_cond_broadcast(&fabric->changed);
    pthread_mutex_unlock(&fabric->lock);
    if (abandoned) { // the creator has given up: this thread owns everything
        if (status == SL_OK) {
            stop_transports(fabric);
        }
        sl_fabric_free(fabric);
        return NULL;
    }
    if (status == SL_OK) {
        run(fabric);
        wind_down(fabric);
        if (!fabric->peers) {
            stop_transports(fabric);
        }
    }
    return NULL;
}

enum sl_status sl_fabric_start(struct sl_fabric *fabric, struct sl_error *err) {
    enum sl_status status = sl_thread_start("fabric", progress_main, fabric, &fabric->thread, err);
    SL_TRY_OR(status, sl_fabric_free(fabric));
    int64_t deadline = sl_now_ns() + START_NS;
    pthread_t thread = fabric->thread;
    pthread_mutex_lock(&fabric->lock);
    while (!fabric->started && sl_cond_wait_until(&fabric->changed, &fabric->lock, deadline) == SL_OK) {
    }
    bool started = fabric->started;
    fabric->abandoned = !started;
    pthread_mutex_unlock(&fabric->lock);
    SL_FAIL_OR(!started, pthread_detach(thread), err, SL_ERR_DEADLINE, "UCX has not started within %lld s",
               (long long)(START_NS / SL_NS_PER_S));
    if (fabric->start_error.status != SL_OK) {
        pthread_join(thread, NULL);
        status = sl_fail(err, fabric->start_error.status, "%s", fabric->start_error.text);
        sl_fabric_free(fabric);
    }
    return status;
}

void sl_fabric_stop(struct sl_fabric *fabric) {
    atomic_store(&fabric->stopping, true);
    sl_fabric_wake(fabric);
    pthread_join(fabric->thread, NULL);
    if (!fabric->peers) { // else UCX still has pointers into it
        sl_fabric_free(fabric);
    }
}

void sl_fabric_free(struct sl_fabric *fabric) {
    sl_verbs_destroy(fabric);
    sl_fabric_free_buffers(fabric);
    close(fabric->wake_fd);
    pthread_mutex_destroy(&fabric->lock);
    pthread_cond_destroy(&fabric->changed);
    sl_gate_unref(fabric->gate);
    free(fabric->listen_text);
    free(fabric);
}
