// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the handlers of Prefill.Run, Decode.Run and Decode.Archive, and Decode's leases: requests of any content,
 *          several at once, with peers and stores that tell the truth, lie or go. A refused request gets the reason, replies follow the
 *          contract, a call takes a bounded amount of memory, and when all calls have ended nothing is held.
 *
 * Design: both services as they are, with their engines' threads and a small model, in turns (fuzz_turns.h), with peers that the input
 *         controls (fuzz_peers.h). The input is steps. A step is about one of four jobs, whose requests are correct except for the fields
 *         that the step draws: so the code after the first checks is reached, too. A request lives no longer than its handler.
 */
#include <sanitizer/allocator_interface.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/team.h"
#include "decode/internal.h"
#include "net/node/lease_rpc.h"
#include "prefill/internal.h"
#include "prefill/schedule.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "engine/tensor/cpu/device.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/fuzz/fuzz_jobs.h"
#include "tests/fuzz/fuzz_peers.h"
#include "tests/fuzz/fuzz_turns.h"

#define MODEL       "tests/golden/llama/gqa" // of 512 positions and 160 tokens
#define TOKENIZER   "models/demo"
#define VOCABULARY  160
#define ARENA_BYTES ((size_t)2 << 20)
#define CALL_BYTES  ((size_t)4 << 20) // that a handler may take for the time of its call
#define LEASE_MS    1000
#define CHUNK       256
#define N_JOBS      4
#define N_RUNS      6
#define MAX_STEPS   24
#define OFFLOAD     "place=offload/1+2,scope=sinks:8+recent:24,topk=32,channels=4" // four offloaded heads

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sl_node prefill_node;
static struct sl_prefill prefill;
static struct sl_decode decode;
static struct sl_runtime prefill_runtime, decode_runtime;
static uint8_t *memory;
static struct job jobs[N_JOBS];
static struct run runs[N_RUNS];

// ---- what the services have around them ------------------------------------------------------------------------------

bool sl_node_stands_still(const struct sl_node *node) {
    return atomic_load(&node->stands_still);
}

// The engines call this between steps, and sl_schedule_next() between layers: other threads may run.
enum sl_status sl_node_check_device(struct sl_node *node, enum sl_status status, struct sl_error *err) {
    (void)node, (void)err;
    fuzz_pass();
    return status;
}

int fuzz_schedule_next(struct sl_schedule *schedule, const struct sl_schedule_job *waiting, int n);
int fuzz_schedule_next(struct sl_schedule *schedule, const struct sl_schedule_job *waiting, int n) {
    fuzz_pass();
    return sl_schedule_next(schedule, waiting, n);
}

// ---- what handlers send ----------------------------------------------------------------------------------------------

static void look_at_prefill(struct run *run, const Sluice__V1__PrefillEvent *event) {
    if (event->what_case == SLUICE__V1__PREFILL_EVENT__WHAT_PREFILL) {
        const Sluice__V1__PrefillProgress *progress = event->prefill;
        fuzz_require(progress->tokens_total == run->n_tokens && progress->tokens_done >= 0);
        fuzz_require(progress->tokens_done <= run->n_tokens && progress->tokens_reused <= run->n_tokens);
        fuzz_require(progress->resident_bytes >= 0 && progress->resident_bytes <= (int64_t)ARENA_BYTES);
    } else if (event->what_case == SLUICE__V1__PREFILL_EVENT__WHAT_SHIP) {
        fuzz_require(event->ship->bytes_sent >= 0);
    } else {
        fuzz_require(event->what_case == SLUICE__V1__PREFILL_EVENT__WHAT_DONE && event->done->statistics);
        fuzz_require(event->done->statistics->n_prompt_tokens == run->n_tokens);
        run->done = true;
        size_t n = sluice__v1__prefill_event__get_packed_size(event);
        uint8_t *packed = malloc(n + 1);
        fuzz_require(packed != NULL);
        (void)sluice__v1__prefill_event__pack(event, packed);
        sluice__v1__prefill_event__free_unpacked(run->job->done, NULL);
        run->job->done = sluice__v1__prefill_event__unpack(NULL, n, packed);
        free(packed);
    }
}

