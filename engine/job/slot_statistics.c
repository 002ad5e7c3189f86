// SPDX-License-Identifier: Apache-2.0
#include "engine/job/slot_statistics.h"

#include <math.h>
#include <stddef.h>

size_t sl_slot_statistics_bytes(const struct sl_slot_statistics *statistics) {
    return offsetof(struct sl_slot_statistics, told) + (size_t)statistics->n_told * sizeof(statistics->told[0]);
}

void sl_slot_statistics_measure(const struct sl_session *session, struct sl_slot_statistics *statistics_out) {
    *statistics_out = (struct sl_slot_statistics){.n_layers = session->geometry.n_layers};
    int n_heads = session->geometry.n_kv_heads, n_told = session->geometry.n_layers * n_heads;
    statistics_out->n_told = n_told <= SL_MAX_TOLD_HEADS ? n_told : 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        const struct sl_head *heads = session->layers[l].heads;
        uint32_t least = heads[0].n_slots, most = heads[0].n_slots;
        int64_t sum = 0;
        for (int h = 0; h < n_heads; h++) {
            least = heads[h].n_slots < least ? heads[h].n_slots : least;
            most = heads[h].n_slots > most ? heads[h].n_slots : most;
            sum += heads[h].n_slots;
            if (statistics_out->n_told > 0) {
                statistics_out->told[l * n_heads + h] = heads[h].n_slots;
            }
        }
        statistics_out->min[l] = (int32_t)least; // sessions hold less than INT32_MAX slots a head
        statistics_out->max[l] = (int32_t)most;
        statistics_out->mean[l] = (float)((double)sum / n_heads);
    }
    struct sl_session_stats stats;
    sl_session_get_stats(session, &stats);
    Sluice__V1__KvBytes *bytes = &statistics_out->bytes;
    sluice__v1__kv_bytes__init(bytes);
#define X(name, word, ...) bytes->word = (int64_t)stats.bytes_by_format[SL_KV_##name];
    SL_KV_FORMATS(X)
#undef X
}

void sl_slot_statistics_attach(struct sl_slot_statistics *statistics, Sluice__V1__Statistics *message) {
    message->n_slots_min = message->n_slots_mean = message->n_slots_max = (size_t)statistics->n_layers;
    message->slots_min = statistics->min;
    message->slots_mean = statistics->mean;
    message->slots_max = statistics->max;
    message->n_slots = (size_t)statistics->n_told;
    message->slots = statistics->told;
    message->kv_bytes = statistics->n_layers > 0 ? &statistics->bytes : NULL;
}

// Checks that the slots of the heads of a layer, if present, lie between the layer's minimum and maximum.
static bool counts(const Sluice__V1__Statistics *message, size_t layer) {
    size_t n_heads = message->n_slots / message->n_slots_min;
    for (size_t i = layer * n_heads; i < (layer + 1) * n_heads; i++) {
        if ((int64_t)message->slots[i] < message->slots_min[layer] ||
            (int64_t)message->slots[i] > message->slots_max[layer]) {
            return false;
        }
    }
    return message->slots_min[layer] >= 0 && message->slots_max[layer] >= message->slots_min[layer] &&
           isfinite(message->slots_mean[layer]);
}

void sl_slot_statistics_copy(const Sluice__V1__Statistics *message, struct sl_slot_statistics *statistics_out) {
    *statistics_out = (struct sl_slot_statistics){0};
    size_t n = message->n_slots_min;
    if (n < 1 || n > SL_MAX_LAYERS || message->n_slots_mean != n || message->n_slots_max != n || !message->kv_bytes ||
        message->n_slots > SL_MAX_TOLD_HEADS || message->n_slots % n != 0) {
        return;
    }
    for (size_t l = 0; l < n; l++) {
        if (!counts(message, l)) {
            return; // n_layers stays 0: there are none
        }
        statistics_out->min[l] = message->slots_min[l];
        statistics_out->max[l] = message->slots_max[l];
        statistics_out->mean[l] = message->slots_mean[l];
    }
    for (size_t i = 0; i < message->n_slots; i++) {
        statistics_out->told[i] = message->slots[i];
    }
    statistics_out->n_told = (int)message->n_slots;
    const Sluice__V1__KvBytes *from = message->kv_bytes;
    Sluice__V1__KvBytes *to = &statistics_out->bytes;
    sluice__v1__kv_bytes__init(to);
#define X(name, word, ...) to->word = from->word;
    SL_KV_FORMATS(X)
#undef X
    statistics_out->n_layers = (int)n;
}
