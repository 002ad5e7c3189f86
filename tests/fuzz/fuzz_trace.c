// SPDX-License-Identifier: Apache-2.0
// Purpose: libFuzzer target for `traceparent`: what is taken for a context says the same again when it is written, and no other byte of a
//          header is looked at than those that are there.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *header = malloc(size); // of its exact size: no zero after it
    if (!header && size) {
        return 0;
    }
    memcpy(header, data, size);
    struct sl_trace trace;
    bool taken = sl_trace_parse(header, size, &trace);
    if (taken != sl_trace_is_set(&trace)) {
        abort();
    }
    if (taken) {
        char again[SL_TRACEPARENT_BYTES];
        sl_trace_format(&trace, again);
        // Version and flags are ours; the ids are theirs.
        if (memcmp(again + 3, header + 3, 50) != 0 || trace.sampled != (again[54] == '1')) {
            abort();
        }
    }
    free(header);
    return 0;
}
