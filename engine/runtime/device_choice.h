// SPDX-License-Identifier: Apache-2.0
// Purpose: parses --device.
#pragma once

#include "base/status.h"
#include "base/options/config.h"
#include "engine/tensor/ranks/ranks.h"

enum sl_device_kind {
    SL_DEVICE_AUTO, // a GPU if one can be used, else the CPU
    SL_DEVICE_CPU,
    SL_DEVICE_CUDA,
    SL_DEVICE_EMULATED, // a GPU that the CPU emulates
};

struct sl_device_choice {
    enum sl_device_kind kind;
    int index; // of the GPU; of several, the first
    int ranks; // devices that compute one model together (engine/tensor/ranks/ranks.h)
};

// Parses a word; NULL: cpu. SL_ERR_INVALID: the word is unknown.
enum sl_status sl_device_choice_parse(const char *word, struct sl_device_choice *choice_out, struct sl_error *err);

// Adds the value of --ranks: 0 or 1 (no change), or as many devices as the word names. SL_ERR_INVALID: another
// number.
enum sl_status sl_device_choice_add_ranks(struct sl_device_choice *choice_inout, int ranks, struct sl_error *err);

// The option row of every program that opens a runtime (engine/runtime/runtime.h), for member `field` of its config
// struct `type`.
#define SL_DEVICE_OPTION(type, field)                                                                                  \
    SL_OPTION_ROW("device", 0, SL_OPTION_STRING, "auto", "NAME",                                                       \
                  "what computes: auto, cpu, cuda, cuda:N, cuda:A-B (ranks), or emulated (on the CPU, for tests)",     \
                  SL_FIELD(type, field))

// The option row of the model that is opened; without the option it is default_value, which may be NULL.
#define SL_MODEL_OPTION(type, field, default_value)                                                                    \
    SL_OPTION_ROW("model", 'm', SL_OPTION_MODEL, default_value, "MODEL",                                               \
                  "model folder, GGUF file, or a name of `sluice models`", SL_FIELD(type, field))

// The option row for the number of ranks that compute one model together (engine/tensor/ranks/ranks.h).
#define SL_RANKS_OPTION(type, field)                                                                                   \
    SL_OPTION_ROW("ranks", 0, SL_OPTION_INT, "1", "N",                                                                 \
                  "divide the model among N ranks: devices, or teams of the threads", SL_FIELD(type, field), 1,        \
                  SL_MAX_RANKS)
