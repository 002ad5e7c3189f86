// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tickets: the bytes for the control plane with which others may reach a piece of a fabric's memory, a grant
 *          or a window.
 *
 * Design: a ticket is a name: the owner, the grant or window, and 128 random bits that prove that its bearer was given
 *         it. It does not contain the memory's address: the owner sends that to the bearer, over their connection. So a
 *         modified ticket opens nothing, and needs no signature. The digest catches accidents: a damaged ticket is
 *         refused at once. The magic has the kind, so a window's ticket cannot pass for a grant's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/hash.h"
#include "net/fabric/core/core.h"

enum sl_status sl_secret_draw(struct sl_wire_secret *secret_out, struct sl_error *err) {
    return getrandom(secret_out, sizeof *secret_out, 0) == (ssize_t)sizeof *secret_out
               ? SL_OK
               : sl_fail(err, SL_ERR_IO, "no random numbers from the kernel: %s", strerror(errno));
}

bool sl_secret_equals(const struct sl_wire_secret *ours, const struct sl_wire_secret *theirs) {
    return ((ours->bits[0] ^ theirs->bits[0]) | (ours->bits[1] ^ theirs->bits[1])) == 0;
}

uint8_t *sl_ticket_pack(const struct sl_fabric *fabric, const struct sl_wire_ticket *what, size_t *bytes_out) {
    size_t address_bytes = strlen(fabric->address);
    size_t bytes = sizeof *what + address_bytes;
    uint8_t *ticket = bytes <= SL_WIRE_TICKET_MAX_BYTES ? malloc(bytes) : NULL;
    if (!ticket) {
        return NULL;
    }
    struct sl_wire_ticket head = *what;
    head.version = SL_WIRE_VERSION;
    head.epoch = fabric->epoch;
    head.address_bytes = (uint32_t)address_bytes;
    memcpy(ticket + sizeof head, fabric->address, address_bytes);
    memcpy(ticket, &head, sizeof head);
    head.digest = sl_hash(ticket + sizeof head.digest, bytes - sizeof head.digest, 0);
    memcpy(ticket, &head.digest, sizeof head.digest);
    *bytes_out = bytes;
    return ticket;
}

enum sl_status sl_ticket_unpack(struct sl_ticket *ticket, uint32_t magic, const char *owner, const uint8_t *data,
                                size_t bytes, struct sl_error *err) {
    struct sl_wire_ticket *head = &ticket->head;
    SL_FAIL_IF(bytes < sizeof *head || bytes > SL_WIRE_TICKET_MAX_BYTES, err, SL_ERR_INVALID, "not a ticket: %zu bytes",
               bytes);
    memcpy(head, data, sizeof *head);
    SL_FAIL_IF(head->magic != magic || head->version != SL_WIRE_VERSION, err, SL_ERR_INVALID,
               "not a %s's ticket of version %d", owner, SL_WIRE_VERSION);
    if (bytes - sizeof *head != head->address_bytes || head->address_bytes >= sizeof ticket->address ||
        head->epoch == 0 || head->digest != sl_hash(data + sizeof head->digest, bytes - sizeof head->digest, 0)) {
        return sl_fail(err, SL_ERR_INVALID, "the ticket is damaged");
    }
    memcpy(ticket->address, data + sizeof *head, head->address_bytes);
    ticket->address[head->address_bytes] = '\0';
    return SL_OK;
}
