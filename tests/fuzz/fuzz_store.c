// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the handlers of a kvstore, and of a decode worker's Reserve: requests of any content in any order, and any
 *          data that then arrives in the grants. A refused request leaves no lease, no promise and no block. A request takes a bounded
 *          amount of memory, and after all leases are released nothing is held.
 *
 * Design: the input is steps. Requests are made of small numbers and of numbers at the bounds, with the ids of leases that were given.
 *         Nothing is sent: this file replaces grants, windows, calls, clock and threads. The builder and the keeper run as steps.
 */
#include <sanitizer/allocator_interface.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "decode/internal.h"
#include "kvstore/remote_kv/internal.h"
#include "kvstore/internal.h"
#include "net/node/send.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "engine/tensor/cpu/evict/fills.h"
#include "engine/tensor/cpu/retrieve/fills.h"

#define ARENA_BYTES ((size_t)4 << 20)
#define CALL_BYTES  ((size_t)256 << 10) // that a request may take for the time of its call, of 18 KB here at most
#define LEASE_MS    1000
#define N_GRANTS    24
#define N_IDS       8
#define MAX_STEPS   64
#define MODEL       11
#define LOOK_NS     1000000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct sl_grant {
    struct sl_grant_events events;
    void *arg;
    uint8_t *block;
    size_t bytes;
    bool there, over, closed;
};

static struct sl_grant grants[N_GRANTS];
static struct sl_kvstore kvstore;
static struct sl_decode decode;
static struct sl_ops ops;
static char ids[N_IDS][SL_LEASE_ID_BYTES]; // that were given
static size_t n_ids;
static const uint8_t *input;
static size_t left;
static int64_t clock_ns;
static bool calls_fail, keeps_grants;
static jmp_buf builder_over;
static int n_builder_turns;
static size_t taken;
static bool counting;

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static uint8_t draw(void) {
    return left > 0 ? left--, *input++ : 0;
}

// Small, or at a bound.
static int64_t draw_number(void) {
    static const int64_t bounds[] = {
        0,   -1,   INT64_MIN,   INT64_MAX,       INT32_MIN,        INT32_MAX,     64, 65, 128, 512,
        513, 1024, ARENA_BYTES, ARENA_BYTES + 1, (int64_t)1 << 40, INT64_MAX / 64};
    uint8_t what = draw();
    return what < 16 ? bounds[what] : what < 128 ? what - 16 : (int64_t)draw() * 64;
}

static int32_t draw_int(void) {
    int64_t number = draw_number();
    return number > INT32_MAX ? INT32_MAX : number < INT32_MIN ? INT32_MIN : (int32_t)number;
}

// ---- clock, threads and memory ---------------------------------------------------------------------------------------

int64_t sl_now_ns(void) {
    return clock_ns += LOOK_NS;
}

int64_t sl_deadline_in_ms(int64_t ms) {
    return sl_now_ns() + ms * SL_NS_PER_MS;
}

enum sl_status sl_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns) {
    (void)cond, (void)mutex;
    clock_ns = deadline_ns > clock_ns ? deadline_ns : clock_ns;
    return SL_ERR_DEADLINE; // there is no other thread
}

enum sl_status sl_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                               struct sl_error *err) {
    (void)name, (void)fn, (void)arg, (void)thread_out, (void)err;
    return SL_OK;
}

int pthread_join(pthread_t thread, void **answer) {
    (void)thread, (void)answer;
    return 0;
}

// Replaces the builder's wait: after one turn the builder ends.
void fuzz_builder_waits(struct sl_inbound *table, uint64_t *seen_inout, int64_t deadline_ns);
void fuzz_builder_waits(struct sl_inbound *table, uint64_t *seen_inout, int64_t deadline_ns) {
    (void)table, (void)seen_inout, (void)deadline_ns;
    if (n_builder_turns++ > 0) {
        longjmp(builder_over, 1);
    }
}

static void on_malloc(const volatile void *at, size_t bytes) {
    (void)at;
    taken += counting ? bytes : 0;
}

static void on_free(const volatile void *at) {
    (void)at;
}

// ---- the fabric ------------------------------------------------------------------------------------------------------

static uint8_t *new_ticket(size_t *bytes_out) {
    *bytes_out = 8;
    return calloc(1, 8);
}

