// SPDX-License-Identifier: Apache-2.0
// Reads the next chunk of one prompt as a prefill worker does, and releases its offloaded layers.
#pragma once

#include "net/offload/prefill/offload.h"
#include "engine/runner/reading.h"

// offload: NULL where all layers stay here. *peak_bytes_inout (or NULL): the most of the session and of tiles read back.
static inline enum sl_status read_chunk(const struct sl_runtime *runtime, struct sl_reader *reader,
                                        struct sl_offload *offload, const struct sl_plan *plan,
                                        size_t *peak_bytes_inout, struct sl_error *err) {
    struct sl_reading reading;
    enum sl_status status =
        sl_reading_begin(&reading, runtime, sl_engine_activations(runtime->engine), &reader, 1, err);
    if (status != SL_OK) {
        return status;
    }
    while (sl_reading_attend(&reading)) {
        int layer = reading.pass.layer;
        if (offload && sl_plan_is_offloaded(plan, layer)) {
            struct sl_error why = {0};
            sl_stream_hold(runtime->stream);
            sl_reader_fail(reader, sl_offload_attend(offload, layer, &reading.pass.attends[0], &why), &why);
            sl_reader_fail(reader, sl_stream_release(runtime->stream, &why), &why);
        }
        if (offload && peak_bytes_inout) {
            struct sl_session_stats stats;
            sl_session_get_stats(sl_reader_session(reader), &stats);
            size_t bytes = stats.resident_bytes + sl_offload_arena_bytes(offload);
            *peak_bytes_inout = bytes > *peak_bytes_inout ? bytes : *peak_bytes_inout;
        }
        sl_reading_layer(&reading);
    }
    status = sl_reading_end(&reading, err);
    status = status == SL_OK ? sl_reader_status(reader, err) : status;
    return status == SL_OK && offload ? sl_offload_step(offload, sl_reader_session(reader), err) : status;
}
