// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: names of leases. Whoever knows one may renew the lease, use it and end it, so it is 128 random bits, compared in a
 *          time that does not depend on where two differ, and not written into logs and errors: these get its name instead.
 */
#pragma once

#include <stdbool.h>

#include "base/status.h"

#define SL_LEASE_ID_BYTES 40 // with its terminator

// kind: at most 7 characters in front, for people, or "". SL_ERR_IO: the kernel has no random numbers.
enum sl_status sl_lease_id_draw(const char *kind, char id_out[SL_LEASE_ID_BYTES], struct sl_error *err);
bool sl_lease_id_equals(const char *ours, const char *theirs); // theirs: of any length

// For logs and errors: the same for the same lease, and of no use otherwise.
struct sl_lease_name {
    char text[12];
};
struct sl_lease_name sl_lease_name(const char *id);
