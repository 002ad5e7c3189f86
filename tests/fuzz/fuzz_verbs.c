// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for a fabric's handlers of peers' messages, without the frames: HELLO, CLAIM, SEGMENT, FINAL, ANSWER, PLACE,
 *          REQUEST, READ and the rest. They come in any order and of any content, from strangers, writers, owners and readers, while grants,
 *          windows, ships, requests and fetches begin and end. Nothing outside of a grant is written, nothing outside of a window is read,
 *          and nothing leaks.
 *
 * Design: the input is steps. A step with a message makes a correct one for the current state, changes some of its bytes, and delivers it by
 *         link or UCX, whole or in part. Memory that no grant or window covers is poisoned (AddressSanitizer). fuzz_transports.h has the
 *         layers below.
 */
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "net/fabric/fetch.h"
#include "net/fabric/ship.h"
#include "tests/fuzz/fuzz_transports.h"

#define SLOT_BYTES  16384 // of our memory: a grant's block lies inside, the last is the window's
#define BLOCK_AT    4096
#define BLOCK_BYTES 8192
#define N_GRANTS    3
#define N_EACH      3 // ships, requests, fetches
#define N_INCOMING  8
#define MAX_STEPS   96
#define MAX_HEADER  (sizeof(struct sl_wire_hello) + SL_HELLO_ADDRESS_MAX_BYTES)
#define THEIR_EPOCH 77 // of the peer that we connect to
#define THEIR_BYTES 4096
#define THEIRS      "127.0.0.1:9"
#define PATIENCE_MS 4000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct target {
    struct sl_grant *grant;
    bool there; // its block may be written
    int n_ends;
    struct sl_wire_ticket head;
    uint64_t n_segments, bytes; // that right messages have brought
} targets[N_GRANTS];
static struct sl_region region, device_region;
// A device's memory, by its own addresses: no code touches it. Arrivals are with the verifier until they end.
static _Alignas(4096) uint8_t device[N_GRANTS * SLOT_BYTES];
static struct sl_arrival *arrivals[N_GRANTS];
static bool ends_arrivals; // at once: the fabric stops
static _Alignas(4096) uint8_t memory[(N_GRANTS + 1) * SLOT_BYTES];
static struct sl_window *window;
static struct sl_wire_ticket window_head;
static struct sl_connection *connection;
static struct sl_ship *ships[N_EACH];
static struct sl_fabric_request *requests[N_EACH];
static uint8_t *replies[N_EACH];
static struct sl_fetch *fetches[N_EACH];
static uint8_t *fetched[N_EACH];
static struct sl_fabric_incoming *incoming[N_INCOMING];
static const uint8_t *input;
static size_t left;
static int n_steps;

static uint8_t draw(void) {
    return left > 0 ? left--, *input++ : 0;
}

// ---- our side --------------------------------------------------------------------------------------------------------

static uint8_t *block_of(const struct target *target) {
    return memory + (target - targets) * SLOT_BYTES + BLOCK_AT;
}

static void on_complete(void *arg, const void *header, size_t header_bytes, size_t body_bytes) {
    struct target *target = arg;
    fuzz_touch(header, header_bytes);
    fuzz_require(target->there && target->n_ends++ == 0 && body_bytes <= BLOCK_BYTES);
}

static void on_failure(void *arg, enum sl_status status, const char *text) {
    struct target *target = arg;
    fuzz_require(target->there && target->n_ends++ == 0 && status < 0 && text[0] != '\0');
}

static void on_release(void *arg) {
    struct target *target = arg;
    fuzz_require(target->there && !arrivals[target - targets]);
    target->there = false;
    target->grant = NULL;
    ASAN_POISON_MEMORY_REGION(block_of(target), BLOCK_BYTES);
}

static void end_arrival(size_t i, uint8_t how) {
    if (arrivals[i]) {
        enum sl_status status = how % 4 == 1 ? SL_ERR_PEER_CORRUPT : how % 4 == 2 ? SL_ERR_INTERNAL : SL_OK;
        sl_arrival_end(&arrivals[i], status, how / 4);
    }
}