static void look_at_decode(struct run *run, const Sluice__V1__DecodeEvent *event) {
    if (event->what_case == SLUICE__V1__DECODE_EVENT__WHAT_TOKEN) {
        fuzz_require(event->token->id >= 0 && event->token->id < VOCABULARY);
        fuzz_require(event->token->index == run->next_index++ && run->next_index <= run->most_tokens);
        run->written[run->next_index - 1] = event->token->id;
    } else if (event->what_case == SLUICE__V1__DECODE_EVENT__WHAT_DONE) {
        fuzz_require(event->done->statistics && event->done->text);
        note_kept(run, event->done);
        fuzz_require(event->done->statistics->n_output_tokens == run->next_index);
        run->done = true;
    } else if (event->what_case == SLUICE__V1__DECODE_EVENT__WHAT_NOTICE) {
        fuzz_require(event->notice->text && event->notice->fallbacks > 0);
    } else {
        fuzz_require(event->what_case == SLUICE__V1__DECODE_EVENT__WHAT_ALIVE);
    }
}

static void look(struct sl_rpc_call *call, const ProtobufCMessage *message) {
    struct run *run = (struct run *)call;
    fuzz_require(!run->done); // it was the last
    run->n_sent++;
    if (run->archives) {
        fuzz_require(((const Sluice__V1__ArchiveReply *)message)->bytes > 0);
        run->done = true;
    } else if (run->prefills) {
        look_at_prefill(run, (const Sluice__V1__PrefillEvent *)message);
    } else {
        look_at_decode(run, (const Sluice__V1__DecodeEvent *)message);
    }
}

// ---- requests --------------------------------------------------------------------------------------------------------

static char *recipe_of(int which) {
    static const char *const recipes[] = {"full,chunk=64",
                                          "full,chunk=64,format=int8",
                                          "full,format=int4",
                                          "full,format=int2",
                                          "h2o,budget=0.5,chunk=64",
                                          "snapkv,budget=0.5",
                                          "tova,budget=96,chunk=64",
                                          "streamingllm,budget=128,chunk=128",
                                          "d2o,budget=0.4",
                                          "adakv,budget=0.4",
                                          "roco+caote,budget=128,chunk=64",
                                          "h2o,budget=0.5,chunk=64,when=chunk+step,format=int8",
                                          OFFLOAD ",retrieve=pull",
                                          OFFLOAD ",retrieve=near,scan=int8",
                                          OFFLOAD ",retrieve=near,ahead=1,replicas=2,format=f16/dense:int4",
                                          OFFLOAD ",chunk=64,score=random,budget=0.6,when=chunk"};
    return (char *)recipes[which % 16];
}

static void fill_ids(Sluice__V1__TokenIds *ids, int32_t *room, const struct job *job, size_t n, bool lies) {
    for (size_t i = 0; i < n; i++) {
        room[i] = (int32_t)((job->tokens * 31u + i * (job->tokens / 16u * 2 + 1)) % VOCABULARY);
    }
    if (lies && n > 0) {
        room[fuzz_draw() * 2u % n] = fuzz_draw_int();
    }
    *ids = (Sluice__V1__TokenIds)SLUICE__V1__TOKEN_IDS__INIT;
    ids->n_ids = n;
    ids->ids = room;
}

static ProtobufCBinaryData draw_salt(bool lies) {
    static uint8_t salt[64];
    return (ProtobufCBinaryData){lies ? fuzz_draw() % sizeof salt : 0, salt};
}

static uint16_t draw_lies(void) {
    uint8_t how = fuzz_draw();
    return how < 96 ? 0 : how < 224 ? (uint16_t)(1u << how % 16) : (uint16_t)(fuzz_draw() << 8 | fuzz_draw());
}

static size_t count_or_draw(size_t n, bool lies) {
    size_t drawn = lies ? fuzz_draw() * 3u : n;
    return drawn < POSITIONS * 2 ? drawn : POSITIONS * 2;
}

