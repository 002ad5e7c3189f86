// SPDX-License-Identifier: Apache-2.0
#include "base/lease_id.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/hash.h"

enum sl_status sl_lease_id_draw(const char *kind, char id_out[SL_LEASE_ID_BYTES], struct sl_error *err) {
    uint64_t bits[2];
    SL_FAIL_IF(getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits, err, SL_ERR_IO,
               "no random numbers from the kernel: %s", strerror(errno));
    snprintf(id_out, SL_LEASE_ID_BYTES, "%.7s%016llx%016llx", kind, (unsigned long long)bits[0],
             (unsigned long long)bits[1]);
    return SL_OK;
}

bool sl_lease_id_equals(const char *ours, const char *theirs) {
    size_t n = strlen(ours);
    if (n == 0 || strlen(theirs) != n) { // the length of ids is not secret; an id that was never drawn matches none
        return false;
    }
    unsigned differ = 0;
    for (size_t i = 0; i < n; i++) {
        differ |= (unsigned)(ours[i] ^ theirs[i]);
    }
    return differ == 0;
}

struct sl_lease_name sl_lease_name(const char *id) {
    struct sl_lease_name name;
    snprintf(name.text, sizeof name.text, "#%08x", (unsigned)sl_hash(id, strlen(id), 0));
    return name;
}
