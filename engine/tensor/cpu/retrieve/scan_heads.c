// SPDX-License-Identifier: Apache-2.0
// See scan_heads.h. Threads share pieces, because there are more pieces than heads.
#include "engine/tensor/cpu/retrieve/scan_heads.h"

#include "engine/tensor/cpu/attention/heads.h"

struct call {
    const struct sl_scan_call *args;
    sl_scan_fn scan;
};

static void scan_piece(const void *arg, int i) {
    const struct call *call = arg;
    const struct sl_scan_call *args = call->args;
    const struct sl_scan_piece *piece = &args->pieces[i];
    int h = i / (int)args->n_pieces, all[SL_MAX_HEAD_DIM];
    if (piece->begin == piece->end) {
        return;
    }
    for (int c = 0; c < args->n_channels; c++) {
        all[c] = c;
    }
    call->scan(piece, args->q + (size_t)h * (size_t)args->n_channels, all, args->n_channels,
               sl_vector(args->out, h) + piece->at);
}

void sl_scan_heads(struct sl_stream *stream, const struct sl_scan_call *args, sl_scan_fn scan) {
    const struct call call = {args, scan};
    int n = args->n_heads * (int)args->n_pieces;
    size_t work = 0;
    for (int i = 0; i < n; i++) {
        work += (size_t)(args->pieces[i].end - args->pieces[i].begin) * (size_t)args->n_channels;
    }
    sl_each_head(stream, n, work, scan_piece, &call);
}
