// SPDX-License-Identifier: Apache-2.0
// Purpose: see silence.h.
#include "base/silence.h"

void sl_silence_end(struct sl_silence *silence, int64_t now_ns) {
    silence->heard_ns = silence->looked_ns = now_ns;
}

int64_t sl_silence_look(struct sl_silence *silence, int64_t now_ns, int64_t usual_ns) {
    int64_t late_ns = now_ns - silence->looked_ns - usual_ns;
    if (late_ns > 0) {
        silence->heard_ns += late_ns;
    }
    silence->looked_ns = now_ns > silence->looked_ns ? now_ns : silence->looked_ns;
    return now_ns > silence->heard_ns ? now_ns - silence->heard_ns : 0;
}