static ProtobufCMessage *prefill_request(const struct job *job, uint16_t lies) {
    static int32_t room[POSITIONS * 2];
    Sluice__V1__PrefillRequest request = SLUICE__V1__PREFILL_REQUEST__INIT;
    Sluice__V1__TokenIds ids;
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    Sluice__V1__StoreShare shares[3], *pointers[3];
    uint8_t how = fuzz_draw();
    fill_ids(&ids, room, job, count_or_draw(job->n_tokens, lies & 1), lies & 2);
    request.job_id = (char *)"a job";
    request.tokens = lies & 4 && how & 1 ? NULL : &ids;
    request.recipe = lies & 8 ? fuzz_draw_text() : recipe_of(job->recipe);
    grant.ticket = (ProtobufCBinaryData){lies & 16 ? how % 9u : FUZZ_TICKET_BYTES, (uint8_t *)job->ticket};
    grant.capacity_bytes = lies & 32 ? fuzz_draw_number() : (int64_t)ARENA_BYTES;
    request.destination = lies & 4 && how & 2 ? NULL : &grant;
    request.kvstore_address = (char *)(lies & 64 ? fuzz_draw_text() : how & 8 ? "store:1" : "");
    request.no_reuse = request.estimate_errors = how & 16;
    request.n_positions = lies & 128 ? fuzz_draw_number() : (int64_t)job->n_tokens + 64;
    request.n_stores = how & 32 || lies & 256 ? how >> 6 : 1;
    for (size_t i = 0; i < request.n_stores; i++) {
        shares[i] = (Sluice__V1__StoreShare)SLUICE__V1__STORE_SHARE__INIT;
        shares[i].address = (char *)(i == 0 ? "store:1" : "store:2");
        shares[i].first_lane = lies & 256 ? fuzz_draw_int() : 0;
        shares[i].n_lanes = lies & 512 ? fuzz_draw_int() : 4;
        shares[i].replica = lies & 256 ? fuzz_draw_int() : (int32_t)i;
        pointers[i] = &shares[i];
    }
    request.stores = pointers;
    request.salt = draw_salt(lies & 1024);
    request.term = lies & 2048 ? fuzz_draw_number() : 0;
    return fuzz_as_received(&request.base);
}

static Sluice__V1__Sampling draw_sampling(void) {
    static const float odd[] = {0, 1, -1, 1e-30f, 3e38f, __builtin_nanf(""), __builtin_inff(), 0.5f};
    Sluice__V1__Sampling sampling = SLUICE__V1__SAMPLING__INIT;
    uint8_t how = fuzz_draw();
    sampling.temperature_present_case = SLUICE__V1__SAMPLING__TEMPERATURE_PRESENT_TEMPERATURE;
    sampling.temperature = odd[how % 8];
    sampling.top_k_present_case = SLUICE__V1__SAMPLING__TOP_K_PRESENT_TOP_K;
    sampling.top_k = how & 16 ? fuzz_draw_int() : 0;
    sampling.top_p_present_case = how & 32 ? SLUICE__V1__SAMPLING__TOP_P_PRESENT_TOP_P : 0;
    sampling.top_p = odd[how / 2 % 8];
    sampling.repetition_penalty_present_case =
        how & 64 ? SLUICE__V1__SAMPLING__REPETITION_PENALTY_PRESENT_REPETITION_PENALTY : 0;
    sampling.repetition_penalty = odd[how / 4 % 8];
    sampling.logprobs = how & 128 ? fuzz_draw_int() : how / 8 % 4;
    return sampling;
}

// As prefill has said, or as drawn.
static size_t list_remote_kvs(const struct job *job, bool lies, Sluice__V1__StoreShare *shares,
                              Sluice__V1__AnnexShare *at, Sluice__V1__AnnexShare **pointers) {
    size_t n = job->done ? job->done->done->n_annex : 0;
    n = n < 3 ? n : 3;
    for (size_t i = 0; i < n; i++) {
        pointers[i] = job->done->done->annex[i];
    }
    if (!lies) {
        return n;
    }
    n = fuzz_draw() % 4;
    for (size_t i = 0; i < n; i++) {
        shares[i] = (Sluice__V1__StoreShare)SLUICE__V1__STORE_SHARE__INIT;
        shares[i].address = (char *)"store:1";
        shares[i].first_lane = fuzz_draw_int();
        shares[i].n_lanes = fuzz_draw_int();
        shares[i].replica = fuzz_draw_int();
        at[i] = (Sluice__V1__AnnexShare)SLUICE__V1__ANNEX_SHARE__INIT;
        at[i].share = fuzz_draw() == 0 ? NULL : &shares[i];
        at[i].lease_id = fuzz_draw_text();
        at[i].fabric_address = (char *)FUZZ_FABRIC;
        at[i].window = (ProtobufCBinaryData){fuzz_draw() % 9u, (uint8_t *)"tickwwww"};
        at[i].lease_ms = fuzz_draw_number();
        pointers[i] = &at[i];
    }
    return n;
}

