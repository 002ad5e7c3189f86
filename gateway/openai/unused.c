// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/unused.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

// ---- neutral values -------------------------------------------------------------------------------------------------

static bool is_anything(const json_t *) {
    return true;
}

bool sl_openai_is_empty(const json_t *value) {
    return json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static bool is_false(const json_t *value) {
    return json_is_false(value);
}

static bool is_true(const json_t *value) {
    return json_is_true(value);
}

static bool is_zero(const json_t *value) {
    return json_is_number(value) && json_number_value(value) == 0;
}

static bool is_one(const json_t *value) {
    return json_is_number(value) && json_number_value(value) == 1;
}

static bool is_word(const json_t *value, const char *word) {
    const char *text = json_string_value(value);
    return text && strcmp(text, word) == 0;
}

static bool is_medium(const json_t *value) {
    return is_word(value, "medium");
}

// Without tools, "auto" calls none either.
static bool is_no_tool(const json_t *value) {
    return is_word(value, "none") || is_word(value, "auto");
}

static bool is_plain_text(const json_t *value) {
    return is_word(json_object_get(value, "type"), "text");
}

static bool is_text_alone(const json_t *value) {
    return json_array_size(value) == 1 && is_word(json_array_get(value, 0), "text");
}

// ---- the tables -----------------------------------------------------------------------------------------------------

// To add one: name the values that change no answer.
struct unused {
    const char *name;
    bool (*is_neutral)(const json_t *value);
};

static const struct unused top[] = {
    // Other services run, bill, store or find a request by these.
    {"user", is_anything},
    {"metadata", is_anything},
    {"safety_identifier", is_anything},
    {"prompt_cache_key", is_anything},
    {"prompt_cache_retention", is_anything},
    {"service_tier", is_anything},
    {"store", is_false},
    {"priority", is_zero},
    {"keep_alive", is_anything},
    {"cache_prompt", is_anything},
    {"request_id", is_anything},
    // Sluice supports none of these.
    {"n", is_one},
    {"best_of", is_one},
    {"echo", is_false},
    {"suffix", sl_openai_is_empty},
    {"tools", sl_openai_is_empty},
    {"functions", sl_openai_is_empty},
    {"tool_choice", is_no_tool},
    {"function_call", is_no_tool},
    {"parallel_tool_calls", is_anything}, // about tools
    {"response_format", is_plain_text},
    {"logit_bias", sl_openai_is_empty},
    {"reasoning_effort", is_anything}, // a hint to models that reason for a chosen time
    {"verbosity", is_medium},
    {"modalities", is_text_alone},
    {"audio", sl_openai_is_empty},
    {"prediction", sl_openai_is_empty},
    {"web_search_options", sl_openai_is_empty},
    // Other servers' fields.
    {"min_tokens", is_zero},
    {"typical_p", is_one},
    {"length_penalty", is_one},
    {"repeat_penalty", is_one},
    {"mirostat", is_zero},
    {"dry_multiplier", is_zero},
    {"xtc_probability", is_zero},
    {"tfs_z", is_one},
    {"ban_eos_token", is_false},
    {"detokenize", is_true},
    {"think", is_false},
    {"separate_reasoning", is_anything}, // about models that reason
    {"include_reasoning", is_anything},
    {"id_slot", is_anything},
    {"use_beam_search", is_false},
    {"early_stopping", is_false},
    {"include_stop_str_in_output", is_false},
    {"skip_special_tokens", is_true},
    {"spaces_between_special_tokens", is_true},
    {"add_generation_prompt", is_true},
    {"continue_final_message", is_false},
    {"add_special_tokens", is_true},
    {"return_token_ids", is_false},
    {"return_tokens_as_token_ids", is_false},
};

static const struct unused in_message[] = {
    {"name", is_anything},        // templates do not write it
    {"annotations", is_anything}, // of an answer of another service
    {"id", is_anything},
    {"refusal", sl_openai_is_empty},
    {"audio", sl_openai_is_empty},
    {"reasoning", sl_openai_is_empty},
    {"reasoning_content", sl_openai_is_empty},
    {"tool_calls", sl_openai_is_empty},
    {"tool_call_id", sl_openai_is_empty},
    {"function_call", sl_openai_is_empty},
};

static const struct unused in_part[] = {{"cache_control", is_anything}, {"annotations", is_anything}};

static const struct unused in_stream_options[] = {{"include_obfuscation", is_anything},
                                                  {"continuous_usage_stats", is_false}};

static const struct {
    const char *prefix;
    const struct unused *rows;
    size_t n;
} places[SL_OPENAI_N_PLACES] = {
    [SL_OPENAI_TOP] = {"", top, sizeof top / sizeof *top},
    [SL_OPENAI_MESSAGE] = {"messages.", in_message, sizeof in_message / sizeof *in_message},
    [SL_OPENAI_PART] = {"messages.content.", in_part, sizeof in_part / sizeof *in_part},
    [SL_OPENAI_STREAM_OPTIONS] = {"stream_options.", in_stream_options,
                                  sizeof in_stream_options / sizeof *in_stream_options},
};

bool sl_openai_asks_nothing(enum sl_openai_place place, const char *name, const json_t *value, bool *is_known_out) {
    *is_known_out = false;
    for (size_t i = 0; i < places[place].n; i++) {
        if (strcmp(places[place].rows[i].name, name) == 0) {
            *is_known_out = true;
            return sl_openai_is_empty(value) || places[place].rows[i].is_neutral(value);
        }
    }
    return sl_openai_is_empty(value);
}

static bool has(const char *list, const char *entry) {
    const size_t n = strlen(entry);
    for (const char *at = list; *at; at += strspn(at, ", ")) {
        const size_t n_at = strcspn(at, ",");
        if (n_at == n && memcmp(at, entry, n) == 0) {
            return true;
        }
        at += n_at;
    }
    return false;
}

void sl_openai_note_ignored(enum sl_openai_place place, const char *name, char *list, size_t n_bytes) {
    static const char more[] = ", ...";
    char entry[64];
    const size_t used = strlen(list);
    const int n = snprintf(entry, sizeof entry, "%s%s", places[place].prefix, name);
    for (char *c = entry; *c; c++) {
        *c = isalnum((unsigned char)*c) || strchr("_.-", *c) ? *c : '?';
    }
    const size_t n_entry = n < (int)sizeof entry ? (size_t)n : sizeof entry - 1;
    if (has(list, entry) || has(list, "...")) {
        return;
    }
    const bool fits = used + 2 + n_entry + sizeof more <= n_bytes; // room for `more` stays
    snprintf(list + used, n_bytes - used, "%s%s", fits && used ? ", " : "", fits ? entry : used ? more : "...");
}