static void on_arrived(void *arg, struct sl_arrival *arrival) {
    struct target *target = arg;
    size_t i = (size_t)(target - targets);
    fuzz_require(target->there && !arrivals[i] && arrival->n > 0);
    for (uint32_t at = 0; at < arrival->n; at++) {
        const struct sl_arrived *one = &arrival->at[at];
        size_t offset = (size_t)((const uint8_t *)one->data - device) - i * SLOT_BYTES, sum = 0;
        for (uint32_t part = 0; part < one->n_parts; part++) {
            fuzz_require(one->part_bytes[part] > 0);
            sum += one->part_bytes[part];
        }
        fuzz_require(sum == one->bytes && offset <= BLOCK_BYTES && one->bytes <= BLOCK_BYTES - offset);
    }
    arrivals[i] = arrival;
    uint8_t how = draw();
    if (ends_arrivals || how & 1) {
        end_arrival(i, how >> 1);
    }
}

static void step_grant(struct sl_fabric *fabric) {
    static const struct sl_grant_events events = {on_complete, on_failure, on_release};
    uint8_t what = draw();
    struct target *target = &targets[what % N_GRANTS];
    struct sl_error err;
    if (arrivals[what % N_GRANTS] && what & 0x10) {
        end_arrival(what % N_GRANTS, what >> 5);
    } else if (target->grant && what & 0x80) {
        sl_grant_close(&target->grant);
    } else if (target->grant) {
        sl_grant_renew(target->grant, sl_deadline_in_ms(what));
    } else if (!target->there) {
        uint8_t *ticket = NULL;
        size_t bytes;
        *target = (struct target){.there = true};
        ASAN_UNPOISON_MEMORY_REGION(block_of(target), BLOCK_BYTES);
        void *there = what & 0x40 ? device + (target - targets) * SLOT_BYTES : NULL;
        struct sl_grant_plan plan = {
            block_of(target), BLOCK_BYTES, sl_deadline_in_ms(PATIENCE_MS), &events, target, there, on_arrived};
        fuzz_require(sl_grant_open(fabric, &plan, &target->grant, &ticket, &bytes, &err) == SL_OK);
        memcpy(&target->head, ticket, sizeof target->head);
        free(ticket);
    }
}

static void step_window(struct sl_fabric *fabric) {
    uint8_t what = draw(), *base = memory + N_GRANTS * SLOT_BYTES, *ticket = NULL;
    size_t bytes;
    struct sl_error err;
    if (!window) {
        fuzz_require(sl_window_open(fabric, base, SLOT_BYTES, &window, &ticket, &bytes, &err) == SL_OK);
        memcpy(&window_head, ticket, sizeof window_head);
        free(ticket);
    } else if (what & 0x80) {
        sl_window_close(&window);
        ASAN_POISON_MEMORY_REGION(base, SLOT_BYTES);
    } else {
        uint8_t *at = base + (size_t)what % 32 * 512;
        size_t n = 8 + (size_t)draw() * 8;
        n = n < (size_t)(base + SLOT_BYTES - at) ? n : (size_t)(base + SLOT_BYTES - at);
        fuzz_require(sl_window_show(window, at, n, &err) == SL_OK);
        ASAN_UNPOISON_MEMORY_REGION(at, n);
    }
}

static size_t their_ticket(uint32_t magic, uint8_t *to) {
    struct sl_wire_ticket head = {.magic = magic,
                                  .version = SL_WIRE_VERSION,
                                  .epoch = THEIR_EPOCH,
                                  .generation = 9,
                                  .bytes = THEIR_BYTES,
                                  .id = 1,
                                  .address_bytes = sizeof THEIRS - 1};
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, THEIRS, sizeof THEIRS - 1);
    size_t bytes = sizeof head + sizeof THEIRS - 1;
    head.digest = sl_hash(to + sizeof head.digest, bytes - sizeof head.digest, 0);
    memcpy(to, &head.digest, sizeof head.digest);
    return bytes;
}

static void step_ship(struct sl_fabric *fabric) {
    static uint8_t source[THEIR_BYTES];
    uint8_t what = draw(), ticket[SL_TICKET_MAX_BYTES];
    struct sl_ship **ship = &ships[what % N_EACH];
    struct sl_error err;
    if (!*ship) {
        size_t bytes = their_ticket(SL_WIRE_MAGIC, ticket);
        fuzz_require(sl_ship_open(fabric, ticket, bytes, sl_deadline_in_ms(PATIENCE_MS), ship, &err) == SL_OK);
    } else if ((*ship)->detached) {
        sl_ship_close(ship);
    } else if (what & 0x80) {
        (*ship)->close_wanted = true; // sl_ship_close() would wait for the very thread that this is
    } else if (what & 0x40) {
        (*ship)->header = "a header";
        (*ship)->header_bytes = 8;
        (*ship)->finish_wanted = true;
    } else {
        (void)sl_ship_piece(*ship, (size_t)draw() * 8, source, (size_t)draw() * 8);
    }
    if (*ship) {
        atomic_store(&(*ship)->work, true);
    }
}