// A turn after the job's last one: with its session, or with any capsule that arrives under the job's lease.
static void go_on(const struct job *job, uint8_t how, uint16_t lies, Sluice__V1__DecodeRequest *request,
                  Sluice__V1__TokenIds *ids) {
    static uint8_t hash[16] = {1};
    request->keep_ms = lies & 8192 ? fuzz_draw_number() : how & 32 ? 1000 : 0;
    if (how & 64 && job->n_said > 0) {
        size_t n_new = 1 + fuzz_draw() % 70u;
        ids->n_ids = job->n_said + n_new < POSITIONS ? job->n_said + n_new : POSITIONS;
        memcpy(ids->ids, job->said, sizeof *job->said * job->n_said);
        request->kept = (char *)job->kept;
        request->lease_id = (char *)"";
        request->turn = true;
        request->session_bytes = 1 << 17;
    }
    if (lies & 16384) {
        request->kept = fuzz_draw_text();
        request->session_bytes = fuzz_draw_number();
    }
    if (lies & 32768) {
        request->turn = !request->turn;
        request->capsule_hash = (ProtobufCBinaryData){fuzz_draw() % 17u, hash};
    }
}

static ProtobufCMessage *archive_request(const struct job *job, uint16_t lies) {
    static uint8_t hash[17] = {2};
    Sluice__V1__ArchiveRequest request = SLUICE__V1__ARCHIVE_REQUEST__INIT;
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    request.kept = lies & 1 ? fuzz_draw_text() : (char *)job->kept;
    request.hash = (ProtobufCBinaryData){lies & 2 ? fuzz_draw() % 18u : 16u, hash};
    request.term = lies & 4 ? fuzz_draw_number() : 0;
    request.destination = lies & 8 ? NULL : &grant;
    grant.ticket = (ProtobufCBinaryData){lies & 16 ? fuzz_draw() % 9u : FUZZ_TICKET_BYTES, (uint8_t *)job->ticket};
    grant.capacity_bytes = lies & 32 ? fuzz_draw_number() : 1 << 19;
    grant.lease_id = lies & 64 ? fuzz_draw_text() : (char *)job->lease;
    return fuzz_as_received(&request.base);
}

static ProtobufCMessage *decode_request(const struct job *job, uint16_t lies, struct run *run) {
    static int32_t room[3][POSITIONS * 2];
    Sluice__V1__DecodeRequest request = SLUICE__V1__DECODE_REQUEST__INIT;
    Sluice__V1__TokenIds ids, resumed, said;
    Sluice__V1__Sampling sampling;
    Sluice__V1__StoreShare shares[3];
    Sluice__V1__AnnexShare remote_kvs[3], *pointers[3];
    char *stops[20];
    uint8_t how = fuzz_draw();
    fill_ids(&ids, room[0], job, count_or_draw(job->n_tokens + 1 + how % 2, lies & 1), lies & 2);
    fill_ids(&resumed, room[1], job, how & 4 ? how / 16u : 0, lies & 4);
    request.job_id = (char *)"a job";
    request.lease_id = lies & 8 ? fuzz_draw_text() : how == 255 ? (char *)"" : (char *)job->lease;
    request.prompt = lies & 16 && how & 1 ? NULL : &ids;
    request.resumed = resumed.n_ids > 0 ? &resumed : NULL;
    if (how & 8) {
        fill_ids(&said, room[2], job, lies & 4 ? 2 : 1, lies & 4);
        request.said = &said;
    }
    request.recipe = lies & 32 ? fuzz_draw_text() : recipe_of(job->recipe);
    request.max_new_tokens = lies & 64 ? fuzz_draw_int() : 20;
    if (lies & 128) {
        sampling = draw_sampling();
        request.sampling = &sampling;
    }
    request.n_stop = lies & 256 ? fuzz_draw() % 20 : 0;
    for (size_t i = 0; i < request.n_stop; i++) {
        stops[i] = fuzz_draw_text();
    }
    request.stop = stops;
    request.ignore_eos = how & 8;
    request.estimate_errors = how & 16;
    request.n_annex = list_remote_kvs(job, lies & 512, shares, remote_kvs, pointers);
    request.annex = pointers;
    request.salt = draw_salt(lies & 1024);
    request.term = lies & 2048 ? fuzz_draw_number() : 0;
    go_on(job, how, lies, &request, &ids);
    request.kvstore_address = (char *)(how & 128 ? "store:1" : "");
    run->most_tokens = request.max_new_tokens;
    run->next_index = (int64_t)resumed.n_ids;
    return fuzz_as_received(&request.base);
}

