// SPDX-License-Identifier: Apache-2.0
// The data plane and kvstores around workers that are fuzzed. See fuzz_peers.h.
#include "tests/fuzz/fuzz_peers.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/fetch.h"
#include "tests/fuzz/fuzz_turns.h"

#define N_GRANTS 24

struct sl_grant {
    struct sl_grant_events events;
    void *arg;
    uint8_t *block;
    size_t bytes;
    uint16_t number;
    bool there, over;
};

enum ship_kind { TO_GRANT, TO_STORE, TO_NOWHERE };

struct sl_ship {
    enum ship_kind kind;
    uint16_t number; // of its grant
    int at;
    uint8_t pieces_left; // until it fails; 255: it does not
    bool over, slow;
    enum sl_status status;
    size_t sent, told, end;
    bool ending; // since sl_ship_end(), with this header
    const void *header;
    size_t header_bytes;
};

struct sl_connection {
    int nothing;
};

struct sl_fabric_request {
    void *reply;
    size_t capacity;
    int64_t deadline_ns;
    uint8_t how;
    bool over;
};

struct sl_fetch {
    uint8_t how;
};

static struct sl_grant grants[N_GRANTS];
static uint16_t n_grants;
int fuzz_n_open;

// ---- the input -------------------------------------------------------------------------------------------------------

static const uint8_t *input;
static size_t left;

void fuzz_input(const uint8_t *data, size_t size) {
    input = data;
    left = size;
}

size_t fuzz_left(void) {
    return left;
}

uint8_t fuzz_draw(void) {
    return left > 0 ? left--, *input++ : 0;
}

uint8_t fuzz_peer_draw(void) {
    return left > 0 ? input[--left] : 0;
}

static int64_t number_of(uint8_t (*draw)(void)) {
    static const int64_t bounds[] = {0,  -1,  INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX,        63,  64,
                                     65, 511, 512,       513,       1 << 22,   (int64_t)1 << 40, 256, INT64_MAX / 64};
    uint8_t what = draw();
    return what < 16 ? bounds[what] : what < 128 ? what - 16 : (int64_t)draw() * 16;
}

int64_t fuzz_draw_number(void) {
    return number_of(fuzz_draw);
}

int64_t fuzz_peer_number(void) {
    return number_of(fuzz_peer_draw);
}

int32_t fuzz_draw_int(void) {
    int64_t number = fuzz_draw_number();
    return number > INT32_MAX ? INT32_MAX : number < INT32_MIN ? INT32_MIN : (int32_t)number;
}

char *fuzz_draw_text(void) {
    static char texts[8][48];
    static unsigned next;
    char *text = texts[next++ % 8];
    size_t n = fuzz_draw() % sizeof texts[0];
    for (size_t i = 0; i < n; i++) {
        text[i] = (char)fuzz_draw();
    }
    text[n] = '\0';
    return text;
}

// ---- calls -----------------------------------------------------------------------------------------------------------

void fuzz_call_cancel(struct sl_rpc_call *call) {
    if (!call->cancelled) {
        call->cancelled = true;
        if (call->on_cancel) {
            call->on_cancel(call->arg);
        }
    }
}

bool sl_rpc_call_cancelled(const struct sl_rpc_call *call) {
    return call->cancelled || fuzz_now_ns() > call->deadline_ns;
}

int64_t sl_rpc_call_deadline_ns(const struct sl_rpc_call *call) {
    return call->deadline_ns;
}

void sl_rpc_call_on_cancel(struct sl_rpc_call *call, void (*fn)(void *), void *arg) {
    call->on_cancel = fn;
    call->arg = arg;
    if (fn && call->cancelled) {
        fn(arg);
    }
}

ProtobufCMessage *fuzz_as_received(const ProtobufCMessage *message) {
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(n + 1);
    fuzz_require(packed != NULL);
    fuzz_require(protobuf_c_message_pack(message, packed) == n);
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, n, packed);
    free(packed);
    fuzz_require(copy != NULL);
    return copy;
}

