// SPDX-License-Identifier: Apache-2.0
// A store without a disk, for fuzz_store.c.
#include "kvstore/internal.h"

struct sl_stored *sl_disk_recall(struct sl_disk *disk, const struct sl_prefix *prefixes, size_t n_prefixes,
                                 int64_t deadline_ns, size_t *at_out) {
    (void)disk, (void)prefixes, (void)n_prefixes, (void)deadline_ns, (void)at_out;
    return NULL;
}

void sl_disk_offer(struct sl_disk *disk, const struct sl_capsule_id *id) {
    (void)disk, (void)id;
}

bool sl_disk_forget(struct sl_disk *disk, const struct sl_capsule_id *id) {
    return disk && id && false;
}

bool sl_disk_get(struct sl_disk *disk, const struct sl_capsule_id *id, struct sl_disk_entry *entry_out) {
    return disk && id && entry_out && false;
}

bool sl_disk_begins_with(struct sl_disk *disk, const struct sl_capsule_id *key, const struct sl_hash128 *prefix_hash) {
    return disk && key && prefix_hash && false;
}

bool sl_disk_answers(struct sl_disk *disk) {
    return disk && false;
}

enum sl_status sl_disk_read(struct sl_disk *disk, const struct sl_capsule_id *id, int64_t deadline_ns,
                            struct sl_capsule_bytes *capsule_out, struct sl_error *err) {
    (void)disk, (void)id, (void)deadline_ns, (void)capsule_out;
    return sl_fail(err, SL_ERR_NOT_FOUND, "no disk");
}

enum sl_disk_copy sl_disk_keep(struct sl_disk *disk, struct sl_stored *stored) {
    (void)disk, (void)stored;
    return SL_DISK_NONE;
}

void sl_disk_get_stats(struct sl_disk *disk, struct sl_disk_stats *stats_out) {
    (void)disk;
    *stats_out = (struct sl_disk_stats){.failure = ""};
}
