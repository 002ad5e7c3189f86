// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by benches of two processes: a fabric with memory in each, and bytes over a pipe or socket between
// them.
#pragma once

#include <stdbool.h>

#include "net/fabric/fabric.h"

// Transfers all bytes, or returns false.
bool sl_pair_read(int fd, void *data, size_t bytes);
bool sl_pair_write(int fd, const void *data, size_t bytes);

// Sets the folder where transport "tls" finds ca.pem, worker-kvstore-bench.pem and .key.
void sl_pair_certificates(const char *dir);

// Creates a fabric and a region of it, with every page touched. transport: the fabric's, or "tls": tcp with
// certificates. NULL: it failed and has printed the error.
struct sl_fabric *sl_pair_fabric(const char *transport, size_t region_bytes, uint8_t **region_out);

// Returns whether --transport `chosen` is "all" or this one.
bool sl_pair_wants(const char *chosen, const char *transport);
