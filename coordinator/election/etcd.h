// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the leader key in etcd (version 3's API, over net/rpc/), and other keys under the same prefix, which only the leader changes.
 * Design: a call asks one server. When that fails or is silent for CALL_MS, the call asks the next, until all were asked once. One answer is
 *         enough: a majority of the servers has agreed on it, and without a majority no server answers.
 *         A change of another key is a transaction that first compares the leader key's term, so a former leader changes nothing.
 * Threads: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "coordinator/election/leader_key.h"

struct sl_etcd;

extern const struct sl_leader_key_ops sl_etcd_ops; // of a struct sl_etcd

#define SL_ETCD_MAX_VALUE_BYTES ((size_t)1 << 20) // etcd takes requests of 1.5 MiB

// is_large: for keys other than the leader key, whose values may be large: replies may have SL_ETCD_PAGE_KEYS of them, and calls take longer.
enum sl_status sl_etcd_create(const char *servers, const char *prefix, const struct sl_tls_files *tls, bool is_large,
                              struct sl_etcd **etcd_out, struct sl_error *err);
void sl_etcd_destroy(struct sl_etcd **etcd); // accepts NULL

/*
 * Writes a key that only the leader changes; its name comes after the prefix and a slash. At most SL_ETCD_MAX_VALUE_BYTES. SL_ERR_PEER_LOST: etcd
 * does not answer, and the outcome is unknown; or the leader key does not have this term, and nothing has changed.
 */
enum sl_status sl_etcd_put(struct sl_etcd *etcd, int64_t term, const char *name, const void *bytes, size_t n_bytes,
                           struct sl_error *err);
// Removes all keys whose names begin with one of 1 or 2 texts, at once, and lets etcd forget their values. Fails as sl_etcd_put().
enum sl_status sl_etcd_remove(struct sl_etcd *etcd, int64_t term, const char *const *beginnings, size_t n_beginnings,
                              struct sl_error *err);

#define SL_ETCD_PAGE_KEYS 12
// Called with each key, without the prefix. Another status than SL_OK ends the reading.
typedef enum sl_status (*sl_etcd_key_fn)(void *arg, const char *name, const uint8_t *bytes, size_t n_bytes,
                                         struct sl_error *err);
// Reads all keys whose names begin so, in their order.
enum sl_status sl_etcd_read(struct sl_etcd *etcd, const char *beginning, sl_etcd_key_fn fn, void *arg,
                            struct sl_error *err);
