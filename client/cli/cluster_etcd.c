// SPDX-License-Identifier: Apache-2.0
#include "client/cli/cluster_etcd.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>

#include "base/held_port.h"

static enum sl_status find_program(char path[PATH_MAX], struct sl_error *err) {
    return sl_child_find("etcd", path)
               ? SL_OK
               : sl_fail(err, SL_ERR_NOT_FOUND,
                         "--coordinators: several agree in an etcd on which of them leads, and etcd is not installed "
                         "(Debian's etcd-server)");
}

static enum sl_status hold_ports(struct sl_cluster_etcd *etcd, int ports[2], struct sl_error *err) {
    for (int i = 0; i < 2; i++) {
        int fd = sl_hold_port(&ports[i]);
        SL_FAIL_IF(fd < 0, err, SL_ERR_IO, "no port for etcd: %s", strerror(errno));
        etcd->held[etcd->n_held++] = fd;
    }
    return SL_OK;
}

static enum sl_status make_folder(const char *folder, struct sl_cluster_etcd *etcd, struct sl_error *err) {
    const char *parent = getenv("TMPDIR");
    int n = folder ? snprintf(etcd->folder, sizeof etcd->folder, "%s", folder)
                   : snprintf(etcd->folder, sizeof etcd->folder, "%s/sluice-etcd-XXXXXX", parent ? parent : "/tmp");
    SL_FAIL_OR((size_t)n >= sizeof etcd->folder, etcd->folder[0] = '\0', err, SL_ERR_INVALID,
               "the folder of etcd: the path is too long");
    etcd->is_ours = !folder;
    SL_FAIL_OR(!folder && !mkdtemp(etcd->folder), etcd->folder[0] = '\0', err, SL_ERR_IO, "no folder for etcd: %s",
               strerror(errno));
    return SL_OK;
}

enum sl_status sl_cluster_etcd_start(const char *folder, struct sl_cluster_etcd *etcd_out, struct sl_child *child,
                                     struct sl_error *err) {
    char program[PATH_MAX], client[48], peer[48], cluster[64];
    int ports[2] = {0};
    SL_TRY(find_program(program, err));
    enum sl_status status = hold_ports(etcd_out, ports, err);
    SL_THEN(status, make_folder(folder, etcd_out, err));
    SL_TRY_OR(status, sl_cluster_etcd_cleanup(etcd_out));
    snprintf(etcd_out->servers, sizeof etcd_out->servers, "127.0.0.1:%d", ports[0]);
    snprintf(client, sizeof client, "http://127.0.0.1:%d", ports[0]);
    snprintf(peer, sizeof peer, "http://127.0.0.1:%d", ports[1]);
    snprintf(cluster, sizeof cluster, "e0=%s", peer);
    char *words[] = {program,
                     "--name",
                     "e0",
                     "--data-dir",
                     etcd_out->folder,
                     "--listen-client-urls",
                     client,
                     "--advertise-client-urls",
                     client,
                     "--listen-peer-urls",
                     peer,
                     "--initial-advertise-peer-urls",
                     peer,
                     "--initial-cluster",
                     cluster,
                     "--snapshot-count",
                     "5000",
                     "--logger",
                     "zap",
                     "--log-level",
                     "error",
                     NULL};
    SL_TRY_OR(sl_child_start(child, "etcd", words, err), sl_cluster_etcd_cleanup(etcd_out));
    return SL_OK;
}

static int remove_one(const char *path, const struct stat *, int, struct FTW *) {
    return remove(path);
}

void sl_cluster_etcd_cleanup(struct sl_cluster_etcd *etcd) {
    if (etcd->is_ours && etcd->folder[0] != '\0' &&
        nftw(etcd->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0) {
        fprintf(stderr, "sluice: %s cannot be removed: %s\n", etcd->folder, strerror(errno));
    }
    etcd->folder[0] = '\0';
    while (etcd->n_held > 0) {
        close(etcd->held[--etcd->n_held]);
    }
}
