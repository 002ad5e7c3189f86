// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tickets: what a fabric hands out so that others can reach a piece of its memory, a grant or a window, as bytes
 *          for the control plane.
 *
 * Design: a ticket carries its own digest: mangled on its way it is refused, not unpacked. The kind is in the magic, so
 *         that a window's ticket is no grant's.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "fabric/core/core.h"

uint8_t *sl_ticket_pack(const struct sl_fabric *fabric, const struct sl_region *region,
                        const struct sl_wire_ticket *what, size_t *bytes_out) {
    size_t address_bytes = strlen(fabric->address);
    size_t bytes = sizeof *what + address_bytes + region->rkey_bytes;
    uint8_t *ticket = bytes <= SL_WIRE_TICKET_MAX_BYTES ? malloc(bytes) : NULL;
    if (!ticket) {
        return NULL;
    }
    struct sl_wire_ticket head = *what;
    head.version = SL_WIRE_VERSION;
    head.epoch = fabric->epoch;
    head.host_id = fabric->host_id;
    head.address_bytes = (uint16_t)address_bytes;
    head.rkey_bytes = (uint16_t)region->rkey_bytes;
    memcpy(ticket + sizeof head, fabric->address, address_bytes);
    if (region->rkey_bytes > 0) {
        memcpy(ticket + sizeof head + address_bytes, region->rkey, region->rkey_bytes);
    }
    memcpy(ticket, &head, sizeof head);
    head.digest = sl_hash(ticket + sizeof head.digest, bytes - sizeof head.digest, 0);
    memcpy(ticket, &head.digest, sizeof head.digest);
    *bytes_out = bytes;
    return ticket;
}

enum sl_status sl_ticket_unpack(struct sl_ticket *ticket, uint32_t magic, const char *owner, const uint8_t *data,
                                size_t bytes, struct sl_error *err) {
    struct sl_wire_ticket *head = &ticket->head;
    if (bytes < sizeof *head || bytes > SL_WIRE_TICKET_MAX_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "not a ticket: %zu bytes", bytes);
    }
    memcpy(head, data, sizeof *head);
    if (head->magic != magic || head->version != SL_WIRE_VERSION) {
        return sl_fail(err, SL_ERR_INVALID, "not a %s's ticket of version %d", owner, SL_WIRE_VERSION);
    }
    if (sizeof *head + head->address_bytes + head->rkey_bytes != bytes ||
        head->address_bytes >= sizeof ticket->address || head->epoch == 0 ||
        head->digest != sl_hash(data + sizeof head->digest, bytes - sizeof head->digest, 0)) {
        return sl_fail(err, SL_ERR_INVALID, "the ticket is damaged");
    }
    memcpy(ticket->address, data + sizeof *head, head->address_bytes);
    ticket->address[head->address_bytes] = '\0';
    memcpy(ticket->rkey, data + sizeof *head + head->address_bytes, head->rkey_bytes);
    return SL_OK;
}
