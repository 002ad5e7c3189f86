// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/rig/pair.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool sl_pair_read(int fd, void *data, size_t bytes) {
    for (size_t n = 0; n < bytes;) {
        ssize_t got = read(fd, (char *)data + n, bytes - n);
        if (got <= 0) {
            return false;
        }
        n += (size_t)got;
    }
    return true;
}

bool sl_pair_write(int fd, const void *data, size_t bytes) {
    for (size_t n = 0; n < bytes;) {
        ssize_t put = write(fd, (const char *)data + n, bytes - n);
        if (put <= 0) {
            return false;
        }
        n += (size_t)put;
    }
    return true;
}

static char ca[512], certificate[512], key[512];

void sl_pair_certificates(const char *dir) {
    snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    snprintf(certificate, sizeof certificate, "%s/worker-kvstore-bench.pem", dir);
    snprintf(key, sizeof key, "%s/worker-kvstore-bench.key", dir);
}

struct sl_fabric *sl_pair_fabric(const char *transport, size_t region_bytes, uint8_t **region_out) {
    const struct sl_tls_files files = {ca, certificate, key, .revoked = NULL};
    bool is_tls = strcmp(transport, "tls") == 0;
    struct sl_fabric_config config = {.listen = "127.0.0.1:0",
                                      .transport = is_tls ? "tcp" : transport,
                                      .tls = is_tls ? &files : NULL,
                                      .insecure = true};
    struct sl_fabric *fabric = NULL;
    struct sl_error err = {0};
    void *region = NULL;
    if (sl_fabric_create(&config, &fabric, &err) != SL_OK ||
        sl_fabric_region_create(fabric, region_bytes, 0, &region, &err) != SL_OK) {
        fprintf(stderr, "%s: %s\n", transport, err.text);
        sl_fabric_destroy(&fabric);
        return NULL;
    }
    (void)madvise(region, region_bytes, MADV_HUGEPAGE); // as an arena does
    memset(region, 1, region_bytes);                    // touches pages before timing
    *region_out = region;
    return fabric;
}

bool sl_pair_wants(const char *chosen, const char *transport) {
    return strcmp(chosen, "all") == 0 || strcmp(chosen, transport) == 0;
}
