// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: an etcd for several coordinators on one machine: a single server, enough to try failover between
 *          coordinators. To survive the loss of an etcd server, run three on three machines (docs/OPERATIONS.md).
 */
#pragma once

#include <limits.h>

#include "base/child.h"

struct sl_cluster_etcd {
    char servers[32];      // "127.0.0.1:PORT", for --etcd
    char folder[PATH_MAX]; // folder of its data; "": none
    bool is_ours;          // temporary: we remove it at the end
    int held[2], n_held;   // sockets that keep its ports (base/held_port.h)
};

/*
 * Starts it on free ports of the loopback interface. folder: keeps its data across restarts; NULL: use a temporary one.
 * SL_ERR_NOT_FOUND: it is not installed. SL_ERR_IO.
 */
enum sl_status sl_cluster_etcd_start(const char *folder, struct sl_cluster_etcd *etcd_out, struct sl_child *child,
                                     struct sl_error *err);
// Frees it after the process has ended; accepts a zeroed struct
void sl_cluster_etcd_cleanup(struct sl_cluster_etcd *etcd);