// ---- runs ------------------------------------------------------------------------------------------------------------

static void *run_main(void *arg) {
    struct run *run = arg;
    struct sl_error err = {0};
    enum sl_status status = run->archives   ? sl_decode_handle_archive(&decode, &run->call, run->request, &err)
                            : run->prefills ? sl_prefill_handle_run(&prefill, &run->call, run->request, &err)
                                            : sl_decode_handle_run(&decode, &run->call, run->request, &err);
    fuzz_require(status <= 0 && (status != SL_OK || run->done));
    fuzz_require(status == SL_OK || err.text[0] != '\0' || run->call.cancelled);
    fuzz_require(run->call.on_cancel == NULL);
    protobuf_c_message_free_unpacked(run->request, NULL); // at once: no thread may use it any more
    run->ended = true;
    return NULL;
}

static void end_run(struct run *run) {
    if (run->there) {
        (void)fuzz_join(run->thread, NULL);
        run->there = false;
    }
}

static void step_run(struct job *job, bool prefills, bool archives, uint8_t which) {
    struct run *run = &runs[which % N_RUNS];
    uint16_t lies = draw_lies();
    end_run(run);
    *run = (struct run){.there = true, .prefills = prefills, .archives = archives, .job = job};
    run->call.look = look;
    run->call.deadline_ns = lies & 4096 ? fuzz_deadline_in_ms(fuzz_draw() * 8) : SL_NO_DEADLINE;
    run->request = archives   ? archive_request(job, lies)
                   : prefills ? prefill_request(job, lies)
                              : decode_request(job, lies, run);
    const Sluice__V1__PrefillRequest *request = (const Sluice__V1__PrefillRequest *)run->request;
    run->n_tokens = prefills && request->tokens ? (int64_t)request->tokens->n_ids : 0;
    struct sl_error err;
    fuzz_require(fuzz_thread_start("run", run_main, run, &run->thread, &err) == SL_OK);
}

// ---- leases ----------------------------------------------------------------------------------------------------------

static struct job *reserved;

static void look_at_grant(struct sl_rpc_call *call, const ProtobufCMessage *message) {
    (void)call;
    if (message->descriptor == &sluice__v1__grant__descriptor) {
        const Sluice__V1__Grant *grant = (const Sluice__V1__Grant *)message;
        fuzz_require(strlen(grant->lease_id) < SL_LEASE_ID_BYTES && grant->ticket.len == FUZZ_TICKET_BYTES);
        memcpy(reserved->lease, grant->lease_id, strlen(grant->lease_id) + 1);
        memcpy(reserved->ticket, grant->ticket.data, FUZZ_TICKET_BYTES);
    }
}

static void step_reserve(struct job *job, uint8_t how) {
    Sluice__V1__ReserveRequest request = SLUICE__V1__RESERVE_REQUEST__INIT;
    struct sl_rpc_call call = {.deadline_ns = SL_NO_DEADLINE, .look = look_at_grant};
    struct sl_error err = {0};
    request.job_id = (char *)"a job";
    request.capsule_bytes = how >= 240 ? fuzz_draw_number() : how & 1 ? 1 << 18 : 1 << 19;
    request.session_bytes = how >= 240 ? fuzz_draw_number() : 1 << 17;
    reserved = job;
    enum sl_status status = sl_decode_handle_reserve(&decode, &call, &request.base, &err);
    fuzz_require(status == SL_OK || err.text[0] != '\0');
}

