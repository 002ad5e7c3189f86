// SPDX-License-Identifier: Apache-2.0
#include "net/node/room.h"

#include <string.h>
#include <sys/statvfs.h>

#include "base/log.h"
#include "base/memory_limit.h"
#include "base/options/config.h"

#define MIN_BYTES     (INT64_C(1) << 20)
#define MAX_BYTES     INT64_C(1000000000000000)
#define PROCESS_BYTES (INT64_C(256) << 20) // code, thread stacks, gRPC's memory and the allocator's overhead
#define SPARE_SHARE   16
#define UNIT          (INT64_C(2) << 20) // a huge page

enum sl_status sl_room_parse(const char *text, int64_t *bytes_out, struct sl_error *err) {
    if (!text || !text[0]) {
        *bytes_out = 0;
        return SL_OK;
    }
    if (strcmp(text, "auto") == 0) {
        *bytes_out = SL_ROOM_AUTO;
        return SL_OK;
    }
    int64_t bytes;
    SL_FAIL_IF(sl_parse_size(text, &bytes) != SL_OK || bytes < MIN_BYTES || bytes > MAX_BYTES, err, SL_ERR_INVALID,
               "--arena: '%s' is neither auto nor a size of 1M or more, such as 64M or 2G", text);
    *bytes_out = bytes;
    return SL_OK;
}

// Returns the free bytes of the file system that holds shared memory; -1: unknown.
static int64_t shared_bytes(void) {
    struct statvfs shm;
    return statvfs("/dev/shm", &shm) == 0 ? (int64_t)shm.f_bavail * (int64_t)shm.f_frsize : -1;
}

enum sl_status sl_room_auto(const char *root, const struct sl_room_needs *needs, int64_t *bytes_out,
                            struct sl_error *err) {
    struct sl_memory_limit limit;
    SL_TRY(sl_memory_limit_read(root, &limit, err));
    int64_t resident = sl_memory_resident(root);
    resident = resident > 0 ? resident : 0;
    int64_t left = limit.bytes - resident - needs->activation_bytes - needs->other_bytes - PROCESS_BYTES;
    int64_t bytes = (left - left / SPARE_SHARE) / UNIT * UNIT;
    int64_t shm = needs->shared ? shared_bytes() : -1;
    bool cut = shm >= 0 && bytes > shm;
    bytes = cut ? shm / UNIT * UNIT : bytes;
    char text[6][32];
    const int64_t values[6] = {bytes > 0 ? bytes : 0,   limit.bytes,        resident,
                               needs->activation_bytes, needs->other_bytes, PROCESS_BYTES};
    for (int i = 0; i < 6; i++) {
        sl_format_bytes((double)values[i], text[i], sizeof text[i]);
    }
    if (bytes < UNIT) {
        return sl_fail(
            err, SL_ERR_EXHAUSTED,
            "--arena auto: nothing is left of %s (%s) beside the %s that this process has, %s of activations, %s of "
            "the service, and %s%s",
            text[1], limit.source, text[2], text[3], text[4], text[5],
            cut ? ": /dev/shm is smaller still; mount a larger one, or use --transport tcp" : "");
    }
    sl_log_info(
        "node", "arena=\"%s\" limit=\"%s\" of=%s resident=\"%s\" activations=\"%s\" service=\"%s\" process=\"%s\"%s",
        text[0], text[1], limit.source, text[2], text[3], text[4], text[5], cut ? " (all that /dev/shm has free)" : "");
    *bytes_out = bytes;
    return SL_OK;
}

enum sl_status sl_room_check(const char *option, int64_t bytes, bool shared, struct sl_error *err) {
    int64_t available = sl_memory_available("");
    int64_t shm = shared ? shared_bytes() : -1;
    if (shm >= 0 && (available < 0 || shm < available)) {
        available = shm;
    }
    return available < 0 || bytes <= available
               ? SL_OK
               : sl_fail(err, SL_ERR_EXHAUSTED, "%s %lld bytes: this machine has %lld available (%s)", option,
                         (long long)bytes, (long long)available,
                         shared ? "memory, or /dev/shm, whichever is less" : "memory");
}