static void step_request(struct sl_fabric *fabric) {
    uint8_t what = draw();
    struct sl_fabric_request **request = &requests[what % N_EACH];
    struct sl_error err;
    size_t bytes;
    if (!connection) {
        fuzz_require(sl_connection_open(fabric, THEIRS, THEIR_EPOCH, &connection, &err) == SL_OK);
    } else if (what & 0x80 && !*request) {
        sl_connection_close(&connection);
    } else if (what & 0x80) {
        sl_fabric_request_close(request);
        free(replies[what % N_EACH]);
        replies[what % N_EACH] = NULL;
    } else if (*request) {
        if (sl_fabric_request_wait(*request, 0, &bytes, &err) == SL_OK) {
            fuzz_require(bytes <= 600);
        }
    } else {
        uint8_t *reply = replies[what % N_EACH] = malloc(600);
        fuzz_require(reply && sl_fabric_request_open(
                                  connection,
                                  &(struct sl_fabric_question){"body", 4, reply, 600, sl_deadline_in_ms(PATIENCE_MS)},
                                  request, &err) == SL_OK);
    }
}

// Closed at the end alone: closing waits for the very thread that this is.
static void step_fetch(struct sl_fabric *fabric) {
    uint8_t what = draw(), ticket[SL_TICKET_MAX_BYTES];
    size_t at = what % N_EACH, n = 1 + what / 64, bytes = what & 0x20 ? THEIR_BYTES / 4 : 64;
    struct sl_fetch_range ranges[4];
    struct sl_error err;
    if (fetches[at] || !connection) {
        step_request(fabric);
        return;
    }
    uint8_t *to = fetched[at] = malloc(n * bytes);
    for (size_t i = 0; i < n; i++) { // from the last to the first: they stay apart
        ranges[i] = (struct sl_fetch_range){(n - 1 - i) * bytes, to + i * bytes, bytes};
    }
    size_t ticket_bytes = their_ticket(SL_WIRE_WINDOW_MAGIC, ticket);
    fuzz_require(to &&
                 sl_fetch_open(connection,
                               &(struct sl_fetch_plan){ticket, ticket_bytes, ranges, n, sl_deadline_in_ms(PATIENCE_MS)},
                               &fetches[at], &err) == SL_OK);
}

static void on_request(void *arg, struct sl_fabric_incoming *it) {
    (void)arg;
    size_t bytes;
    const uint8_t *body = sl_fabric_incoming_body(it, &bytes);
    fuzz_touch(body, bytes);
    for (size_t i = 0; i < N_INCOMING; i++) {
        if (!incoming[i]) {
            incoming[i] = it;
            return;
        }
    }
    sl_fabric_incoming_reply(&it, NULL, 0, NULL, NULL);
}

static void step_reply(void) {
    uint8_t what = draw();
    if (incoming[what % N_INCOMING]) {
        sl_fabric_incoming_reply(&incoming[what % N_INCOMING], memory + BLOCK_AT - 1, 0, NULL, NULL);
    }
}

// ---- messages: right ones, for what is there -----------------------------------------------------------------------------

struct body {
    size_t bytes;
    uint8_t seed;
};

static size_t put(uint8_t *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return bytes;
}

static uint64_t digest_of(const struct body *body) {
    uint8_t *bytes = malloc(body->bytes + 1);
    fuzz_require(bytes != NULL);
    fuzz_fill(bytes, body->bytes, body->seed);
    uint64_t digest = sl_hash(bytes, body->bytes, 0);
    free(bytes);
    return digest;
}

