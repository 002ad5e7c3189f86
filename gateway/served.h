// SPDX-License-Identifier: Apache-2.0
// Purpose: the coordinator's information about the model that it serves. A thread asks for it regularly, so that no
// request waits for it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/libsluice/sluice.h"

struct sl_served;

#define SL_SERVED_STALL_MS 10000 // after this time without progress, the asking thread is stuck

struct sl_served_model {
    bool known;   // a coordinator has answered at least once
    bool answers; // the last call was answered,
    bool ready;   // and workers are ready
    bool takes_chats;
    char name[128];
    char why[256]; // the reason why it is not ready
    char default_recipe[256];
    int64_t max_positions;
    uint64_t fingerprint; // of the model with its weights
    int64_t asked_ns;     // time of the last call, whatever its result
};

enum sl_status sl_served_create(struct sl_client *client, struct sl_served **served_out, struct sl_error *err);
void sl_served_destroy(struct sl_served **served); // accepts NULL, nulls *served; waits for a call that is in progress
struct sl_served_model sl_served_model(struct sl_served *served);
