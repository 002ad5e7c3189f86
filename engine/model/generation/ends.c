// SPDX-License-Identifier: Apache-2.0
#include "engine/model/generation/ends.h"

#include <stddef.h>

// To add a turn end: add its spelling. It only applies to a model whose vocabulary has it as a special token.
static const char *const turn_ends[] = {"<|im_end|>",    "<|eot_id|>",      "<|eom_id|>",   "<|end|>",
                                        "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"};

void sl_model_ends_add(struct sl_model_ends *ends, int64_t id) {
    for (int i = 0; i < ends->n; i++) {
        if (ends->ids[i] == id) {
            return;
        }
    }
    if (ends->n < SL_MAX_EOS) {
        ends->ids[ends->n++] = (int32_t)id;
    }
}

static void add_possible(struct sl_model_ends *ends, int64_t id, int64_t n_vocab) {
    if (id >= 0 && id < n_vocab) {
        sl_model_ends_add(ends, id);
    }
}

void sl_model_ends_complete(struct sl_model_ends *ends, int64_t eos_id, const json_t *special_tokens, int64_t n_vocab) {
    add_possible(ends, eos_id, n_vocab);
    for (size_t i = 0; i < sizeof turn_ends / sizeof turn_ends[0]; i++) {
        const json_t *id = json_object_get(special_tokens, turn_ends[i]);
        add_possible(ends, json_is_integer(id) ? json_integer_value(id) : -1, n_vocab);
    }
}
