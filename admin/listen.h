// SPDX-License-Identifier: Apache-2.0
// Purpose: a socket that listens at "HOST:PORT".
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct sl_http_place {
    const char *option;              // for people: "--listen"
    const char *text;                // "127.0.0.1:8000", "[::1]:0"
    bool has_certificates, insecure; // whether other hosts may connect (trust/tls_files.h),
    bool for_anybody;                // or nobody needs to be kept away
};

/*
 * address_out is where it listens: the port that was picked for 0. SL_ERR_INVALID: no address; SL_ERR_PRECONDITION: not there, and
 * names the remedy; SL_ERR_IO: as the system says.
 */
enum sl_status sl_http_listen(const struct sl_http_place *place, int *fd_out, char *address_out, size_t address_bytes,
                              struct sl_error *err);