static size_t right_hello(const struct sl_link *link, const struct sl_fabric *fabric, uint8_t *to) {
    uint8_t how = draw();
    struct sl_wire_hello hello = {.magic = SL_WIRE_MAGIC,
                                  .version = SL_WIRE_VERSION,
                                  .epoch = link->connected ? THEIR_EPOCH : THEIR_EPOCH + 2,
                                  .wanted = fabric->epoch,
                                  .heartbeat_ms = 1000,
                                  .host_id = how & 1 ? fabric->host_id : 1,
                                  .number = how,
                                  .address_bytes = how & 2 ? 8 : 0};
    size_t n = put(to, &hello, sizeof hello);
    memset(to + n, how, hello.address_bytes);
    return n + hello.address_bytes;
}

static size_t right_segment(struct target *target, struct sl_wire_key key, uint8_t *to, struct body *body) {
    uint8_t how = draw(), part = draw();
    uint64_t offset = (uint64_t)(how & 0x7f) * 64;
    *body = (struct body){8 + (size_t)part * 32, how};
    uint32_t bytes = (uint32_t)body->bytes;
    struct sl_wire_segment segment = {key, offset, digest_of(body), bytes, 1};
    if (how & 0x80 && target->there && offset + bytes <= BLOCK_BYTES) { // it has been put
        segment.digest = sl_hash(block_of(target) + offset, bytes, 0);
        body->bytes = 0;
    }
    target->n_segments++;
    target->bytes += bytes;
    size_t n = put(to, &segment, sizeof segment);
    return n + put(to + n, &bytes, sizeof bytes);
}

static size_t to_owner(enum sl_wire_id id, uint8_t *to, struct body *body) {
    uint8_t which = draw();
    struct target *target = &targets[which % N_GRANTS];
    struct sl_wire_key key = {target->head.generation, 1 + which / 64, target->head.id, 0};
    if (id == SL_WIRE_CLAIM) {
        struct sl_wire_claim claim = {key, target->head.secret, which >> 5 & 1, 0};
        return put(to, &claim, sizeof claim);
    }
    if (id == SL_WIRE_SEGMENT) {
        return right_segment(target, key, to, body);
    }
    if (id == SL_WIRE_FINAL) {
        *body = (struct body){draw(), which};
        struct sl_wire_final final = {key, target->n_segments, target->bytes, digest_of(body), body->bytes};
        return put(to, &final, sizeof final);
    }
    struct sl_wire_abort abortion = {.key = key, .status = SL_ERR_CANCELLED}; // begins as a query does
    return put(to, &abortion, id == SL_WIRE_QUERY ? sizeof(struct sl_wire_query) : sizeof abortion);
}

static size_t right_place(uint8_t kind, uint8_t *to) {
    struct sl_wire_place place = {0x10000 + (uint64_t)(kind >> 4) * 1024, THEIR_BYTES, FUZZ_KEY_BYTES, 0};
    size_t n = put(to, &place, sizeof place);
    memset(to + n, kind, FUZZ_KEY_BYTES);
    return n + FUZZ_KEY_BYTES;
}

static size_t to_sender(enum sl_wire_id id, uint8_t *to) {
    uint8_t which = draw();
    const struct sl_ship *ship = ships[which % N_EACH];
    struct sl_wire_key key = {9, ship ? ship->id : 1, 1, 0};
    if (id == SL_WIRE_PLACE) {
        size_t n = put(to, &key, sizeof key);
        return n + right_place(draw(), to + n);
    }
    struct sl_wire_answer answer = {
        .key = key, .status = which & 0x80 ? SL_OK : SL_INPROGRESS, .flags = which >> 4 & 3};
    memset(answer.text, which & 8 ? 'x' : 0, sizeof answer.text);
    return put(to, &answer, sizeof answer);
}

static size_t to_reader(enum sl_wire_id id, uint8_t *to, struct body *body) {
    const uint8_t *last = fuzz_wire.last[id == SL_WIRE_REPLY        ? SL_WIRE_REQUEST
                                         : id == SL_WIRE_READ_REPLY ? SL_WIRE_READ
                                                                    : SL_WIRE_LOOK];
    uint8_t how = draw();
    if (id == SL_WIRE_REPLY) {
        struct sl_wire_reply reply = {0};
        memcpy(&reply.id, last, sizeof reply.id);
        *body = (struct body){(size_t)how * 8, how};
        return put(to, &reply, sizeof reply);
    }
    if (id == SL_WIRE_READ_REPLY) {
        struct sl_wire_read read;
        memcpy(&read, last, sizeof read);
        struct sl_wire_read_reply reply = {read.slot, read.serial, 0, 0};
        *body = (struct body){(size_t)(how & 7) * 64, how};
        body->bytes = how & 8 ? (size_t)(1 + (how & 3)) * THEIR_BYTES / 4 : body->bytes;
        return put(to, &reply, sizeof reply);
    }
    struct sl_wire_look_reply reply = {
        .generation = 9, .window_id = 1, .status = how & 0x40 ? SL_ERR_UNSUPPORTED : SL_OK};
    size_t n = put(to, &reply, offsetof(struct sl_wire_look_reply, place));
    return n + right_place(how, to + n);
}

