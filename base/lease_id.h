// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: names of leases. A process that knows a lease's id may renew the lease, use it and end it. So the id is 128
 *          random bits, and the time of a comparison does not depend on where two ids differ. Logs and errors never
 *          contain the id; they have the lease's name instead.
 */
#pragma once

#include <stdbool.h>

#include "base/status.h"

#define SL_LEASE_ID_BYTES 40 // with the terminating zero

// Draws an id. kind: a prefix of at most 7 characters for people, or "". SL_ERR_IO: the kernel has no random numbers.
enum sl_status sl_lease_id_draw(const char *kind, char id_out[SL_LEASE_ID_BYTES], struct sl_error *err);
bool sl_lease_id_equals(const char *ours, const char *theirs); // theirs: may have any length

// Returns a name for logs and errors: the same for the same lease. It does not reveal the id.
struct sl_lease_name {
    char text[12];
};
struct sl_lease_name sl_lease_name(const char *id);
