// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: an etcd for several coordinators of one machine: a single server, by which one can see them follow each other. Who wants to
 *          outlive the loss of one has three, on three machines (docs/OPERATIONS.md).
 */
#pragma once

#include <limits.h>

#include "client/cli/child.h"

struct sl_cluster_etcd {
    char servers[32];      // "127.0.0.1:PORT", for --etcd
    char folder[PATH_MAX]; // of its data; "": not made
    bool is_ours;          // it goes with us
};

/*
 * Start it on free ports of the loopback interface. folder: where it keeps its data over restarts; NULL: nowhere. SL_ERR_NOT_FOUND: it is not
 * installed. SL_ERR_IO.
 */
enum sl_status sl_cluster_etcd_start(const char *folder, struct sl_cluster_etcd *etcd_out, struct sl_child *child,
                                     struct sl_error *err);
void sl_cluster_etcd_cleanup(struct sl_cluster_etcd *etcd); // when it has ended; zero-initialised will do
