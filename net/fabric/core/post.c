// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how other threads reach the progress thread: commands, and the gate for objects that may outlive the fabric.
 *
 * Design: the progress thread sets sleeping = true before its last poll for work; a poster first publishes its work and
 *         then reads `sleeping`. All of that is sequentially consistent, so at least one of the two sees the other.
 */
#include <stdlib.h>
#include <unistd.h>

#include "net/fabric/core/core.h"
#include "base/locked.h"

void sl_fabric_wake(struct sl_fabric *fabric) {
    if (atomic_load(&fabric->sleeping)) {
        uint64_t one = 1;
        ssize_t n = write(fabric->wake_fd, &one, sizeof one); // EAGAIN: enough wakeups are pending
        (void)n;
    }
}

void sl_fabric_post(struct sl_fabric *fabric, struct sl_command *command) {
    command->next = NULL;
    pthread_mutex_lock(&fabric->lock);
    *fabric->last = command;
    fabric->last = &command->next;
    atomic_store(&fabric->posted, true);
    pthread_mutex_unlock(&fabric->lock);
    sl_fabric_wake(fabric);
}

bool sl_fabric_run_commands(struct sl_fabric *fabric) {
    if (!atomic_exchange(&fabric->posted, false)) {
        return false;
    }
    pthread_mutex_lock(&fabric->lock);
    struct sl_command *command = fabric->first;
    fabric->first = NULL;
    fabric->last = &fabric->first;
    pthread_mutex_unlock(&fabric->lock);
    while (command) {
        struct sl_command *next = command->next; // run() may free it
        command->run(fabric, command);
        command = next;
    }
    return true;
}

// ---- the gate --------------------------------------------------------------------------------------------------------

struct sl_gate *sl_gate_create(struct sl_fabric *fabric) {
    struct sl_gate *gate = calloc(1, sizeof *gate);
    if (gate) {
        atomic_store(&gate->refs, 1);
        pthread_mutex_init(&gate->lock, NULL);
        gate->fabric = fabric;
    }
    return gate;
}

struct sl_gate *sl_gate_ref(struct sl_gate *gate) {
    atomic_fetch_add(&gate->refs, 1);
    return gate;
}

void sl_gate_unref(struct sl_gate *gate) {
    if (gate && atomic_fetch_sub(&gate->refs, 1) == 1) {
        pthread_mutex_destroy(&gate->lock);
        free(gate);
    }
}

bool sl_gate_post(struct sl_gate *gate, struct sl_command *command) {
    SL_LOCKED(&gate->lock);
    bool open = gate->fabric != NULL;
    if (open) {
        sl_fabric_post(gate->fabric, command);
    }
    return open;
}

void sl_gate_wake(struct sl_gate *gate) {
    SL_LOCKED(&gate->lock);
    if (gate->fabric) {
        atomic_store(&gate->fabric->posted, true);
        sl_fabric_wake(gate->fabric);
    }
}

void sl_gate_shut(struct sl_gate *gate) {
    SL_LOCKED(&gate->lock);
    SL_VERBS_WITH(leave, gate->fabric, verb) {
        verb->ops->leave(verb);
    }
    gate->fabric = NULL;
}
