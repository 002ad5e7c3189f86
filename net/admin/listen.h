// SPDX-License-Identifier: Apache-2.0
// Purpose: a socket that listens at "HOST:PORT".
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct sl_http_place {
    const char *option;              // for error messages: "--listen"
    const char *text;                // "127.0.0.1:8000", "[::1]:0"
    bool has_certificates, insecure; // whether other hosts may connect (net/trust/tls_files.h)
    bool for_anybody;                // true: any client may connect, so no certificates are needed
};

/*
 * Listens; address_out is the address with the port that the kernel picked for 0. SL_ERR_INVALID: not an address, or
 * other hosts may not connect there; the text names the remedy. SL_ERR_IO: the system's error.
 */
enum sl_status sl_http_listen(const struct sl_http_place *place, int *fd_out, char *address_out, size_t address_bytes,
                              struct sl_error *err);