static struct sl_wire_range ranges_of_read[SL_READ_MAX_RANGES];

static size_t to_window(enum sl_wire_id id, uint8_t *to, struct body *body) {
    struct sl_wire_look look = {window_head.generation, window_head.secret, window_head.id, 0};
    if (id == SL_WIRE_LOOK) {
        return put(to, &look, sizeof look);
    }
    struct sl_wire_read read = {look.generation, look.secret, look.window_id, draw() % SL_READS_PER_PEER, 1,
                                1 + draw() % 5};
    for (uint32_t i = 0; i < read.n_ranges; i++) {
        ranges_of_read[i] = (struct sl_wire_range){(uint64_t)draw() * 64, 1 + draw() * 8};
    }
    body->bytes = read.n_ranges * sizeof *ranges_of_read;
    return put(to, &read, sizeof read);
}

static size_t right(enum sl_wire_id id, const struct sl_link *link, uint8_t *to, struct body *body) {
    switch (id) {
    case SL_WIRE_HELLO:
        return right_hello(link, fuzz_wire.fabric, to);
    case SL_WIRE_CLAIM:
    case SL_WIRE_SEGMENT:
    case SL_WIRE_FINAL:
    case SL_WIRE_QUERY:
    case SL_WIRE_ABORT:
        return to_owner(id, to, body);
    case SL_WIRE_ANSWER:
    case SL_WIRE_PLACE:
        return to_sender(id, to);
    case SL_WIRE_REPLY:
    case SL_WIRE_READ_REPLY:
    case SL_WIRE_LOOK_REPLY:
        return to_reader(id, to, body);
    case SL_WIRE_READ:
    case SL_WIRE_LOOK:
        return to_window(id, to, body);
    case SL_WIRE_REQUEST:
    case SL_WIRE_CANCEL: {
        *body = (struct body){id == SL_WIRE_REQUEST ? (size_t)draw() * 100 : 0, 1};
        struct sl_wire_request request = {draw() % 4, 4, (uint32_t)body->bytes, 0};
        return put(to, &request, id == SL_WIRE_REQUEST ? sizeof request : sizeof(struct sl_wire_cancel));
    }
    default:
        return put(to, &fuzz_wire.now_ns, 8);
    }
}

static void step_message(void) {
    uint8_t which = draw(), id = draw(), how = draw(), header[MAX_HEADER];
    struct sl_link *link = fuzz_wire.links;
    for (int i = 0; link && link->next && i < which % 4; i++) {
        link = link->next;
    }
    if (!link || !link->owner) {
        return;
    }
    struct fuzz_frame frame = {.id = id % (SL_WIRE_END + 1), .by_ucx = how & 0x80, .on_its_way = how & 0x40};
    struct body body = {0, 0};
    size_t n = frame.id < SL_WIRE_END ? right(frame.id, link, header, &body) : 0;
    for (int i = how & 3; i > 0 && n > 0; i--) {
        size_t at = draw();
        header[at % n] ^= draw();
    }
    if (how & 4) {
        n = draw() % (n + 1);
    }
    if (how & 8) {
        body.bytes = (size_t)draw() << (draw() % 18);
    }
    uint8_t *copy = malloc(n + 1); // exactly: a read past its end is detected
    fuzz_require(copy != NULL);
    ASAN_POISON_MEMORY_REGION(copy + n, 1);
    memcpy(copy, header, n);
    frame.header = copy;
    frame.header_bytes = n;
    frame.bytes = body.bytes;
    frame.seed = body.seed;
    frame.whole = frame.id == SL_WIRE_READ && body.bytes <= sizeof ranges_of_read ? ranges_of_read : NULL;
    fuzz_deliver(link, &frame);
    ASAN_UNPOISON_MEMORY_REGION(copy + n, 1);
    free(copy);
}

