// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shows on standard error how much of their model the workers of a starting cluster have loaded: a line that
 *          is rewritten in place on a terminal, else a line every few seconds. Also names a process that makes no
 *          progress.
 */
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/cluster_internal.h"
#include "client/cli/progress.h"
#include "base/options/config.h"

#define FIRST_LINE_MS 1000 // a model that is loaded sooner needs no line
#define LINE_MS       5000

static int percent(int64_t done, int64_t total) {
    return (int)(100 * (double)done / (double)total);
}

// Sums the loading progress of all workers, and writes "decode-0 30%, prefill-0 44%" into the note. False: no worker
// loads.
static bool add_up(const struct sl_cluster *cluster, struct sl_progress *progress_out) {
    struct sl_progress sum = {.phase = "loading", .bytes = true};
    size_t used = 0;
    bool loads = false;
    for (size_t i = cluster->n_first; i < cluster->n_children; i++) {
        const struct sl_child *child = &cluster->children[i];
        if (child->total_bytes == 0) {
            continue;
        }
        int64_t done =
            // When it is ready: it may not have needed the whole file
            child->ready[0] ? child->total_bytes : child->done_bytes;
        loads |= !child->ready[0];
        sum.done += done;
        sum.total += child->total_bytes;
        if (used < sizeof sum.note) {
            used += (size_t)snprintf(sum.note + used, sizeof sum.note - used, "%s%s %d%%", used > 0 ? ", " : "",
                                     child->name, percent(done, child->total_bytes));
        }
    }
    *progress_out = sum;
    return loads;
}

void sl_cluster_hide_loading(struct sl_cluster *cluster) {
    if (cluster->loading.is_drawn) {
        sl_progress_clear(stderr);
        cluster->loading.is_drawn = false;
    }
}

static void print_line(struct sl_cluster_loading *loading, const struct sl_progress *progress) {
    char total[32];
    sl_format_bytes((double)progress->total, total, sizeof total);
    fprintf(stderr, "sluice: loading the model: %d%% of %s (%s)\n", percent(progress->done, progress->total), total,
            progress->note);
    loading->next_line_ns = sl_deadline_in_ms(LINE_MS);
}

void sl_cluster_show_loading(struct sl_cluster *cluster) {
    struct sl_cluster_loading *loading = &cluster->loading;
    struct sl_progress progress;
    if (cluster->config.quiet) {
        return;
    }
    if (!add_up(cluster, &progress)) {
        sl_cluster_hide_loading(cluster);
        return;
    }
    if (loading->next_line_ns == 0) {
        loading->next_line_ns = sl_deadline_in_ms(FIRST_LINE_MS);
        loading->width = sl_terminal_width(STDERR_FILENO);
    }
    if (loading->width == 0 && sl_deadline_left_ms(loading->next_line_ns) == 0) {
        print_line(loading, &progress);
    } else if (loading->width > 0 && (!loading->is_drawn || progress.done != loading->drawn_bytes)) {
        sl_progress_draw(&progress, loading->width, stderr);
        loading->is_drawn = true;
        loading->drawn_bytes = progress.done;
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
