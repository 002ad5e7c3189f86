// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tickets that were edited on their way, and peers that lie about where their memory is. Nothing is written or read outside of
 *          what was granted, and the deceived side keeps working.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/fabric/core/core.h"

#define BLOCK_BYTES (1u << 20)
#define GUARD_BYTES 65536

static const char *transport;

struct pair {
    struct sl_fabric *from, *to;
    uint8_t *source, *target; // the target's block lies between two guards
};

static void start_pair(struct pair *pair) {
    pair->to = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    pair->from = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    pair->target = make_region(pair->to, BLOCK_BYTES + 2 * GUARD_BYTES);
    pair->source = make_region(pair->from, BLOCK_BYTES + GUARD_BYTES);
    memset(pair->source, 0x55, BLOCK_BYTES + GUARD_BYTES);
    memset(pair->target, 0xee, BLOCK_BYTES + 2 * GUARD_BYTES);
}

static void stop_pair(struct pair *pair) {
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(pair->target[i], 0xee);
        assert_int_equal(pair->target[GUARD_BYTES + BLOCK_BYTES + i], 0xee);
    }
    assert_idle(pair->to);
    stop_fabric(&pair->from);
    stop_fabric(&pair->to);
}

// Ships `bytes` to a ticket and returns how that ends.
static enum sl_status ship(struct pair *pair, const uint8_t *ticket, size_t ticket_bytes, size_t bytes) {
    struct sl_ship *ship = NULL;
    struct sl_error err = {0};
    enum sl_status status =
        sl_ship_open(pair->from, ticket, ticket_bytes, sl_deadline_in_ms(5000 * SLOWNESS), &ship, &err);
    if (status != SL_OK) {
        return status;
    }
    (void)sl_ship_piece(ship, 0, pair->source, bytes);
    status = sl_ship_finish(ship, "h", 1, &err);
    sl_ship_close(&ship);
    return status;
}

// ---- tickets ---------------------------------------------------------------------------------------------------------

struct edit {
    const char *what;
    size_t offset, bytes; // in the ticket's head
    uint64_t add;         // to the field
    size_t shipped;
    bool harmless; // of what goes by messages: the owner checks what comes, not what the sender believes
};

#define FIELD(member, difference, n, ok)                                                                               \
    {                                                                                                                  \
#member " " #difference, offsetof(struct sl_wire_ticket, member),                                              \
            sizeof(((struct sl_wire_ticket *)0)->member), (uint64_t)(difference), n, ok                                \
    }

static const struct edit edits[] = {
    FIELD(epoch, 2, 64, false),
    FIELD(generation, 1, 64, false),
    FIELD(generation, -1, 64, false),
    FIELD(secret.bits[0], 1, 64, false),
    FIELD(secret.bits[1], UINT64_C(1) << 63, 64, false),
    FIELD(id, 1, 64, false),
    FIELD(id, 100000, 64, false),
    FIELD(bytes, GUARD_BYTES, BLOCK_BYTES + GUARD_BYTES, false),
    FIELD(bytes, UINT64_MAX / 2, BLOCK_BYTES + 1, false),
    FIELD(bytes, -64, 64, true),
    FIELD(address_bytes, 1, 64, false),
    FIELD(address_bytes, -1, 64, false),
    FIELD(address_bytes, UINT32_MAX, 64, false),
    FIELD(version, 1, 64, false),
    FIELD(magic, 1, 64, false),
};

static void test_edited_tickets_open_nothing(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const struct edit *edit = &edits[i];
        struct receive_buffer receive_buffer;
        open_receive_buffer(&receive_buffer, pair.to, pair.target + GUARD_BYTES, BLOCK_BYTES, 60000);
        uint8_t ticket[SL_TICKET_MAX_BYTES];
        memcpy(ticket, receive_buffer.ticket, receive_buffer.ticket_bytes);
        uint64_t value = 0;
        memcpy(&value, ticket + edit->offset, edit->bytes);
        value += edit->add;
        memcpy(ticket + edit->offset, &value, edit->bytes);
        uint64_t digest = sl_hash(ticket + sizeof digest, receive_buffer.ticket_bytes - sizeof digest, 0);
        memcpy(ticket, &digest, sizeof digest); // no secret is needed for it
        enum sl_status status = ship(&pair, ticket, receive_buffer.ticket_bytes, edit->shipped);
        if (status == SL_OK && !(edit->harmless && is_link(transport))) {
            fail_msg("%s: accepted", edit->what);
        }
        // Bytes inside the grant may have come before those outside of it; next to it are the guards.
        for (size_t k = status == SL_OK ? edit->shipped : 0; k < BLOCK_BYTES && edit->shipped == 64; k += 61) {
            assert_int_equal(pair.target[GUARD_BYTES + k], 0xee);
        }
        close_receive_buffer(&receive_buffer);
        memset(pair.target + GUARD_BYTES, 0xee, BLOCK_BYTES);
    }
    struct receive_buffer receive_buffer; // a later ship works
    open_receive_buffer(&receive_buffer, pair.to, pair.target + GUARD_BYTES, BLOCK_BYTES, 60000);
    assert_int_equal(ship(&pair, receive_buffer.ticket, receive_buffer.ticket_bytes, BLOCK_BYTES), SL_OK);
    assert_memory_equal(pair.target + GUARD_BYTES, pair.source, BLOCK_BYTES);
    close_receive_buffer(&receive_buffer);
    stop_pair(&pair);
}

