// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/rig/store_rig.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/model_place.h"
#include "base/salted_hash.h"
#include "lab/random.h"
#include "lab/result.h"
#include "net/node/send.h"
#include "engine/offload/remote_kv/remote_kv.h"
#include "proto/methods.h"
#include "engine/tensor/half.h"

#define READY_MS   60000 // the memory of its arena is taken first
#define CALL_MS    20000
#define AWAIT_MS   120000
#define STOP_MS    3000
#define N_RANDOM   4096 // distinct numbers; f16 has few more
#define RANDOM_FOR 0x5106ce

// --- the process -----------------------------------------------------------------------------------------------------

enum sl_status sl_store_rig_start(struct sl_store_rig *rig, const char *transport, const char *arena,
                                  struct sl_signals *signals, struct sl_error *err) {
    *rig = (struct sl_store_rig){0};
    char bin[PATH_MAX], path[PATH_MAX + 32];
    SL_TRY(sl_program_folder(bin, err));
    snprintf(path, sizeof path, "%s/sluice-kvstore", bin);
    // The store sends heartbeats to a coordinator that does not exist; it works without one.
    char *argv[] = {path,          "--name",      "bench-store",     "--coordinator",
                    "127.0.0.1:1", "--transport", (char *)transport, "--arena",
                    (char *)arena, "--log",       "error",           NULL};
    SL_TRY(sl_child_start(&rig->child, "kvstore", argv, err));
    const int64_t deadline_ns = sl_deadline_in_ms(READY_MS);
    while (rig->child.running && rig->child.ready[0] == '\0' && sl_now_ns() < deadline_ns) {
        SL_TRY(sl_signals_check(signals, err));
        sl_children_pump(&rig->child, 1, 100, stderr);
    }
    SL_FAIL_IF(!sl_child_ready_value(&rig->child, "rpc", rig->address, sizeof rig->address), err, SL_ERR_PEER_LOST,
               rig->child.running ? "the kvstore was not ready within %d s"
                                  : "the kvstore did not start within %d s; its output is above",
               READY_MS / 1000);
    return SL_OK;
}

enum sl_status sl_store_rig_connect(struct sl_store_rig *rig, const char *transport, struct sl_error *err) {
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = transport};
    SL_TRY(sl_rpc_channel_create(rig->address, NULL, SL_ROLE_ANY, &rig->channel, err));
    SL_TRY(sl_fabric_create(&config, &rig->fabric, err));
    return sl_connections_create(rig->fabric, &rig->connections, err);
}

static void release_remote_kv(struct sl_store_rig *rig) {
    if (rig->remote_kv == NULL) {
        return;
    }
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = rig->remote_kv->lease_id;
    struct sl_error err = {0};
    if (sl_rpc_unary(rig->channel, &sl_method_store_release, &request.base, sl_deadline_in_ms(CALL_MS), NULL, NULL,
                     &err) != SL_OK) {
        fprintf(stderr, "bench: the store keeps a remote KV until its lease ends: %s\n", err.text);
    }
    protobuf_c_message_free_unpacked(&rig->remote_kv->base, NULL);
    rig->remote_kv = NULL;
}

void sl_store_rig_close(struct sl_store_rig *rig) {
    if (rig->channel != NULL) {
        release_remote_kv(rig);
    }
    sl_connections_destroy(&rig->connections);
    sl_fabric_destroy(&rig->fabric); // with its region
    sl_rpc_channel_destroy(&rig->channel);
    sl_child_signal(&rig->child, SIGTERM);
    sl_child_wait_end(&rig->child, STOP_MS, stderr);
}

// --- options ---------------------------------------------------------------------------------------------------------

