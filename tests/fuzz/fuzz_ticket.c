// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for descriptions of memory from a peer: tickets, and addresses that a peer names.
 *
 * Design: the first byte chooses. A ticket's digest is made correct: it detects accidents, and an attacker who edits a ticket edits it,
 *         too. For an address, the next four bytes are the expected size.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "net/fabric/core/core.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

// The copy has no byte more: a read past its end is detected.
static void check_ticket(const uint8_t *bytes, size_t n, uint32_t magic, bool mended) {
    uint8_t *copy = malloc(n > 0 ? n : 1);
    struct sl_ticket ticket;
    struct sl_error err = {0};
    require(copy != NULL);
    memcpy(copy, bytes, n);
    if (mended && n >= sizeof ticket.head.digest) {
        uint64_t digest = sl_hash(copy + sizeof digest, n - sizeof digest, 0);
        memcpy(copy, &digest, sizeof digest);
    }
    enum sl_status status = sl_ticket_unpack(&ticket, magic, "grant", copy, n, &err);
    if (status == SL_OK) {
        require(ticket.head.magic == magic && ticket.head.epoch != 0 &&
                n == sizeof ticket.head + ticket.head.address_bytes);
        require(ticket.head.address_bytes < sizeof ticket.address && ticket.address[ticket.head.address_bytes] == '\0');
        require(memcmp(ticket.address, copy + sizeof ticket.head, ticket.head.address_bytes) == 0);
    } else {
        require(status == SL_ERR_INVALID && err.text[0] != '\0');
    }
    free(copy);
}

static void check_place(const uint8_t *bytes, size_t n) {
    uint32_t expected;
    if (n < sizeof expected) {
        return;
    }
    memcpy(&expected, bytes, sizeof expected);
    n -= sizeof expected;
    uint8_t *copy = malloc(n > 0 ? n : 1);
    struct sl_place place;
    struct sl_error err = {0};
    require(copy != NULL);
    memcpy(copy, bytes + sizeof expected, n);
    if (sl_place_unpack(&place, copy, n, expected, &err) == SL_OK) {
        require(place.head.bytes == expected && place.head.address != 0 && place.head.address <= UINT64_MAX - expected);
        require(place.head.key_bytes >= 1 && place.head.key_bytes <= SL_PLACE_KEY_MAX_BYTES);
        require(sizeof place.head + place.head.key_bytes == n);
    } else {
        require(err.text[0] != '\0');
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    if (data[0] % 4 == 3) {
        check_place(data + 1, size - 1);
    } else {
        check_ticket(data + 1, size - 1, data[0] % 2 ? SL_WIRE_WINDOW_MAGIC : SL_WIRE_MAGIC, data[0] % 4 < 2);
    }
    return 0;
}