// A ticket has neither the address nor the key of memory: its reader learns only where to connect.
static void test_tickets_have_no_address_of_memory(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair);
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target + GUARD_BYTES, BLOCK_BYTES, 60000);
    uint64_t address = (uint64_t)(uintptr_t)(pair.target + GUARD_BYTES) >> 16;
    assert_int_equal(receive_buffer.ticket_bytes, sizeof(struct sl_wire_ticket) + strlen(sl_fabric_address(pair.to)));
    for (size_t i = 0; i + 4 <= receive_buffer.ticket_bytes; i++) {
        assert_memory_not_equal(receive_buffer.ticket + i, &address, 4); // in little endian
    }
    close_receive_buffer(&receive_buffer);
    stop_pair(&pair);
}

// ---- places ----------------------------------------------------------------------------------------------------------

static void test_lying_places_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *what;
        uint64_t address, bytes;
        uint32_t key_bytes;
        size_t message_bytes; // beyond the head
        enum sl_status status;
    } lies[] = {
        {"true", 0x7f0000000000, 4096, 8, 8, SL_OK},
        {"no key", 0x7f0000000000, 4096, 0, 0, SL_ERR_PEER_CORRUPT},
        {"a key longer than the message", 0x7f0000000000, 4096, 9, 8, SL_ERR_PEER_CORRUPT},
        {"a key shorter than the message", 0x7f0000000000, 4096, 7, 8, SL_ERR_PEER_CORRUPT},
        {"a key that is too long", 0x7f0000000000, 4096, SL_PLACE_KEY_MAX_BYTES + 1, SL_PLACE_KEY_MAX_BYTES + 1,
         SL_ERR_PEER_CORRUPT},
        {"a key of 4 GiB", 0x7f0000000000, 4096, UINT32_MAX, 8, SL_ERR_PEER_CORRUPT},
        {"more than was granted", 0x7f0000000000, 4097, 8, 8, SL_ERR_PEER_CORRUPT},
        {"less than was granted", 0x7f0000000000, 4095, 8, 8, SL_ERR_PEER_CORRUPT},
        {"nowhere", 0, 4096, 8, 8, SL_ERR_PEER_CORRUPT},
        {"over the end of all addresses", UINT64_MAX - 100, 4096, 8, 8, SL_ERR_PEER_CORRUPT},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        uint8_t message[sizeof(struct sl_wire_place) + SL_PLACE_KEY_MAX_BYTES + 8] = {0};
        struct sl_wire_place head = {lies[i].address, lies[i].bytes, lies[i].key_bytes, 0};
        memcpy(message, &head, sizeof head);
        struct sl_place place;
        struct sl_error err;
        if (sl_place_unpack(&place, message, sizeof head + lies[i].message_bytes, 4096, &err) != lies[i].status) {
            fail_msg("%s", lies[i].what);
        }
    }
    struct sl_place place;
    struct sl_error err;
    uint8_t message[sizeof(struct sl_wire_place)] = {0};
    for (size_t n = 0; n < sizeof message; n++) {
        assert_int_equal(sl_place_unpack(&place, message, n, 4096, &err), SL_ERR_PEER_CORRUPT);
    }
}

// Runs on the progress thread of the deceived side.
struct lie {
    struct sl_command command;
    struct pair *pair;
    const uint8_t *heap;
    atomic_bool done;
    int n_wrong;
    char text[128];
};

static void expect(struct lie *lie, struct sl_peer *peer, struct sl_place *place, const char *what, uint64_t address,
                   uint64_t bytes, enum sl_status expected) {
    struct sl_remote_region *region = NULL;
    struct sl_error err;
    place->head.address = address;
    place->head.bytes = bytes;
    enum sl_status status = sl_peer_region(peer, place, &region, &err);
    if (status != expected) {
        lie->n_wrong++;
        snprintf(lie->text, sizeof lie->text, "%s: %s", what, sl_status_text(status));
    }
}