enum sl_status sl_store_rig_lengths(const char *text, int64_t *lengths_out, int max_lengths, int *n_out,
                                    struct sl_error *err) {
    int n_lengths = 0;
    for (char *end = (char *)text; n_lengths == 0 || *end != '\0'; end += *end == ',') {
        int64_t n = strtoll(end, &end, 10);
        SL_FAIL_IF(n_lengths == max_lengths || n < 1024 || n > 1 << 24 || n % SL_PAGE_SLOTS != 0 ||
                       (*end != ',' && *end != '\0') || (n_lengths > 0 && n <= lengths_out[n_lengths - 1]),
                   err, SL_ERR_INVALID, "--tokens %s: expected at most %d ascending multiples of %d from 1024 on", text,
                   max_lengths, SL_PAGE_SLOTS);
        lengths_out[n_lengths++] = n;
    }
    *n_out = n_lengths;
    return SL_OK;
}

// --- what it holds ---------------------------------------------------------------------------------------------------

void sl_random_halves(uint16_t *out, size_t count, uint64_t seed) {
    uint16_t numbers[N_RANDOM];
    uint64_t state = RANDOM_FOR;
    for (int i = 0; i < N_RANDOM; i++) {
        numbers[i] = sl_f32_to_f16(sl_random_unit(&state));
    }
    state = seed * 0x9E3779B97F4A7C15u + 1;
    for (size_t i = 0; i < count; i++) { // four numbers per state: gigabytes must be filled
        if (i % 4 == 0) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        out[i] = numbers[state >> (16 + 12 * (i % 4)) & (N_RANDOM - 1)];
    }
}

