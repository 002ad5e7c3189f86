// SPDX-License-Identifier: Apache-2.0
// Purpose: the memory of a question's answers, whether they are asked for or read.
#include <stdlib.h>

#include "offload/remote/remote_internal.h"

bool sl_asked_make_room(struct sl_asked *asked, int replica) {
    if (asked->replicas[replica].cap < asked->capacity) {
        free(asked->replicas[replica].answer);
        asked->replicas[replica].cap = (asked->capacity + 63) / 64 * 64;
        asked->replicas[replica].answer = aligned_alloc(64, asked->replicas[replica].cap);
        if (!asked->replicas[replica].answer) {
            asked->replicas[replica].cap = 0;
        }
    }
    return asked->replicas[replica].cap > 0;
}
