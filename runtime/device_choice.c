// SPDX-License-Identifier: Apache-2.0
// Purpose: see device_choice.h.
#include "runtime/device_choice.h"

#include <stdio.h>
#include <string.h>

enum sl_status sl_device_choice_parse(const char *word, struct sl_device_choice *choice_out, struct sl_error *err) {
    static const char *const words[] = {[SL_DEVICE_AUTO] = "auto",
                                        [SL_DEVICE_CPU] = "cpu",
                                        [SL_DEVICE_CUDA] = "cuda",
                                        [SL_DEVICE_EMULATED] = "emulated"};
    word = word != NULL ? word : "cpu";
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i]) == 0) {
            *choice_out = (struct sl_device_choice){(enum sl_device_kind)i, 0};
            return SL_OK;
        }
    }
    int index, used = 0;
    if (sscanf(word, "cuda:%4d%n", &index, &used) == 1 && word[used] == '\0' && index >= 0) {
        *choice_out = (struct sl_device_choice){SL_DEVICE_CUDA, index};
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INVALID, "--device: there is no \"%s\"; expected auto, cpu, cuda, cuda:N or emulated",
                   word);
}

enum sl_status sl_device_choice_check_ranks(const struct sl_device_choice *choice, int ranks, struct sl_error *err) {
    bool computes_here = choice->kind == SL_DEVICE_CPU || choice->kind == SL_DEVICE_AUTO;
    return ranks <= 1 || computes_here
               ? SL_OK
               : sl_fail(err, SL_ERR_UNSUPPORTED,
                         "--ranks %d: only processors are several ranks so far; use --device cpu", ranks);
}