static void step_lease(struct job *job, uint8_t how) {
    struct sl_rpc_call call = {.deadline_ns = SL_NO_DEADLINE, .look = look_at_grant};
    struct sl_error err = {0};
    Sluice__V1__RenewRequest renew = SLUICE__V1__RENEW_REQUEST__INIT;
    Sluice__V1__ReleaseRequest release = SLUICE__V1__RELEASE_REQUEST__INIT;
    renew.lease_id = release.lease_id = job->lease;
    if (how & 1) {
        (void)sl_lease_handle_renew(decode.node.inbound, &call, &renew.base, &err);
    } else {
        (void)sl_lease_handle_release(decode.node.inbound, &call, &release.base);
    }
}

// ---- all of it -------------------------------------------------------------------------------------------------------

static void on_malloc(const volatile void *at, size_t bytes) {
    (void)at;
    struct run *run = fuzz_turn_of(run_main);
    if (run) {
        run->taken += bytes;
        fuzz_require(run->taken < CALL_BYTES);
    }
}

static void on_free(const volatile void *at) {
    (void)at;
}

static void open_runtime(struct sl_runtime *runtime, int max_rows) {
    struct sl_error err;
    fuzz_require(sl_ops_select(NULL, &runtime->ops, &err) == SL_OK);
    fuzz_require(sl_cpu_device_open(NULL, &runtime->device, &err) == SL_OK);
    runtime->stream = sl_device_stream(runtime->device, SL_STREAM_COMPUTE);
    fuzz_require(sl_model_load(MODEL, runtime->ops, SL_WEIGHT_STORED, runtime->stream, NULL, &runtime->model, &err) ==
                 SL_OK);
    runtime->config = sl_model_get_config(runtime->model);
    fuzz_require(runtime->config->max_positions == POSITIONS && runtime->config->n_vocab == VOCABULARY);
    fuzz_require(sl_tokenizer_load(TOKENIZER, &runtime->tokenizer, &err) == SL_OK);
    fuzz_require(sl_engine_create(runtime->model, runtime->stream, max_rows, &runtime->engine, &err) == SL_OK);
}

static void open_node(struct sl_node *node, void *at, const struct sl_runtime *runtime, struct sl_store_client **out) {
    struct sl_error err;
    node->runtime = *runtime;
    node->model_fingerprint = 11;
    node->config.arena_bytes = ARENA_BYTES;
    node->config.lease_ms = LEASE_MS;
    fuzz_require(sl_arena_create(at, ARENA_BYTES, &node->arena, &err) == SL_OK);
    fuzz_require(sl_ledger_create(node->arena, &node->ledger, &err) == SL_OK);
    node->staging = node->arena;
    node->staging_ledger = node->ledger;
    fuzz_require(sl_inbound_create(NULL, node->ledger, node->ledger, LEASE_MS, &node->inbound, &err) == SL_OK);
    fuzz_require(sl_store_client_create(node, out, &err) == SL_OK);
}

static void open_services(void) {
    struct sl_error err;
    prefill = (struct sl_prefill){.node = memset(&prefill_node, 0, sizeof prefill_node)};
    memset(&decode, 0, sizeof decode);
    open_node(&prefill_node, memory, &prefill_runtime, &prefill.store);
    open_node(&decode.node, memory + ARENA_BYTES, &decode_runtime, &decode.store);
    sl_loop_init(&prefill.loop);
    prefill.inbox_end = &prefill.inbox;
    prefill.max_chunk_tokens = CHUNK;
    fuzz_require(!sl_archive_create(&prefill, &prefill.archive, &err));
    fuzz_require(!sl_prefill_stepper_create(&prefill, &prefill.stepper, &err));
    fuzz_require(sl_loop_start(&prefill.loop, "engine", sl_prefill_engine_main, &prefill, &err) == SL_OK);
    sl_loop_init(&decode.loop);
    decode.inbox_end = &decode.inbox;
    sl_kept_init(&decode.kept);
    decode.retrieve_deadline_ms = 200;
    decode.retrieve_lost_ms = 1000;
    fuzz_require(sl_connections_create(NULL, &decode.connections, &err) == SL_OK);
    fuzz_require(!sl_activations_create(decode_runtime.engine, SL_DECODE_MAX_ROWS, &decode.turn_activations, &err));
    decode.write_activations = sl_engine_activations(decode_runtime.engine);
    fuzz_require(sl_loop_start(&decode.loop, "engine", sl_decode_engine_main, &decode, &err) == SL_OK);
}

