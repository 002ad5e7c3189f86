// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shows on standard error what a starting cluster waits for: how much of their model the workers have loaded, or
 *          the processes that are not ready and the time that this takes. A line that is rewritten in place on a
 *          terminal, else a line every few seconds. Also names a process that makes no progress.
 */
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/cluster_internal.h"
#include "client/cli/progress.h"

#define WAITING_S 2 // processes that are ready sooner are not named

enum { PHASE_BYTES = 128 };
_Static_assert(PHASE_BYTES >= SL_LOADING_PHASE_BYTES, "a buffer for both phases");

static int percent(int64_t done, int64_t total) {
    return (int)(100 * (double)done / (double)total);
}

// Writes "decode-0 starting, prefill-0 44%" of the processes that are not ready, and of those that have loaded a model.
static void describe_all(const struct sl_cluster *cluster, char *buf, size_t buf_bytes) {
    size_t used = 0;
    buf[0] = '\0';
    for (size_t i = cluster->n_first; i < cluster->n_children && used < buf_bytes; i++) {
        const struct sl_child *child = &cluster->children[i];
        const char *comma = used > 0 ? ", " : "";
        if (child->total_bytes > 0) {
            int share = child->ready[0] ? 100 : percent(child->done_bytes, child->total_bytes);
            used += (size_t)snprintf(buf + used, buf_bytes - used, "%s%s %d%%", comma, child->name, share);
        } else if (!child->ready[0]) {
            used += (size_t)snprintf(buf + used, buf_bytes - used, "%s%s starting", comma, child->name);
        }
    }
}

// Sums the loading progress of all workers. False: no worker loads. phase: for its text.
static bool add_up(const struct sl_cluster *cluster, char phase[PHASE_BYTES], struct sl_progress *progress_out) {
    struct sl_progress sum = {.phase = sl_progress_loading_phase(cluster->config.model, phase, SL_LOADING_PHASE_BYTES),
                              .bytes = true};
    bool loads = false;
    for (size_t i = cluster->n_first; i < cluster->n_children; i++) {
        const struct sl_child *child = &cluster->children[i];
        // A worker that is ready may not have needed the whole file
        sum.done += child->ready[0] ? child->total_bytes : child->done_bytes;
        sum.total += child->total_bytes;
        loads |= !child->ready[0] && child->done_bytes < child->total_bytes;
    }
    describe_all(cluster, sum.note, sizeof sum.note);
    *progress_out = sum;
    return loads;
}

void sl_cluster_hide_loading(struct sl_cluster *cluster) {
    if (cluster->loading.is_drawn) {
        sl_progress_clear(stderr);
        cluster->loading.is_drawn = false;
    }
}

// Names the processes that are not ready: "waiting for decode-0, prefill-0", and the seconds as the note.
static void name_waiting(const struct sl_cluster *cluster, int64_t seconds, char phase[PHASE_BYTES],
                         struct sl_progress *progress_out) {
    size_t used = 0;
    for (size_t i = cluster->first_coordinator; i < cluster->n_children; i++) {
        if (!cluster->children[i].ready[0] && used < PHASE_BYTES) {
            used += (size_t)snprintf(phase + used, PHASE_BYTES - used, "%s%s", used > 0 ? ", " : "waiting for ",
                                     cluster->children[i].name);
        }
    }
    if (used == 0) {
        snprintf(phase, PHASE_BYTES, "waiting for the coordinator to see all workers");
    }
    *progress_out = (struct sl_progress){.phase = phase};
    snprintf(progress_out->note, sizeof progress_out->note, "%lld s", (long long)seconds);
}

void sl_cluster_show_loading(struct sl_cluster *cluster) {
    struct sl_cluster_loading *loading = &cluster->loading;
    struct sl_progress progress;
    char phase[PHASE_BYTES];
    int64_t now_ns = sl_now_ns();
    if (cluster->config.quiet) {
        return;
    }
    if (loading->began_ns == 0) {
        loading->began_ns = now_ns;
        loading->width = cluster->config.lines ? 0 : sl_terminal_width(STDERR_FILENO);
    }
    int64_t seconds = (now_ns - loading->began_ns) / (1000 * SL_NS_PER_MS);
    bool loads = add_up(cluster, phase, &progress);
    if (!loads) {
        name_waiting(cluster, seconds, phase, &progress);
    }
    if (!loads && seconds < WAITING_S) {
        sl_cluster_hide_loading(cluster);
        return;
    }
    if (loading->width == 0 && sl_progress_is_due(&loading->next_line_ns, now_ns)) {
        sl_progress_print(&progress, "sluice", stderr);
    }
    int64_t shown = loads ? progress.done : seconds;
    if (loading->width > 0 && (!loading->is_drawn || shown != loading->drawn)) {
        sl_progress_draw(&progress, loading->width, stderr);
        loading->is_drawn = true;
        loading->drawn = shown;
    }
}

bool sl_cluster_is_late(const struct sl_cluster *cluster, size_t i, char *buf, size_t buf_bytes) {
    const struct sl_child *child = &cluster->children[i];
    int64_t limit_ms = cluster->config.ready_ms;
    if (!child->running || child->ready[0] || sl_now_ns() - child->moved_ns <= limit_ms * SL_NS_PER_MS) {
        return false;
    }
    if (child->total_bytes > 0) {
        snprintf(
            buf, buf_bytes,
            "%s was not ready within %lld ms of its last progress (--ready-timeout), with %d%% of the model loaded",
            child->name, (long long)limit_ms, percent(child->done_bytes, child->total_bytes));
    } else {
        snprintf(buf, buf_bytes, "%s was not ready within %lld ms (--ready-timeout)", child->name, (long long)limit_ms);
    }
    return true;
}
