// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/device_choice.h"

#include <string.h>

// Parses up to four digits; returns where they end.
static const char *parse_number(const char *text, int *number_out) {
    int n = 0;
    *number_out = 0;
    for (; n < 4 && text[n] >= '0' && text[n] <= '9'; n++) {
        *number_out = 10 * *number_out + text[n] - '0';
    }
    return text + n;
}

// Parses "A" or "A-B".
static bool parse_range(const char *text, int *first_out, int *last_out) {
    const char *end = parse_number(text, first_out), *begin = end + 1;
    *last_out = *first_out;
    if (end != text && *end == '-') {
        end = parse_number(begin, last_out);
        return end != begin && *end == '\0' && *last_out >= *first_out;
    }
    return end != text && *end == '\0';
}

enum sl_status sl_device_choice_parse(const char *word, struct sl_device_choice *choice_out, struct sl_error *err) {
    static const char *const words[] = {[SL_DEVICE_AUTO] = "auto",
                                        [SL_DEVICE_CPU] = "cpu",
                                        [SL_DEVICE_CUDA] = "cuda",
                                        [SL_DEVICE_EMULATED] = "emulated"};
    word = word != NULL ? word : "cpu";
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i]) == 0) {
            *choice_out = (struct sl_device_choice){(enum sl_device_kind)i, 0, 1};
            return SL_OK;
        }
    }
    int first, last;
    if (strncmp(word, "cuda:", 5) == 0 && parse_range(word + 5, &first, &last) && last - first < SL_MAX_RANKS) {
        *choice_out = (struct sl_device_choice){SL_DEVICE_CUDA, first, last - first + 1};
        return SL_OK;
    }
    SL_FAIL_IF(strncmp(word, "cuda:", 5) == 0 && parse_range(word + 5, &first, &last), err, SL_ERR_INVALID,
               "--device %s: %d devices, and a model has at most %d ranks", word, last - first + 1, SL_MAX_RANKS);
    return sl_fail(err, SL_ERR_INVALID,
                   "--device: there is no \"%s\"; expected auto, cpu, cuda, cuda:N, cuda:A-B or emulated", word);
}

enum sl_status sl_device_choice_add_ranks(struct sl_device_choice *choice, int ranks, struct sl_error *err) {
    SL_FAIL_IF(ranks < 0 || ranks > SL_MAX_RANKS, err, SL_ERR_INVALID, "%d ranks: expected 1 to %d", ranks,
               SL_MAX_RANKS);
    SL_FAIL_IF(ranks > 1 && choice->ranks > 1 && ranks != choice->ranks, err, SL_ERR_INVALID,
               "--ranks %d, but --device names %d devices; one of the two is enough", ranks, choice->ranks);
    choice->ranks = ranks > 1 ? ranks : choice->ranks;
    return SL_OK;
}
