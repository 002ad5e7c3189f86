// SPDX-License-Identifier: Apache-2.0
// Purpose: what the coordinator says of the model that it serves, asked again and again by a thread, so that nobody waits for it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/libsluice/sluice.h"

struct sl_served;

#define SL_SERVED_STALL_MS 10000 // an asking thread that is silent for so long stands still

struct sl_served_model {
    bool known;   // some coordinator has answered
    bool answers; // the last that was asked did,
    bool ready;   // and has workers
    bool takes_chats;
    char name[128];
    char why[256]; // it is not ready
    char default_recipe[256];
    int64_t max_positions;
    int64_t asked_ns; // when it was asked last, whatever came of it
};

enum sl_status sl_served_create(struct sl_client *client, struct sl_served **served_out, struct sl_error *err);
void sl_served_destroy(struct sl_served **served); // accepts NULL, nulls *served; waits for a call that is under way
struct sl_served_model sl_served_model(struct sl_served *served);