static enum sl_status open_annex(struct sl_store_rig *rig, const struct sl_store_filling *filling,
                                 struct sl_error *err) {
    rig->place = (Sluice__V1__StoreShare)SLUICE__V1__STORE_SHARE__INIT;
    rig->place.address = rig->address;
    rig->place.n_lanes = filling->n_offloaded_heads;
    Sluice__V1__OpenAnnexRequest request = SLUICE__V1__OPEN_ANNEX_REQUEST__INIT;
    request.job_id = (char *)"bench";
    request.share = &rig->place;
    request.head_dim = filling->head_dim;
    request.work_format = SL_KV_F16;
    request.rows_format = (int32_t)filling->rows;
    request.scan_format = (int32_t)filling->scan;
    request.n_tokens = filling->n_tokens;
    size_t n_prefixes = (size_t)(filling->n_tokens / SL_PAGE_SLOTS);
    struct sl_hash128 *prefixes = malloc(sizeof *prefixes * (n_prefixes + 1));
    SL_FAIL_IF(prefixes == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    int64_t unique[2] = {sl_now_ns(), 0}; // remains of an earlier filling must not be confused with this one
    for (size_t i = 0; i < n_prefixes; i++) {
        unique[1] = (int64_t)i;
        memcpy(&prefixes[i], unique, sizeof prefixes[i]);
    }
    request.prefixes = (ProtobufCBinaryData){n_prefixes * sizeof *prefixes, (uint8_t *)prefixes};
    request.prefix_hash = (ProtobufCBinaryData){sizeof *prefixes, prefixes[n_prefixes - 1].bytes};
    ProtobufCMessage *reply = NULL;
    enum sl_status status = sl_rpc_unary(rig->channel, &sl_method_store_open_annex, &request.base,
                                         sl_deadline_in_ms(CALL_MS), NULL, &reply, err);
    free(prefixes);
    if (status == SL_OK) {
        rig->remote_kv = (Sluice__V1__Annex *)reply;
        rig->share = (Sluice__V1__AnnexShare)SLUICE__V1__ANNEX_SHARE__INIT;
        rig->share.share = &rig->place;
        rig->share.annex_id = rig->remote_kv->annex_id;
        rig->share.lease_id = rig->remote_kv->lease_id;
        rig->share.fabric_address = rig->remote_kv->fabric_address;
        rig->share.fabric_epoch = rig->remote_kv->fabric_epoch;
        rig->share.window = rig->remote_kv->window;
        rig->share.lease_ms = rig->remote_kv->lease_ms;
    }
    return status;
}

static enum sl_status ship_segment(struct sl_store_rig *rig, const struct sl_kv_segment_config *segment,
                                   struct sl_error *err) {
    Sluice__V1__GrantStretchRequest request = SLUICE__V1__GRANT_STRETCH_REQUEST__INIT;
    request.lease_id = rig->remote_kv->lease_id;
    request.begin = segment->begin;
    request.n_tokens = (int32_t)segment->n_slots;
    ProtobufCMessage *reply = NULL;
    SL_TRY(sl_rpc_unary(rig->channel, &sl_method_store_grant_stretch, &request.base, sl_deadline_in_ms(CALL_MS), NULL,
                        &reply, err));
    size_t bytes = sl_kv_segment_block_bytes(segment);
    sl_random_halves(rig->region, bytes / sizeof(uint16_t), (uint64_t)segment->begin + 1);
    struct sl_send send = {.destination = (Sluice__V1__Grant *)reply,
                           .body = rig->region,
                           .body_bytes = bytes,
                           .header = (const uint8_t *)"bench",
                           .header_bytes = 5,
                           .deadline_ns = sl_deadline_in_ms(CALL_MS)};
    enum sl_status status = sl_send_capsule(rig->fabric, &send, err);
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

static enum sl_status await(struct sl_store_rig *rig, int64_t n_tokens, struct sl_error *err) {
    Sluice__V1__AwaitAnnexRequest request = SLUICE__V1__AWAIT_ANNEX_REQUEST__INIT;
    request.lease_id = rig->remote_kv->lease_id;
    request.n_tokens = n_tokens;
    return sl_rpc_unary(rig->channel, &sl_method_store_await_annex, &request.base, sl_deadline_in_ms(AWAIT_MS), NULL,
                        NULL, err);
}

// Provides memory for the pages of a segment: regions live as long as their fabric, so a larger one is added.
static enum sl_status take_region(struct sl_store_rig *rig, size_t bytes, struct sl_error *err) {
    if (bytes <= rig->region_bytes) {
        return SL_OK;
    }
    rig->region_bytes = bytes;
    return sl_fabric_region_create(rig->fabric, bytes, 0, &rig->region, err);
}

enum sl_status sl_store_rig_fill(struct sl_store_rig *rig, const struct sl_store_filling *filling,
                                 struct sl_signals *signals, double *seconds_out, struct sl_error *err) {
    struct sl_kv_segment_config segment = {
        .n_offloaded_heads = filling->n_offloaded_heads, .rows = filling->rows, .scan = filling->scan};
    enum sl_status status = sl_page_layout_init(&segment.work, SL_KV_F16, filling->head_dim, 0, false);
    release_remote_kv(rig);
    int64_t begin_ns = sl_now_ns();
    SL_THEN(status, open_annex(rig, filling, err));
    for (int64_t at = 0; at < filling->n_tokens && status == SL_OK; at += filling->segment_tokens) {
        int64_t left = filling->n_tokens - at;
        segment.begin = at;
        segment.n_slots = (uint32_t)(left < filling->segment_tokens ? left : filling->segment_tokens);
        status = take_region(rig, sl_kv_segment_block_bytes(&segment), err);
        SL_THEN(status, ship_segment(rig, &segment, err));
        sl_bench_progress("filling the store: %" PRId64 " of %" PRId64 " tokens", at + segment.n_slots,
                          filling->n_tokens);
        SL_THEN(status, sl_signals_check(signals, err));
    }
    SL_THEN(status, await(rig, filling->n_tokens, err));
    *seconds_out = (double)(sl_now_ns() - begin_ns) / SL_NS_PER_S;
    return status;
}

enum sl_status sl_store_rig_source(struct sl_store_rig *rig, const struct sl_plan *plan, struct sl_source **source_out,
                                   struct sl_error *err) {
    Sluice__V1__AnnexShare *shares[] = {&rig->share};
    return sl_remote_source_create(rig->connections, shares, 1, plan, source_out, err);
}
