// SPDX-License-Identifier: Apache-2.0
// Purpose: tasks whose context consists of keys and values, one of which is asked for. Size: their number.
#include "lab/tasks/task_internal.h"
#include "lab/tasks/words.h"

enum sl_status sl_write_only_needles(struct sl_draft *draft, int64_t size) {
    const char *noun = "number";
    char key[SL_WORD_PAIR_BYTES], asked_key[SL_WORD_PAIR_BYTES] = "";
    char value[SL_VALUE_BYTES], text[SL_NEEDLE_BYTES];
    int64_t asked = sl_draw_place(draft, size);
    struct sl_supply keys = sl_supply_start(draft), numbers = sl_supply_start(draft);
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < size && status == SL_OK; i++) {
        sl_supply_key(&keys, key);
        sl_supply_number(&numbers, value);
        sl_needle_text(noun, key, value, text);
        fputs(text, draft->prompt);
        if (i == asked) {
            snprintf(asked_key, sizeof asked_key, "%s", key);
            status = sl_add_answer(draft, value);
        }
    }
    sl_print_needle_question(draft->prompt, noun, asked_key);
    return status;
}

enum sl_status sl_write_kv(struct sl_draft *draft, int64_t size) {
    char key[SL_VALUE_BYTES], value[SL_VALUE_BYTES], asked_key[SL_VALUE_BYTES] = "";
    int64_t asked = sl_draw_place(draft, size);
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < size && status == SL_OK; i++) {
        sl_draw_uuid(&draft->random, key);
        sl_draw_uuid(&draft->random, value);
        fprintf(draft->prompt, "%s\"%s\": \"%s\"", i == 0 ? "\n{" : ",\n ", key, value);
        if (i == asked) {
            snprintf(asked_key, sizeof asked_key, "%s", key);
            status = sl_add_answer(draft, value);
        }
    }
    fprintf(draft->prompt, "}\nThe value of the key \"%s\" in the object above is \"", asked_key);
    return status == SL_OK ? sl_complete(draft, "", NULL, "\".") : status;
}