// ---- all of it -------------------------------------------------------------------------------------------------------------

static void take_step(struct sl_fabric *fabric, uint8_t what) {
    switch (what % 16) {
    case 0:
        (void)fuzz_connect();
        break;
    case 1:
        step_grant(fabric);
        break;
    case 2:
        step_window(fabric);
        break;
    case 3:
        step_ship(fabric);
        break;
    case 4:
        step_request(fabric);
        break;
    case 5:
        step_fetch(fabric);
        break;
    case 6:
        step_reply();
        break;
    case 7:
        fuzz_wire.now_ns += (int64_t)draw() * draw() * SL_NS_PER_MS;
        break;
    case 8:
        fuzz_wire.hold = what & 0x40;
        break;
    case 9:
        if (fuzz_wire.links) {
            fuzz_lose(fuzz_wire.links, what & 0x40);
        }
        break;
    default:
        step_message();
        break;
    }
}

// In one turn of the progress thread: one step, or more.
static bool step(void) {
    if (n_steps == 0) {
        device_region = (struct sl_region){.next = fuzz_wire.fabric->regions,
                                           .base = device,
                                           .bytes = sizeof device,
                                           .seen = memory,
                                           .within = &region,
                                           .arrives = true};
        region.next = &device_region;
        fuzz_wire.fabric->regions = &region;
        fuzz_wire.fabric->epoch = 1001; // inputs are to mean the same tomorrow
        sl_fabric_on_request(fuzz_wire.fabric, on_request, NULL);
    }
    uint8_t what = 0x80;
    while (what & 0x80 && left > 0 && n_steps < MAX_STEPS) {
        n_steps++;
        what = draw();
        take_step(fuzz_wire.fabric, what);
    }
    n_steps++;
    if (left == 0 || n_steps >= MAX_STEPS) {
        ends_arrivals = true;
        for (size_t i = 0; i < N_GRANTS; i++) {
            end_arrival(i, 0);
        }
        fuzz_wire.fabric->regions = NULL; // this one is not to be freed
        return false;
    }
    return true;
}

static void close_all(void) {
    for (size_t i = 0; i < N_EACH; i++) {
        sl_ship_close(&ships[i]);
        sl_fabric_request_close(&requests[i]);
        sl_fetch_close(&fetches[i]);
        free(fetched[i]);
        free(replies[i]);
        fetched[i] = replies[i] = NULL;
    }
    for (size_t i = 0; i < N_INCOMING; i++) {
        if (incoming[i]) {
            sl_fabric_incoming_reply(&incoming[i], NULL, 0, NULL, NULL);
        }
    }
    sl_connection_close(&connection);
    sl_window_close(&window);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = "auto", .heartbeat_ms = 1000};
    struct sl_fabric *fabric = NULL;
    struct sl_error err;
    input = data;
    left = size;
    n_steps = 0;
    memset(targets, 0, sizeof targets);
    uint8_t *far = malloc(FUZZ_FAR_BYTES);
    static bool is_quiet; // the earlier settings stay: their readers take no lock
    is_quiet = is_quiet || sl_log_configure("error", &err) == SL_OK;
    fuzz_require(far && is_quiet);
    fuzz_wire = (struct fuzz_wire){.with_ucx = draw() & 1, .far = far, .step = step, .now_ns = SL_NS_PER_S};
    region = (struct sl_region){
        .base = memory, .bytes = sizeof memory, .handle = memory, .rkey = "our key", .rkey_bytes = 8};
    ASAN_POISON_MEMORY_REGION(memory, sizeof memory);
    ASAN_POISON_MEMORY_REGION(device, sizeof device);
    ends_arrivals = false;
    fuzz_require(sl_fabric_create(&config, &fabric, &err) == SL_OK);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(fabric, &stats);
    fuzz_require(stats.grants_open + stats.grants_quarantined + stats.ships_open + stats.peers_connected +
                     stats.connections_open + stats.requests_open + stats.incoming_open + stats.fetches_open ==
                 0);
    for (size_t i = 0; i < N_GRANTS; i++) {
        fuzz_require(!targets[i].there);
    }
    fuzz_require(fuzz_wire.links == NULL);
    close_all();
    sl_fabric_destroy(&fabric);
    free(far);
    return 0;
}