static void close_node(struct sl_node *node, struct sl_store_client **store) {
    sl_store_client_destroy(store);
    sl_inbound_close(node->inbound);
    fuzz_require(sl_inbound_count(node->inbound) == 0 && sl_ledger_promised_bytes(node->ledger) == 0);
    fuzz_require(atomic_load(&node->engine.n_waiting) == 0);
    sl_inbound_destroy(&node->inbound);
    struct sl_arena_stats stats;
    sl_arena_get_stats(node->arena, &stats);
    fuzz_require(stats.n_blocks == 0);
    sl_ledger_destroy(&node->ledger);
    sl_arena_destroy(&node->arena);
}

static void close_services(bool hastily) {
    for (size_t i = 0; i < N_RUNS; i++) {
        if (runs[i].there && hastily && !runs[i].ended) {
            fuzz_call_cancel(&runs[i].call);
        }
    }
    for (size_t i = 0; i < N_RUNS; i++) {
        end_run(&runs[i]);
    }
    fuzz_require(atomic_load(&prefill.n_jobs) == 0 && atomic_load(&decode.n_jobs) == 0);
    sl_loop_stop(&prefill.loop);
    sl_loop_stop(&decode.loop);
    sl_prefill_stepper_destroy(&prefill.stepper);
    sl_archive_destroy(&prefill.archive); // its thread wakes the engine: before its loop goes
    sl_loop_cleanup(&prefill.loop);
    sl_loop_cleanup(&decode.loop);
    sl_connections_destroy(&decode.connections);
    sl_kept_cleanup(&decode.kept);
    sl_activations_destroy(&decode.turn_activations);
    close_node(&prefill_node, &prefill.store);
    close_node(&decode.node, &decode.store);
    for (size_t i = 0; i < N_JOBS; i++) {
        sluice__v1__prefill_event__free_unpacked(jobs[i].done, NULL);
    }
    fuzz_require(fuzz_turns_count() == 0);
}

static void step(void) {
    uint8_t what = fuzz_draw();
    struct job *job = &jobs[what >> 4 & 3];
    switch (what % 16) {
    case 0:
    case 1: // another prompt
        job->tokens = fuzz_draw();
        job->n_tokens = 1 + fuzz_draw() * 2u;
        job->recipe = fuzz_draw();
        step_reserve(job, fuzz_draw());
        break;
    case 2:
        step_reserve(job, fuzz_draw());
        break;
    case 3:
    case 4:
    case 5:
        step_run(job, true, false, fuzz_draw());
        break;
    case 6:
    case 7:
    case 8:
        step_run(job, false, false, fuzz_draw());
        break;
    case 9: {
        struct run *run = &runs[fuzz_draw() % N_RUNS];
        if (run->there && !run->ended) {
            fuzz_call_cancel(&run->call);
        }
        break;
    }
    case 10:
        fuzz_grant_fail(fuzz_draw());
        break;
    case 11:
        step_lease(job, what >> 6);
        break;
    case 12:
        end_run(&runs[fuzz_draw() % N_RUNS]);
        break;
    case 13:
        step_run(job, false, true, fuzz_draw());
        break;
    default:
        fuzz_wait_ms(what >> 4 << (what & 3));
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sl_error err;
    if (!memory) {
        memory = aligned_alloc(SL_ARENA_UNIT, 2 * ARENA_BYTES);
        fuzz_require(memory && sl_log_configure("error", &err) == SL_OK);
        open_runtime(&prefill_runtime, CHUNK);
        open_runtime(&decode_runtime, SL_DECODE_MAX_ROWS);
        (void)__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    }
    fuzz_input(data, size);
    fuzz_turns_begin(SL_NS_PER_S);
    fuzz_peers_open();
    memset(runs, 0, sizeof runs);
    memset(jobs, 0, sizeof jobs);
    for (size_t i = 0; i < N_JOBS; i++) {
        jobs[i].n_tokens = 65;
    }
    open_services();
    for (int i = 0; i < MAX_STEPS && fuzz_left() > 0; i++) {
        step();
    }
    close_services(size % 2 == 1);
    fuzz_peers_close();
    return 0;
}
