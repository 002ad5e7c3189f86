// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/bases.h"

#include <assert.h>
#include <stdlib.h>

struct sl_shared_base {
    struct sl_shared_base *next;
    const struct sl_worker *worker;
    uint64_t key;
    int64_t bytes;
    int n_jobs;
};

// Returns the link to the entry, or to the end of the list.
static struct sl_shared_base **find(struct sl_shared_base **bases, const struct sl_worker *worker, uint64_t key) {
    while (*bases != NULL && ((*bases)->worker != worker || (*bases)->key != key)) {
        bases = &(*bases)->next;
    }
    return bases;
}

int64_t sl_shared_base_bytes(const struct sl_shared_base *bases, const struct sl_worker *worker, uint64_t key) {
    struct sl_shared_base *first = (struct sl_shared_base *)bases;
    const struct sl_shared_base *base = *find(&first, worker, key);
    return base != NULL ? base->bytes : 0;
}

bool sl_shared_base_join(struct sl_shared_base **bases, const struct sl_worker *worker, uint64_t key, int64_t bytes,
                         int64_t *shared_out, int64_t *new_out) {
    struct sl_shared_base **at = find(bases, worker, key);
    *new_out = *at == NULL ? bytes : 0;
    if (*at == NULL) {
        struct sl_shared_base *base = malloc(sizeof *base);
        if (base == NULL) {
            *new_out = 0;
            return false;
        }
        *base = (struct sl_shared_base){.worker = worker, .key = key, .bytes = bytes};
        *at = base;
    }
    (*at)->n_jobs++;
    *shared_out = (*at)->bytes;
    return true;
}

int64_t sl_shared_base_leave(struct sl_shared_base **bases, const struct sl_worker *worker, uint64_t key) {
    struct sl_shared_base **at = find(bases, worker, key), *base = *at;
    assert(base != NULL);
    if (--base->n_jobs > 0) {
        return 0;
    }
    int64_t bytes = base->bytes;
    *at = base->next;
    free(base);
    return bytes;
}
