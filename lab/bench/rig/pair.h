// SPDX-License-Identifier: Apache-2.0
// Purpose: what benches of two processes need: a fabric with memory in each, and bytes over a pipe or socket between them.
#pragma once

#include <stdbool.h>

#include "net/fabric/fabric.h"

// All bytes, or false.
bool sl_pair_read(int fd, void *data, size_t bytes);
bool sl_pair_write(int fd, const void *data, size_t bytes);

// Where transport "tls" finds ca.pem, worker-bench.pem and worker-bench.key.
void sl_pair_certificates(const char *dir);

// A fabric and a region of it, every page of which is there. transport: the fabric's, or "tls": tcp with certificates. NULL: the complaint has been printed.
struct sl_fabric *sl_pair_fabric(const char *transport, size_t region_bytes, uint8_t **region_out);

// Whether --transport `chosen` is "all" or this one.
bool sl_pair_wants(const char *chosen, const char *transport);
