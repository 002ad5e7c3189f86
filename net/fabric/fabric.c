// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: creates and destroys a fabric; has its gauges, and the one list of its verbs. The top layer of this folder.
 */
#include "net/fabric/fabric.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "base/hash.h"
#include "base/thread.h"
#include "net/fabric/core/ucx.h"

/*
 * To add a verb: a file with its code that ends with its struct sl_verb_ops (core/verb.h lists the hooks), its messages
 * in core/wire.h, and its name here. A verb comes after the verbs that it uses: hooks are called in this order.
 */
extern const struct sl_verb_ops sl_connection_ops, sl_fabric_request_ops, sl_fabric_incoming_ops, sl_fetch_ops,
    sl_window_ops, sl_ship_ops, sl_grant_ops;
static const struct sl_verb_ops *const verbs[] = {
    &sl_peer_ops,  &sl_connection_ops, &sl_fabric_request_ops, &sl_fabric_incoming_ops,
    &sl_fetch_ops, &sl_window_ops,     &sl_ship_ops,           &sl_grant_ops};
static_assert(SL_TICKET_MAX_BYTES == SL_WIRE_TICKET_MAX_BYTES, "callers have room for every ticket");
static_assert(sizeof verbs / sizeof *verbs <= SL_MAX_VERBS, "they fit the table");

static enum sl_status parse_transport(const char *name, enum sl_transport *transport_out, struct sl_error *err) {
    static const char *const names[] = {"auto", "shm", "tcp", "rdma", "ucx-tcp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            *transport_out = (enum sl_transport)i;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "--transport %s: expected auto, shm, tcp, rdma or ucx-tcp", name);
}

enum sl_status sl_fabric_check_transport(const char *name, struct sl_error *err) {
    enum sl_transport transport;
    return parse_transport(name, &transport, err);
}

// Returns a hash of the kernel's boot id: peers use shared memory only under the same kernel.
static uint64_t host_id(void) {
    char boot_id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(boot_id, sizeof boot_id, file)) {
            boot_id[0] = '\0';
        }
        fclose(file);
    }
    return sl_hash(boot_id, strlen(boot_id), 0);
}

static enum sl_status check_secure(const struct sl_fabric *fabric, const struct sl_fabric_config *config,
                                   struct sl_error *err) {
    if (fabric->transport == SL_TRANSPORT_UCX_TCP && !config->insecure) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "transport ucx-tcp: UCX lets whoever connects write into this process; --insecure says that this "
            "is wanted");
    }
    return config->listen ? sl_tls_may_listen((const struct sockaddr *)&fabric->listen, config->listen,
                                              SL_TLS_OPTION_NAMES, config->tls, config->insecure, err)
                          : SL_OK;
}

static enum sl_status resolve_own(struct sl_fabric *fabric, struct sl_error *err) {
    SL_TRY(sl_address_host(fabric->listen_text, fabric->listen_host, sizeof fabric->listen_host, err));
    return sl_address_resolve(fabric->listen_text, &fabric->listen, &fabric->listen_bytes, err);
}

static enum sl_status fill(struct sl_fabric *fabric, const struct sl_fabric_config *config, struct sl_error *err) {
    fabric->progress_counter = (struct sl_progress_counter){.name = "data plane", .n_waiting = 1};
    fabric->device_memory = config->device_memory;
    fabric->heartbeat_ms = config->heartbeat_ms > 0 ? config->heartbeat_ms : 1000;
    fabric->last = &fabric->first;
    fabric->host_id = host_id();
    fabric->gate = sl_gate_create(fabric);
    SL_FAIL_IF(!fabric->gate, err, SL_ERR_EXHAUSTED, "no memory for a fabric");
    uint64_t seeds[2];
    SL_FAIL_IF(getrandom(seeds, sizeof seeds, 0) != (ssize_t)sizeof seeds, err, SL_ERR_IO, "no random numbers: %s",
               strerror(errno));
    fabric->epoch = seeds[0] | 1;
    atomic_store(&fabric->generation, seeds[1] >> 16);
    enum sl_status status = parse_transport(config->transport ? config->transport : "auto", &fabric->transport, err);
    SL_THEN(status, sl_verbs_create(fabric, verbs, sizeof verbs / sizeof *verbs, config->inject, err));
    if (status == SL_OK && config->listen) {
        fabric->listen_text = strdup(config->listen);
        status =
            fabric->listen_text ? resolve_own(fabric, err) : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a fabric");
    }
    fabric->tls = config->tls;
    return status == SL_OK ? check_secure(fabric, config, err) : status;
}

enum sl_status sl_fabric_create(const struct sl_fabric_config *config, struct sl_fabric **fabric_out,
                                struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_fabric, fabric, err, "no memory for a fabric");
    pthread_mutex_init(&fabric->lock, NULL);
    sl_cond_init(&fabric->changed);
    fabric->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum sl_status status = fabric->wake_fd >= 0 ? fill(fabric, config, err)
                                                 : sl_fail(err, SL_ERR_EXHAUSTED, "eventfd: %s", strerror(errno));
    SL_TRY_OR(status, sl_fabric_free(fabric));
    status = sl_fabric_start(fabric, err);
    if (status == SL_OK) {
        *fabric_out = fabric;
    }
    return status;
}

void sl_fabric_destroy(struct sl_fabric **fabric) {
    if (fabric && *fabric) {
        sl_fabric_stop(*fabric);
        *fabric = NULL;
    }
}

const char *sl_fabric_address(const struct sl_fabric *fabric) {
    return fabric->address;
}

uint64_t sl_fabric_epoch(const struct sl_fabric *fabric) {
    return fabric->epoch;
}

struct sl_progress_counter *sl_fabric_progress_counter(struct sl_fabric *fabric) {
    return &fabric->progress_counter;
}

bool sl_fabric_has_rdma(const struct sl_fabric *fabric) {
    return fabric->has_rdma;
}

bool sl_fabric_knows_cuda(const struct sl_fabric *fabric) {
    return sl_ucx_knows_cuda(fabric);
}

bool sl_fabric_ucx_puts_from_devices(char *version_out, size_t bytes) {
    return sl_ucx_puts_from_devices(version_out, bytes);
}

enum sl_status sl_fabric_region_create(struct sl_fabric *fabric, size_t bytes, unsigned kinds, void **base_out,
                                       struct sl_error *err) {
    return sl_region_create(fabric, bytes, (kinds & SL_REGION_LOCKED) != 0, (kinds & SL_REGION_HUGE_PAGES) != 0,
                            base_out, err);
}

enum sl_status sl_fabric_region_add(struct sl_fabric *fabric, const struct sl_device_region *what,
                                    struct sl_error *err) {
    const struct sl_region_source source = {.base = what->base,
                                            .seen = what->seen,
                                            .bytes = what->bytes,
                                            .arrives = what->arrives,
                                            .enter = what->enter,
                                            .arg = what->arg};
    return sl_region_add(fabric, &source, err);
}

void sl_fabric_get_stats(struct sl_fabric *fabric, struct sl_fabric_stats *stats_out) {
    *stats_out = (struct sl_fabric_stats){.peers_lost = atomic_load(&fabric->peers_lost),
                                          .peers_connected = atomic_load(&fabric->peers_connected)};
    for (struct sl_verb **verb = fabric->verbs; *verb; verb++) {
        for (const struct sl_gauge *gauge = (*verb)->ops->gauges; gauge->offset; gauge++) {
            *(uint64_t *)(void *)((char *)stats_out + gauge->of_stats) +=
                atomic_load((_Atomic uint64_t *)(void *)((char *)*verb + gauge->offset));
        }
    }
}