enum sl_status sl_rpc_call_send(struct sl_rpc_call *call, const ProtobufCMessage *message) {
    uint8_t *packed = malloc(protobuf_c_message_get_packed_size(message) + 1);
    fuzz_require(packed != NULL);
    (void)protobuf_c_message_pack(message, packed);
    free(packed);
    call->look(call, message);
    fuzz_pass();
    if (sl_rpc_call_cancelled(call)) {
        fuzz_call_cancel(call);
        return SL_ERR_CANCELLED;
    }
    return SL_OK;
}

enum sl_status sl_rpc_call_send_last(struct sl_rpc_call *call, const ProtobufCMessage *message) {
    return sl_rpc_call_send(call, message);
}

// ---- grants ----------------------------------------------------------------------------------------------------------

uint8_t *fuzz_new_ticket(char kind, uint16_t number) {
    uint8_t *ticket = calloc(1, FUZZ_TICKET_BYTES);
    fuzz_require(ticket != NULL);
    memcpy(ticket, "tick", 4);
    ticket[4] = (uint8_t)kind;
    memcpy(ticket + 5, &number, sizeof number);
    return ticket;
}

enum sl_status sl_grant_open(struct sl_fabric *fabric, const struct sl_grant_plan *plan, struct sl_grant **grant_out,
                             uint8_t **ticket_out, size_t *ticket_bytes_out, struct sl_error *err) {
    (void)fabric;
    for (size_t i = 0; i < N_GRANTS; i++) {
        if (!grants[i].there) {
            grants[i] = (struct sl_grant){*plan->events, plan->arg, plan->block, plan->bytes, ++n_grants, true, false};
            *grant_out = &grants[i];
            *ticket_out = fuzz_new_ticket('g', grants[i].number);
            *ticket_bytes_out = FUZZ_TICKET_BYTES;
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
    fuzz_require(grant->there);
}

void sl_grant_close(struct sl_grant **grant) {
    if (*grant) {
        struct sl_grant closed = **grant;
        (*grant)->there = false;
        *grant = NULL;
        closed.events.on_release(closed.arg);
    }
}

static struct sl_grant *find_grant(uint16_t number) {
    for (size_t i = 0; i < N_GRANTS; i++) {
        if (grants[i].there && !grants[i].over && grants[i].number == number) {
            return &grants[i];
        }
    }
    return NULL;
}

void fuzz_grant_fail(uint8_t which) {
    struct sl_grant *grant = &grants[which % N_GRANTS];
    if (grant->there && !grant->over) {
        grant->over = true;
        grant->events.on_failure(grant->arg, SL_ERR_PEER_LOST, "it went");
    }
}

// ---- ships -----------------------------------------------------------------------------------------------------------

enum sl_status sl_ship_open(struct sl_fabric *fabric, const uint8_t *ticket, size_t ticket_bytes, int64_t deadline_ns,
                            struct sl_ship **ship_out, struct sl_error *err) {
    (void)fabric, (void)deadline_ns;
    if (ticket_bytes != FUZZ_TICKET_BYTES || memcmp(ticket, "tick", 4) != 0) {
        return sl_fail(err, SL_ERR_INVALID, "not a ticket");
    }
    struct sl_ship *ship = calloc(1, sizeof *ship);
    fuzz_require(ship != NULL);
    uint8_t how = fuzz_peer_draw();
    memcpy(&ship->number, ticket + 5, sizeof ship->number);
    ship->kind = ticket[4] == 'g' ? TO_GRANT : ticket[4] == 's' ? TO_STORE : TO_NOWHERE;
    ship->pieces_left = how >= 224 ? how - 224 : 255;
    ship->slow = how & 1;
    if (ship->kind == TO_GRANT && !find_grant(ship->number)) {
        ship->status = SL_ERR_PEER_STALE;
    }
    fuzz_n_open++;
    *ship_out = ship;
    return SL_OK;
}

// Returns where a ship's bytes go, and how many fit; NULL: its grant or capsule is gone.
static uint8_t *room(struct sl_ship *ship, size_t *bytes_out) {
    struct sl_grant *grant = ship->kind == TO_GRANT ? find_grant(ship->number) : NULL;
    struct fuzz_stored *capsule = ship->kind == TO_STORE ? &fuzz_stored[ship->number % FUZZ_N_STORED] : NULL;
    *bytes_out = grant ? grant->bytes : capsule ? capsule->room_bytes : 0;
    return grant ? grant->block : capsule ? capsule->body : NULL;
}

// Workers here compute on the CPU: no memory is a device's.
enum sl_ship_straight sl_ship_straight(const struct sl_ship *ship, const void *data) {
    (void)ship, (void)data;
    return SL_STRAIGHT_NO;
}

enum sl_status sl_ship_digested(struct sl_ship *ship, size_t offset, const void *data, size_t bytes, uint64_t digest) {
    (void)ship, (void)offset, (void)data, (void)bytes, (void)digest;
    fuzz_require(false);
    return SL_ERR_INTERNAL;
}

enum sl_status sl_ship_piece(struct sl_ship *ship, size_t offset, const void *data, size_t bytes) {
    fuzz_require(!ship->over && !ship->ending && bytes > 0);
    fuzz_pass();
    if (ship->status == SL_OK && ship->pieces_left != 255 && ship->pieces_left-- == 0) {
        ship->status = SL_ERR_PEER_LOST;
    }
    if (ship->status != SL_OK || ship->kind == TO_NOWHERE) {
        ship->sent += bytes;
        return ship->status;
    }
    size_t room_bytes;
    uint8_t *to = room(ship, &room_bytes);
    if (!to) {
        return ship->status = SL_ERR_PEER_STALE;
    }
    if (offset > room_bytes || bytes > room_bytes - offset) {
        return SL_ERR_RANGE;
    }
    memcpy(to + offset, data, bytes);
    ship->sent += bytes;
    ship->end = offset + bytes > ship->end ? offset + bytes : ship->end;
    return SL_OK;
}

size_t sl_ship_progress(const struct sl_ship *ship, enum sl_status *status_out) {
    struct sl_ship *mine = (struct sl_ship *)ship;
    mine->told = mine->slow && mine->told < mine->sent ? mine->told + (mine->sent - mine->told + 1) / 2 : mine->sent;
    if (mine->status == SL_OK && mine->kind == TO_GRANT && !mine->over && !find_grant(mine->number)) {
        mine->status = SL_ERR_PEER_LOST;
    }
    if (status_out) {
        *status_out = mine->status;
    }
    return mine->told;
}

// The header as it was sent, or with some bytes of the input's, or cut.
static uint8_t *bend_header(const void *header, size_t *bytes_inout) {
    uint8_t how = fuzz_peer_draw(), *bent = malloc(*bytes_inout + 1);
    fuzz_require(bent != NULL);
    memcpy(bent, header, *bytes_inout);
    for (int i = how >= 192 ? how % 4 + 1 : 0; i > 0; i--) {
        size_t at = fuzz_peer_draw() * 5u;
        bent[at % *bytes_inout] ^= fuzz_peer_draw();
    }
    *bytes_inout = how == 191 ? *bytes_inout / 2 : *bytes_inout;
    return bent;
}

// The end of a ship whose bytes have all left.
static enum sl_status end_ship(struct sl_ship *ship, struct sl_error *err) {
    size_t header_bytes = ship->header_bytes;
    ship->over = true;
    size_t room_bytes;
    uint8_t *body = room(ship, &room_bytes);
    if (ship->status == SL_OK && ship->kind != TO_NOWHERE && !body) {
        ship->status = SL_ERR_PEER_STALE;
    }
    if (ship->status != SL_OK) {
        if (ship->kind == TO_GRANT && find_grant(ship->number)) {
            find_grant(ship->number)->over = true;
        }
        return sl_fail(err, ship->status, "the other side is not there any more");
    }
    fuzz_pass();
    struct sl_grant *grant = ship->kind == TO_GRANT ? find_grant(ship->number) : NULL;
    uint8_t *bent = header_bytes > 0 ? bend_header(ship->header, &header_bytes) : NULL;
    if (grant) {
        grant->over = true;
        grant->events.on_complete(grant->arg, bent ? bent : (const void *)"", header_bytes, ship->end);
    } else if (ship->kind == TO_STORE) {
        struct fuzz_stored *capsule = &fuzz_stored[ship->number % FUZZ_N_STORED];
        free(capsule->header);
        capsule->header = bent;
        capsule->header_bytes = header_bytes;
        capsule->body_bytes = ship->end;
        capsule->whole = true;
        bent = NULL;
    }
    free(bent);
    return SL_OK;
}

enum sl_status sl_ship_end(struct sl_ship *ship, const void *header, size_t header_bytes, struct sl_error *err) {
    (void)err;
    fuzz_require(!ship->over && !ship->ending);
    ship->ending = true;
    ship->header = header;
    ship->header_bytes = header_bytes;
    return SL_OK;
}

enum sl_status sl_ship_await(struct sl_ship *ship, int64_t until_ns, struct sl_error *err) {
    fuzz_require(!ship->over && ship->ending);
    enum sl_status status;
    if (sl_ship_progress(ship, &status) < ship->sent && status == SL_OK) { // it is slow
        int64_t left_ns = until_ns - fuzz_now_ns();
        fuzz_wait_ms(left_ns > 0 ? left_ns / 1000000 + 1 : 1);
        return SL_AGAIN;
    }
    return end_ship(ship, err);
}

enum sl_status sl_ship_finish(struct sl_ship *ship, const void *header, size_t header_bytes, struct sl_error *err) {
    sl_ship_end(ship, header, header_bytes, err);
    return end_ship(ship, err);
}

void sl_ship_close(struct sl_ship **ship) {
    if (!*ship) {
        return;
    }
    struct sl_grant *grant = (*ship)->kind == TO_GRANT && !(*ship)->over ? find_grant((*ship)->number) : NULL;
    if (grant) {
        grant->over = true;
        grant->events.on_failure(grant->arg, SL_ERR_CANCELLED, "its sender gave it up");
    }
    free(*ship);
    *ship = NULL;
    fuzz_n_open--;
}

const char *sl_ship_mode(const struct sl_ship *ship) {
    (void)ship;
    return "put";
}

// ---- connections: what comes over them is anything ---------------------------------------------------------------------

enum sl_status sl_connection_open(struct sl_fabric *fabric, const char *address, uint64_t epoch,
                                  struct sl_connection **connection_out, struct sl_error *err) {
    (void)fabric, (void)epoch;
    if (strcmp(address, FUZZ_FABRIC) != 0) {
        return sl_fail(err, SL_ERR_INVALID, "not an address");
    }
    *connection_out = malloc(sizeof **connection_out);
    fuzz_require(*connection_out != NULL);
    fuzz_n_open++;
    return SL_OK;
}

void sl_connection_close(struct sl_connection **connection) {
    fuzz_n_open -= *connection != NULL;
    free(*connection);
    *connection = NULL;
}

const char *sl_connection_transport(const struct sl_connection *connection) {
    (void)connection;
    return "shm";
}

enum sl_status sl_fabric_request_open(struct sl_connection *connection, const struct sl_fabric_question *question,
                                      struct sl_fabric_request **request_out, struct sl_error *err) {
    (void)connection, (void)err;
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < question->body_bytes; i++) {
        sum = (uint8_t)(sum ^ ((const uint8_t *)question->body)[i]);
    }
    *request_out = calloc(1, sizeof **request_out);
    fuzz_require(*request_out != NULL);
    **request_out = (struct sl_fabric_request){question->reply_out, question->reply_capacity, question->deadline_ns,
                                               fuzz_peer_draw(), false};
    fuzz_n_open++;
    return SL_OK;
}

static enum sl_status outcome(uint8_t how, int64_t until_ns, int64_t deadline_ns, struct sl_error *err) {
    static const enum sl_status bad[] = {SL_ERR_PEER_LOST, SL_ERR_PEER_STALE, SL_ERR_EXHAUSTED, SL_ERR_RANGE};
    int64_t left_ns = until_ns - fuzz_now_ns();
    if (how >= 240) { // silence
        if (left_ns > 0 && until_ns != SL_NO_DEADLINE) {
            fuzz_wait_ms(left_ns / 1000000 + 1);
        }
        return deadline_ns <= fuzz_now_ns() ? sl_fail(err, SL_ERR_DEADLINE, "no answer came in time") : SL_AGAIN;
    }
    fuzz_pass();
    return how >= 224 ? sl_fail(err, bad[how % 4], "the other side says no") : SL_OK;
}

enum sl_status sl_fabric_request_wait(struct sl_fabric_request *request, int64_t until_ns, size_t *bytes_out,
                                      struct sl_error *err) {
    int64_t until = until_ns < request->deadline_ns ? until_ns : request->deadline_ns;
    enum sl_status status = outcome(request->how, until, request->deadline_ns, err);
    if (status == SL_OK) {
        size_t bytes = fuzz_peer_draw() & 1 ? (size_t)fuzz_peer_draw() * 8 : request->capacity;
        bytes = bytes < request->capacity ? bytes : request->capacity;
        for (size_t i = 0; i < bytes && !request->over; i++) {
            ((uint8_t *)request->reply)[i] = i < 64 ? fuzz_peer_draw() : (uint8_t)i;
        }
        *bytes_out = bytes;
    }
    request->over |= status != SL_AGAIN;
    return status;
}

bool sl_fabric_request_is_done(const struct sl_fabric_request *request) {
    return request->how < 240;
}

void sl_fabric_request_close(struct sl_fabric_request **request) {
    fuzz_n_open -= *request != NULL;
    free(*request);
    *request = NULL;
}

enum sl_status sl_fetch_open(struct sl_connection *connection, const struct sl_fetch_plan *plan,
                             struct sl_fetch **fetch_out, struct sl_error *err) {
    (void)connection;
    if (plan->ticket_bytes != FUZZ_TICKET_BYTES || memcmp(plan->ticket, "tick", 4) != 0) {
        return sl_fail(err, SL_ERR_INVALID, "not a ticket");
    }
    for (size_t i = 0; i < plan->n_ranges; i++) {
        memset(plan->ranges[i].to, 0x3c, plan->ranges[i].bytes);
    }
    *fetch_out = calloc(1, sizeof **fetch_out);
    fuzz_require(*fetch_out != NULL);
    (*fetch_out)->how = fuzz_peer_draw();
    fuzz_n_open++;
    return SL_OK;
}

enum sl_status sl_fetch_wait(struct sl_fetch *fetch, int64_t until_ns, struct sl_error *err) {
    return outcome(fetch->how, until_ns, until_ns, err);
}

void sl_fetch_close(struct sl_fetch **fetch) {
    fuzz_n_open -= *fetch != NULL;
    free(*fetch);
    *fetch = NULL;
}

// ---- all of it -------------------------------------------------------------------------------------------------------

void fuzz_peers_open(void) {
    n_grants = 0;
    fuzz_n_open = 0;
    memset(grants, 0, sizeof grants);
}

void fuzz_peers_close(void) {
    for (size_t i = 0; i < N_GRANTS; i++) {
        fuzz_require(!grants[i].there);
    }
    for (size_t i = 0; i < FUZZ_N_STORED; i++) {
        free(fuzz_stored[i].header);
        free(fuzz_stored[i].body);
        fuzz_stored[i] = (struct fuzz_stored){0};
    }
    fuzz_require(fuzz_n_open == 0);
}
