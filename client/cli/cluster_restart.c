// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: restarts processes of a cluster that have ended, with the command lines that they were started with.
 * Not here: coordinators. Their jobs end with them, or are kept by --coordinator-state for the next start of the
 * cluster.
 */
#include <signal.h>

#include "base/clock.h"
#include "client/cli/cluster_internal.h"

#define QUICK_MS      10000 // a process that ends within this time probably fails for the same reason again
#define MAX_QUICK     5
#define FIRST_WAIT_MS 200

// Keeps the gateway's port, because its users know it.
static enum sl_status keep_port(struct sl_cluster *cluster, size_t i, struct sl_error *err) {
    char http[128];
    return sl_child_ready_value(&cluster->children[i], "http", http, sizeof http)
               ? sl_argv_set_option(&cluster->starts[i].words, "--listen", http, err)
               : SL_OK;
}

static enum sl_status plan_restart(struct sl_cluster *cluster, size_t i, struct sl_error *err) {
    const struct sl_child *child = &cluster->children[i];
    char end[96];
    sl_child_describe_end(child, end, sizeof end);
    cluster->starts[i].reported = true;
    bool quick = !child->ready[0] || sl_now_ns() - cluster->starts[i].started_ns < QUICK_MS * SL_NS_PER_MS;
    cluster->starts[i].n_quick = quick ? cluster->starts[i].n_quick + 1 : 1;
    SL_FAIL_IF(i < cluster->n_first || cluster->starts[i].n_quick >= MAX_QUICK, err, SL_ERR_PEER_LOST, "%s %s%s",
               child->name, end, i < cluster->n_first ? "" : ", again and again");
    int64_t wait_ms = FIRST_WAIT_MS << (cluster->starts[i].n_quick - 1);
    cluster->starts[i].again_ns = sl_deadline_in_ms(wait_ms);
    fprintf(stderr, "sluice: %s %s: started again in %.1f s\n", child->name, end, (double)wait_ms / 1000);
    return keep_port(cluster, i, err);
}

static enum sl_status restart(struct sl_cluster *cluster, size_t i, struct sl_error *err) {
    char name[sizeof cluster->children[i].name];
    snprintf(name, sizeof name, "%s", cluster->children[i].name);
    sl_child_cleanup(&cluster->children[i]);
    enum sl_status status = sl_child_start(&cluster->children[i], name, cluster->starts[i].words.list, err);
    cluster->starts[i].again_ns = 0;
    cluster->starts[i].started_ns = sl_now_ns();
    cluster->starts[i].reported = status != SL_OK;
    return status;
}

// Ends a process that hangs before it is ready; otherwise it would never be restarted.
static void end_late(struct sl_cluster *cluster, size_t i) {
    struct sl_child *child = &cluster->children[i];
    char why[192];
    if (i >= cluster->n_first && sl_cluster_is_late(cluster, i, why, sizeof why)) {
        fprintf(stderr, "sluice: %s: killing it\n", why);
        sl_child_signal(child, SIGKILL);
        child->moved_ns = sl_now_ns(); // signal it only once
    }
}

static size_t count_ready(const struct sl_cluster *cluster) {
    size_t n = 0;
    for (size_t i = 0; i < cluster->n_children; i++) {
        n += cluster->children[i].running && cluster->children[i].ready[0];
    }
    return n;
}

enum sl_status sl_cluster_look_after(struct sl_cluster *cluster, int timeout_ms, bool *changed_out,
                                     struct sl_error *err) {
    enum sl_status status = SL_OK;
    bool changed = false;
    sl_children_pump(cluster->children, cluster->n_children, timeout_ms, cluster->file);
    for (size_t i = 0; i < cluster->n_children && status == SL_OK; i++) {
        if (!cluster->children[i].running && !cluster->starts[i].reported) {
            status = plan_restart(cluster, i, err);
            changed = true;
        } else if (cluster->starts[i].again_ns != 0 && sl_deadline_left_ms(cluster->starts[i].again_ns) == 0) {
            status = restart(cluster, i, err);
            changed = true;
        }
        end_late(cluster, i);
    }
    size_t n_ready = count_ready(cluster);
    *changed_out = changed || n_ready != cluster->n_ready;
    cluster->n_ready = n_ready;
    return status;
}