enum sl_status sl_grant_open(struct sl_fabric *fabric, const struct sl_grant_plan *plan, struct sl_grant **grant_out,
                             uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err) {
    (void)fabric;
    for (size_t i = 0; i < N_GRANTS; i++) {
        if (!grants[i].there) {
            grants[i] = (struct sl_grant){*plan->events, plan->arg, plan->block, plan->bytes, true, false, false};
            *grant_out = &grants[i];
            *ticket_out = new_ticket(ticket_bytes_out);
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a grant");
}

bool sl_grant_is_in_device(const struct sl_grant *grant) {
    (void)grant;
    return false;
}

void sl_grant_renew(struct sl_grant *grant, int64_t deadline_ns) {
    (void)deadline_ns;
    require(grant->there && !grant->closed);
}

static void release(struct sl_grant *grant) {
    grant->there = false;
    grant->events.on_release(grant->arg);
}

void sl_grant_close(struct sl_grant **grant) {
    if (*grant) {
        (*grant)->closed = true;
        if (!keeps_grants) { // else it is in quarantine
            release(*grant);
        }
        *grant = NULL;
    }
}

enum sl_status sl_window_open(struct sl_fabric *fabric, void *base, size_t bytes, struct sl_window **window_out,
                              uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err) {
    (void)fabric, (void)base, (void)bytes, (void)err;
    *window_out = malloc(1);
    *ticket_out = new_ticket(ticket_bytes_out);
    return SL_OK;
}

enum sl_status sl_window_show(struct sl_window *window, const void *at, size_t bytes, struct sl_error *err) {
    (void)err;
    const uint8_t *base = sl_arena_base(kvstore.node.arena), *from = at;
    require(window != NULL && from >= base && bytes <= ARENA_BYTES && from + bytes <= base + ARENA_BYTES);
    return SL_OK;
}

void sl_window_close(struct sl_window **window) {
    free(*window);
    *window = NULL;
}

enum sl_status sl_send_capsule(struct sl_fabric *fabric, const struct sl_send *send, struct sl_error *err) {
    (void)fabric, (void)err;
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < send->body_bytes; i += 61) {
        sum = (uint8_t)(sum ^ ((const uint8_t *)send->body)[i]);
    }
    return SL_OK;
}

const char *sl_fabric_address(const struct sl_fabric *fabric) {
    (void)fabric;
    return "127.0.0.1:1";
}

uint64_t sl_fabric_epoch(const struct sl_fabric *fabric) {
    (void)fabric;
    return 1;
}

void sl_questions_get_stats(struct sl_questions *questions, struct sl_questions_stats *stats_out) {
    (void)questions;
    *stats_out = (struct sl_questions_stats){.n_threads = 1};
}

// ---- calls -----------------------------------------------------------------------------------------------------------

const struct sl_identity *sl_rpc_call_identity(const struct sl_rpc_call *call) {
    static const struct sl_identity coordinator = {.role = SL_ROLE_COORDINATOR};
    (void)call;
    return &coordinator;
}

enum sl_status sl_rpc_call_send(struct sl_rpc_call *call, const ProtobufCMessage *message) {
    (void)call;
    static uint8_t packed[8192];
    require(protobuf_c_message_get_packed_size(message) <= sizeof packed);
    (void)protobuf_c_message_pack(message, packed);
    const char *id =
        message->descriptor == &sluice__v1__grant__descriptor   ? ((const Sluice__V1__Grant *)message)->lease_id
        : message->descriptor == &sluice__v1__annex__descriptor ? ((const Sluice__V1__Annex *)message)->lease_id
        : message->descriptor == &sluice__v1__lookup_reply__descriptor
            ? ((const Sluice__V1__LookupReply *)message)->lease_id
            : NULL;
    if (id && !calls_fail) {
        require(strlen(id) < SL_LEASE_ID_BYTES);
        memcpy(ids[n_ids++ % N_IDS], id, strlen(id) + 1);
    }
    return calls_fail ? SL_ERR_CANCELLED : SL_OK;
}

bool sl_rpc_call_cancelled(const struct sl_rpc_call *call) {
    (void)call;
    return calls_fail;
}

int64_t sl_rpc_call_deadline_ns(const struct sl_rpc_call *call) {
    (void)call;
    return SL_NO_DEADLINE;
}

// ---- requests --------------------------------------------------------------------------------------------------------

static uint8_t hashes[1100 * sizeof(struct sl_hash128)]; // all alike but for the first ones

static ProtobufCBinaryData draw_hashes(int64_t n) {
    uint8_t how = draw();
    size_t bytes = n < 0 ? 0 : (n > 1100 ? 1100 : (size_t)n) * sizeof(struct sl_hash128);
    bytes -= bytes > 0 && how % 16 == 1;
    return (ProtobufCBinaryData){bytes, hashes + (how >> 6) % 2 * sizeof(struct sl_hash128) * (bytes < 64)};
}

static char *draw_id(void) {
    return ids[draw() % N_IDS];
}

static enum sl_status call_reserve(struct sl_error *err) {
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    uint8_t how = draw();
    key.model_fingerprint = MODEL;
    key.recipe_fingerprint = how & 3;
    key.prefix_hash = draw_hashes(1);
    request.key = how == 255 ? NULL : &key;
    request.capsule_bytes = draw_number();
    request.prefix_tokens = draw_number();
    request.prefixes = draw_hashes(how & 4 ? 0 : draw_number());
    return sl_store_handle_reserve(&kvstore, NULL, &request.base, err);
}

static enum sl_status call_decode_reserve(struct sl_error *err) {
    Sluice__V1__ReserveRequest request = SLUICE__V1__RESERVE_REQUEST__INIT;
    request.capsule_bytes = draw_number();
    request.session_bytes = draw_number();
    return sl_decode_handle_reserve(&decode, NULL, &request.base, err);
}

static enum sl_status call_lookup(struct sl_error *err) {
    Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
    Sluice__V1__PrefixKey keys[8], *at[8];
    uint8_t how = draw();
    request.model_fingerprint = MODEL;
    request.recipe_fingerprint = how & 3;
    request.n_prefixes = how >> 5;
    request.prefixes = at;
    for (size_t i = 0; i < request.n_prefixes; i++) {
        keys[i] = (Sluice__V1__PrefixKey)SLUICE__V1__PREFIX_KEY__INIT;
        keys[i].n_tokens = draw_number();
        keys[i].hash = draw_hashes(1);
        at[i] = &keys[i];
    }
    return sl_store_handle_lookup(&kvstore, NULL, &request.base, err);
}

// Replaces the set of protected capsules: all of it, or nothing.
static void step_protect(void) {
    Sluice__V1__ProtectRequest request = SLUICE__V1__PROTECT_REQUEST__INIT;
    Sluice__V1__StoreKey keys[3], *pointers[3] = {&keys[0], &keys[1], &keys[2]};
    struct sl_error err = {0};
    uint8_t how = draw();
    request.n_keys = how % 4;
    request.keys = pointers;
    for (size_t i = 0; i < request.n_keys; i++) {
        sluice__v1__store_key__init(&keys[i]);
        keys[i].model_fingerprint = MODEL;
        keys[i].prefix_hash = draw_hashes(1);
        keys[i].n_lanes = how & 8 ? 2 : 0;
    }
    request.term = how & 4 ? draw_number() : 0;
    enum sl_status status = sl_store_handle_protect(&kvstore, NULL, &request.base, &err);
    for (size_t i = 0; status == SL_OK && i < request.n_keys; i++) {
        struct sl_capsule_id id = {MODEL, 0, {{0}}};
        require(sl_hash128_read(keys[i].prefix_hash.data, keys[i].prefix_hash.len, &id.prefix_hash) &&
                sl_protected_has(kvstore.protected, &id));
    }
    require(status == SL_OK || err.text[0] != '\0');
}

// Forgets a capsule: it is neither stored nor expected afterwards, even while it is read or sent.
static void step_forget(void) {
    Sluice__V1__ForgetRequest request = SLUICE__V1__FORGET_REQUEST__INIT;
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    struct sl_capsule_id id = {MODEL, 0, {{0}}};
    struct sl_error err = {0};
    uint8_t how = draw();
    key.model_fingerprint = MODEL;
    key.recipe_fingerprint = id.recipe_fingerprint = how & 3;
    key.prefix_hash = draw_hashes(1);
    request.key = how == 255 ? NULL : &key;
    request.term = how & 4 ? draw_number() : 0;
    enum sl_status status = sl_store_handle_forget(&kvstore, NULL, &request.base, &err);
    if (status == SL_OK) {
        require(sl_hash128_read(key.prefix_hash.data, key.prefix_hash.len, &id.prefix_hash));
        require(!sl_arrivals_knows(kvstore.arrivals, &id));
    } else {
        require(err.text[0] != '\0');
    }
}

static enum sl_status call_open_annex(struct sl_error *err) {
    Sluice__V1__OpenAnnexRequest request = SLUICE__V1__OPEN_ANNEX_REQUEST__INIT;
    Sluice__V1__StoreShare share = SLUICE__V1__STORE_SHARE__INIT;
    uint8_t how = draw();
    share.first_lane = how & 1 ? draw_int() : 0;
    share.n_lanes = how & 2 ? draw_int() : 2;
    request.model_fingerprint = MODEL;
    request.share = how == 255 ? NULL : &share;
    request.head_dim = how & 4 ? draw_int() : 8;
    request.work_format = how & 8 ? draw_int() : SL_KV_F16;
    request.rows_format = how & 16 ? SL_KV_INT8 : SL_KV_F16;
    request.scan_format = how & 32 ? draw_int() : SL_KV_F16;
    request.n_tokens = draw_number();
    request.prefixes = draw_hashes(request.n_tokens / SL_PREFIX_BLOCK);
    request.prefix_hash = (ProtobufCBinaryData){sizeof(struct sl_hash128), hashes + sizeof hashes - 64};
    Sluice__V1__StoreKey capsule = SLUICE__V1__STORE_KEY__INIT;
    capsule.model_fingerprint = MODEL;
    capsule.prefix_hash = how & 64 ? draw_hashes(1) : request.prefix_hash;
    request.capsule = how & 128 ? &capsule : NULL;
    return sl_store_handle_open_annex(&kvstore, NULL, &request.base, err);
}

static enum sl_status call_with_lease(uint8_t what, struct sl_error *err) {
    char *id = draw_id();
    Sluice__V1__GrantStretchRequest grant = SLUICE__V1__GRANT_STRETCH_REQUEST__INIT;
    Sluice__V1__AwaitAnnexRequest await = SLUICE__V1__AWAIT_ANNEX_REQUEST__INIT;
    Sluice__V1__RenewRequest renew = SLUICE__V1__RENEW_REQUEST__INIT;
    Sluice__V1__ReleaseRequest release = SLUICE__V1__RELEASE_REQUEST__INIT;
    Sluice__V1__FetchRequest fetch = SLUICE__V1__FETCH_REQUEST__INIT;
    Sluice__V1__Grant destination = SLUICE__V1__GRANT__INIT;
    grant.lease_id = await.lease_id = renew.lease_id = release.lease_id = fetch.lease_id = id;
    fetch.destination = &destination;
    switch (what) {
    case 0:
        grant.begin = draw_number();
        grant.n_tokens = draw_int();
        return sl_store_handle_grant_stretch(&kvstore, NULL, &grant.base, err);
    case 1:
        await.n_tokens = draw_number();
        return sl_store_handle_await_annex(&kvstore, NULL, &await.base, err);
    case 2:
        return sl_store_handle_renew(&kvstore, NULL, &renew.base, err);
    case 3:
        return sl_store_handle_release(&kvstore, NULL, &release.base, err);
    default:
        return sl_store_handle_fetch(&kvstore, NULL, &fetch.base, err);
    }
}

static int64_t n_leases(void) {
    return sl_inbound_count(kvstore.node.inbound) + sl_pins_count(kvstore.pins) +
           sl_remote_kv_table_count(kvstore.remote_kvs);
}

// A refused call leaves no lease. (A grant of a segment that is refused may have replaced another: leases can be fewer.)
static void step_call(uint8_t what) {
    int64_t leases = n_leases();
    size_t promised = sl_ledger_promised_bytes(kvstore.node.ledger);
    struct sl_error err = {0};
    taken = 0;
    counting = true;
    enum sl_status status = what == 0   ? call_reserve(&err)
                            : what == 1 ? call_decode_reserve(&err)
                            : what == 2 ? call_lookup(&err)
                            : what == 3 ? call_open_annex(&err)
                                        : call_with_lease((uint8_t)(what - 4), &err);
    counting = false;
    require(taken < CALL_BYTES);
    if (status != SL_OK && !calls_fail) {
        require(err.text[0] != '\0');
    }
    if (status != SL_OK && what <= 3 && !keeps_grants) {
        require(n_leases() == leases && sl_ledger_promised_bytes(kvstore.node.ledger) == promised);
    }
}

// ---- what arrives ----------------------------------------------------------------------------------------------------

// The header of a capsule that a right Reserve is for: of two full pages of one head.
static uint8_t *right_header(const struct sl_capsule_id *id, size_t *bytes_out, size_t *body_bytes_out) {
    struct sl_page_layout layout;
    struct sl_session *session;
    require(sl_page_layout_init(&layout, SL_KV_F16, 8, 0, false) == SL_OK);
    struct sl_session_config config = {.geometry = {1, 1, 8}, .max_slots = 128, .work = &layout, .packed = &layout};
    uint8_t *header = NULL;
    if (sl_session_create(&config, kvstore.node.arena, &session, NULL) != SL_OK) {
        return NULL;
    }
    if (sl_session_reserve(session, 0, 128) == SL_OK) {
        sl_session_set_slots(session, 0, 0, 128);
        session->n_tokens = 128;
        *body_bytes_out = sl_capsule_body_bytes(session);
        require(sl_capsule_write_header(session, id, &header, bytes_out, NULL) == SL_OK);
    }
    sl_session_destroy(&session);
    return header;
}

static void step_arrival(void) {
    uint8_t which = draw(), how = draw();
    struct sl_grant *grant = &grants[which % N_GRANTS];
    if (!grant->there || grant->over || grant->closed) {
        return;
    }
    grant->over = true;
    if (how & 1) {
        grant->events.on_failure(grant->arg, SL_ERR_PEER_LOST, "it went");
        return;
    }
    for (size_t i = 0; i < grant->bytes && i < 65536; i++) {
        grant->block[i] = (uint8_t)(how + i * 31); // NaNs and infinities among them
    }
    struct sl_capsule_id id = {MODEL, how >> 6, {{0}}};
    size_t header_bytes = 0, body_bytes = grant->bytes;
    uint8_t *header = how & 2 ? right_header(&id, &header_bytes, &body_bytes) : NULL;
    for (int i = how >> 2 & 3; header && i > 0; i--) {
        size_t at = draw() * 7u;
        header[at % header_bytes] ^= draw();
    }
    if (body_bytes <= grant->bytes) {
        grant->events.on_complete(grant->arg, header ? header : (const void *)"", header_bytes, body_bytes);
    } else {
        grant->events.on_failure(grant->arg, SL_ERR_RANGE, "more than was granted");
    }
    free(header);
}

static void step_threads(uint8_t how) {
    sl_arrivals_cache(kvstore.arrivals);
    n_builder_turns = 0;
    if (setjmp(builder_over) == 0) {
        (void)sl_remote_kv_table_builder_main(kvstore.remote_kvs);
    }
    if (how & 0x40) {
        clock_ns += (int64_t)(how & 0x30) * LEASE_MS / 32 * SL_NS_PER_MS;
        sl_pins_reap(kvstore.pins, sl_now_ns());
        sl_remote_kv_table_reap(kvstore.remote_kvs, sl_now_ns());
    }
}

// ---- all of it -------------------------------------------------------------------------------------------------------

static void open_store(uint8_t *memory) {
    struct sl_node *node = &kvstore.node;
    struct sl_error err;
    memset(&kvstore, 0, sizeof kvstore);
    memset(&decode, 0, sizeof decode);
    node->config.arena_bytes = ARENA_BYTES;
    node->config.lease_ms = LEASE_MS;
    kvstore.max_scan_load = 1;
    require(sl_arena_create(memory, ARENA_BYTES, &node->arena, &err) == SL_OK);
    require(sl_ledger_create(node->arena, &node->ledger, &err) == SL_OK);
    require(sl_inbound_create(NULL, node->ledger, node->ledger, LEASE_MS, &node->inbound, &err) == SL_OK);
    require(sl_capsule_cache_create(node->arena, LEASE_MS, &kvstore.capsule_cache, &err) == SL_OK);
    require(sl_protected_create(0, &kvstore.protected, &err) == SL_OK);
    sl_capsule_cache_protect(kvstore.capsule_cache, kvstore.protected);
    require(sl_kv_segments_create(LEASE_MS, &kvstore.segments, &err) == SL_OK);
    sl_room_init(&kvstore.room, node->ledger, node->inbound, kvstore.capsule_cache, kvstore.segments);
    require(sl_pins_create(kvstore.capsule_cache, LEASE_MS, &kvstore.pins, &err) == SL_OK);
    require(sl_remote_kv_pins_create(kvstore.segments, ARENA_BYTES / SL_PROTECTED_SHARE, LEASE_MS,
                                     &kvstore.remote_kv_pins, &err) == SL_OK);
    struct sl_document_layers_config layers = {.pins = kvstore.remote_kv_pins, .room = &kvstore.room, .ops = &ops};
    require(sl_document_layers_create(&layers, &kvstore.layers, &err) == SL_OK);
    require(sl_arrivals_create(&kvstore.room, NULL, kvstore.layers, &kvstore.arrivals, &err) == SL_OK);
    struct sl_remote_kv_table_config remote_kvs = {
        &kvstore.room, &ops, NULL, LEASE_MS, NULL, (struct sl_fabric *)&kvstore, kvstore.remote_kv_pins};
    require(sl_remote_kv_table_create(&remote_kvs, &kvstore.remote_kvs, &err) == SL_OK);
    decode.node.inbound = node->inbound;
    decode.node.ledger = node->ledger;
}

// Every lease ends; then nothing is held but what is cached.
static void close_store(void) {
    struct sl_node *node = &kvstore.node;
    keeps_grants = calls_fail = false;
    for (size_t i = 0; i < N_GRANTS; i++) {
        if (grants[i].there && grants[i].closed) {
            release(&grants[i]);
        }
    }
    sl_remote_kv_table_destroy(&kvstore.remote_kvs);
    sl_pins_destroy(&kvstore.pins);
    sl_arrivals_destroy(&kvstore.arrivals);
    sl_inbound_close(node->inbound);
    require(sl_inbound_count(node->inbound) == 0 && sl_ledger_promised_bytes(node->ledger) == 0);
    sl_document_layers_destroy(&kvstore.layers);
    sl_remote_kv_pins_destroy(&kvstore.remote_kv_pins);
    sl_capsule_cache_destroy(&kvstore.capsule_cache);
    sl_protected_destroy(&kvstore.protected);
    sl_kv_segments_destroy(&kvstore.segments);
    struct sl_arena_stats stats;
    sl_arena_get_stats(node->arena, &stats);
    require(stats.n_blocks == 0);
    sl_room_cleanup(&kvstore.room);
    sl_inbound_destroy(&node->inbound);
    sl_ledger_destroy(&node->ledger);
    sl_arena_destroy(&node->arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t *memory;
    struct sl_error err;
    if (!memory) {
        memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
        require(memory && sl_log_configure("error", &err) == SL_OK);
        sl_ref_kv_slots_fill(&ops);
        sl_ref_scan_fill(&ops);
        sl_ref_select_fill(&ops);
        (void)__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
        memset(hashes + sizeof hashes - 1024, 0, 1024);
    }
    input = data;
    left = size;
    clock_ns = SL_NS_PER_S;
    n_ids = 0;
    memset(ids, 0, sizeof ids);
    memset(grants, 0, sizeof grants);
    calls_fail = keeps_grants = false;
    open_store(memory);
    for (int i = 0; i < MAX_STEPS && left > 0; i++) {
        uint8_t what = draw();
        if (what % 16 < 9) {
            calls_fail = what & 0x80 && what & 0x40;
            step_call(what % 16);
            calls_fail = false;
        } else if (what % 16 < 12) {
            step_arrival();
        } else if (what % 16 == 12) {
            keeps_grants = what & 0x40;
        } else if (what % 16 == 15 && what & 0x80) {
            step_protect();
        } else if (what % 16 == 15) {
            step_forget();
        } else {
            step_threads(what);
        }
    }
    close_store();
    return 0;
}