// Makes a key one of shared memory whose owner, a process, has ended. False: no owner is found in it.
static bool end_owner(struct sl_place *place) {
    const pid_t ended = fork();
    if (ended == 0) {
        _exit(0);
    }
    waitpid(ended, NULL, 0);
    for (size_t at = 0; at + sizeof(uint64_t) <= place->head.key_bytes; at++) {
        uint64_t found, pid = (UINT64_C(1) << 30) - 1;
        memcpy(&found, place->key + at, sizeof found);
        if (found >> 63 && (found & pid) == (uint64_t)getpid()) {
            found = (found & ~pid) | (uint64_t)ended;
            memcpy(place->key + at, &found, sizeof found);
            return true;
        }
    }
    return false;
}

static void run_lies(struct sl_fabric *fabric, struct sl_command *command) {
    struct lie *lie = SL_CONTAINER(command, struct lie, command);
    struct sl_peer *peer = fabric->peers;
    const struct sl_region *region = lie->pair->to->regions;
    uint8_t message[SL_PLACE_MAX_BYTES];
    size_t n = sl_place_pack(region, region->base, region->bytes, message);
    struct sl_place place;
    struct sl_error err;
    uint64_t base = (uint64_t)(uintptr_t)region->base, bytes = region->bytes;
    if (!peer || n == 0 || sl_place_unpack(&place, message, n, bytes, &err) != SL_OK) {
        lie->n_wrong = 1;
        snprintf(lie->text, sizeof lie->text, "no true place");
    } else {
        expect(lie, peer, &place, "all of it", base, bytes, SL_OK);
        expect(lie, peer, &place, "its last byte", base + bytes - 1, 1, SL_OK);
        expect(lie, peer, &place, "a page beyond", base + bytes - 4096, 3 * 4096 + GUARD_BYTES, SL_ERR_PEER_CORRUPT);
        expect(lie, peer, &place, "before it", base - 65536, 4096, SL_ERR_PEER_CORRUPT);
        expect(lie, peer, &place, "far behind it", base + (UINT64_C(1) << 40), 4096, SL_ERR_PEER_CORRUPT);
        expect(lie, peer, &place, "our own memory", (uint64_t)(uintptr_t)lie->heap, 4096, SL_ERR_PEER_CORRUPT);
        expect(lie, peer, &place, "our own region", (uint64_t)(uintptr_t)lie->pair->source, 4096, SL_ERR_PEER_CORRUPT);
        expect(lie, peer, &place, "everything", base, UINT64_MAX - base, SL_ERR_PEER_CORRUPT);
        expect(lie, peer, &place, "all of it again", base, bytes, SL_OK);
        if (strcmp(transport, "shm") == 0 && !end_owner(&place)) {
            lie->n_wrong++;
            snprintf(lie->text, sizeof lie->text, "the key of shared memory does not name its owner");
        } else if (strcmp(transport, "shm") == 0) {
            expect(lie, peer, &place, "memory of a process that has ended", base, bytes, SL_ERR_PEER_LOST);
        }
    }
    atomic_store(&lie->done, true);
}

// Addresses that a peer names are checked against its memory that is mapped here.
static void test_places_outside_of_what_is_mapped_are_refused(void **state) {
    (void)state;
    if (is_link(transport)) {
        skip(); // nothing is mapped
    }
    struct pair pair;
    start_pair(&pair);
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, pair.to, pair.target + GUARD_BYTES, BLOCK_BYTES, 60000);
    assert_int_equal(ship(&pair, receive_buffer.ticket, receive_buffer.ticket_bytes, BLOCK_BYTES), SL_OK);
    close_receive_buffer(&receive_buffer);
    uint8_t *heap = malloc(65536);
    struct lie lie = {.command.run = run_lies, .pair = &pair, .heap = heap};
    sl_fabric_post(pair.from, &lie.command);
    while (!atomic_load(&lie.done)) {
        sl_sleep_ms(1);
    }
    if (lie.n_wrong > 0) {
        fail_msg("%d lies: %s", lie.n_wrong, lie.text);
    }
    free(heap);
    stop_pair(&pair);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edited_tickets_open_nothing),
        cmocka_unit_test(test_tickets_have_no_address_of_memory),
        cmocka_unit_test(test_lying_places_are_refused),
        cmocka_unit_test(test_places_outside_of_what_is_mapped_are_refused),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
