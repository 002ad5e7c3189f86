// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of verbs, made with the fabric, with each verb's own state and per-peer state.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/fabric/core/core.h"

static enum sl_status bind_handlers(struct sl_fabric *fabric, struct sl_verb *verb, struct sl_error *err) {
    for (const struct sl_handler *handler = verb->ops->handlers; handler->run; handler++) {
        struct sl_binding *binding = &fabric->bindings[handler->id];
        SL_FAIL_IF(binding->handler, err, SL_ERR_INTERNAL, "two verbs of the fabric handle message %d",
                   (int)handler->id);
        *binding = (struct sl_binding){verb, handler};
    }
    return SL_OK;
}

static uint64_t *find_fault(struct sl_fabric *fabric, const char *name) {
    for (struct sl_verb **verb = fabric->verbs; *verb; verb++) {
        for (const struct sl_fault *fault = (*verb)->ops->faults; fault->name; fault++) {
            if (strcmp(fault->name, name) == 0) {
                return (uint64_t *)(void *)((char *)*verb + fault->offset);
            }
        }
    }
    return NULL;
}

// Parses "corrupt:3,drop_final:1,stall:2".
static enum sl_status inject(struct sl_fabric *fabric, const char *text, struct sl_error *err) {
    while (text && *text) {
        int used = 0;
        char name[16];
        unsigned long long n = 0;
        SL_FAIL_IF(sscanf(text, "%15[a-z_]:%llu%n", name, &n, &used) != 2 || (text[used] != ',' && text[used] != '\0'),
                   err, SL_ERR_INVALID, "fault injection \"%s\": expected NAME:N[,NAME:N...]", text);
        uint64_t *fault = find_fault(fabric, name);
        SL_FAIL_IF(!fault, err, SL_ERR_INVALID, "fault injection \"%s\": no such fault", name);
        *fault = n;
        text += used + (text[used] == ',');
    }
    return SL_OK;
}

enum sl_status sl_verbs_create(struct sl_fabric *fabric, const struct sl_verb_ops *const *list, size_t n,
                               const char *faults, struct sl_error *err) {
    const size_t align = _Alignof(max_align_t);
    fabric->peer_bytes = (sizeof(struct sl_peer) + align - 1) / align * align;
    for (size_t i = 0; i < n; i++) {
        const struct sl_verb_ops *ops = list[i];
        struct sl_verb *verb = calloc(1, ops->state_bytes);
        SL_FAIL_IF(!verb, err, SL_ERR_EXHAUSTED, "no memory for a fabric");
        *verb = (struct sl_verb){ops, fabric, fabric->peer_bytes};
        fabric->peer_bytes += (ops->peer_bytes + align - 1) / align * align;
        fabric->verbs[i] = verb;
        if (ops->init) {
            ops->init(verb);
        }
        SL_TRY(bind_handlers(fabric, verb, err));
    }
    return inject(fabric, faults, err);
}

void sl_verbs_destroy(struct sl_fabric *fabric) {
    for (struct sl_verb **verb = fabric->verbs; *verb; verb++) {
        if ((*verb)->ops->cleanup) {
            (*verb)->ops->cleanup(*verb);
        }
        free(*verb);
        *verb = NULL;
    }
}

void *sl_verb_of_fabric(const struct sl_fabric *fabric, const struct sl_verb_ops *ops) {
    struct sl_verb *const *verb = fabric->verbs;
    while ((*verb)->ops != ops) {
        verb++;
    }
    return *verb;
}
