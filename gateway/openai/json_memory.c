// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/json_memory.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum {
    BYTES_A_BYTE = 4,         // memory that each byte of a body may take,
    AT_LEAST_BYTES = 8 << 20, // or this much
    STEP_BYTES = 64 << 10,    // counted in *held at once
    LARGE_BYTES = 1 << 20,    // the system gets memory back after this much
    BYTES_A_BLOCK = 8,        // malloc's own
};

// ---- counting ---------------------------------------------------------------------------------------------------------

static _Thread_local struct sl_json_memory *parsing; // NULL: this thread does not parse a body

// Counts more bytes of *held, so that `used` are counted.
static bool count(struct sl_json_memory *memory) {
    while (memory->counted < memory->used) {
        if (atomic_fetch_add(memory->held, STEP_BYTES) + STEP_BYTES > memory->most_held) {
            atomic_fetch_sub(memory->held, STEP_BYTES);
            return false;
        }
        memory->counted += STEP_BYTES;
    }
    return true;
}

static void *take_block(size_t bytes) {
    void *block = malloc(bytes);
    if (!block || !parsing) {
        return block;
    }
    const int64_t taken = (int64_t)malloc_usable_size(block) + BYTES_A_BLOCK;
    parsing->used += taken;
    if (parsing->used > parsing->left) {
        parsing->over = SL_JSON_OVER_ITS_OWN;
    } else if (!count(parsing)) {
        parsing->over = SL_JSON_OVER_ALL;
    } else {
        return block;
    }
    parsing->used -= taken;
    free(block);
    return NULL;
}

static void free_block(void *block) {
    if (block && parsing) {
        parsing->used -= (int64_t)malloc_usable_size(block) + BYTES_A_BLOCK;
    }
    free(block);
}

// Gives back what is counted above what is used: the parser takes more memory while it reads than the JSON keeps.
static void give_back_above_used(struct sl_json_memory *memory) {
    const int64_t above = memory->counted - (memory->used > 0 ? memory->used : 0);
    const int64_t bytes = above > 0 ? above / STEP_BYTES * STEP_BYTES : 0;
    memory->counted -= bytes;
    atomic_fetch_sub(memory->held, bytes);
    if (bytes > LARGE_BYTES) {
        malloc_trim(0); // counted no longer, so that the process may not keep it
    }
}

void sl_json_memory_install(void) {
    json_set_alloc_funcs(take_block, free_block);
}

void sl_json_memory_give_back(struct sl_json_memory *memory) {
    if (memory->counted > 0) {
        atomic_fetch_sub(memory->held, memory->counted);
    }
    if (memory->counted > LARGE_BYTES) {
        malloc_trim(0); // small blocks would stay with the process
    }
    memory->counted = memory->used = 0;
}

// ---- a list of ids ----------------------------------------------------------------------------------------------------

struct text {
    const char *at, *end;
};

static bool skip(struct text *text, char c) {
    const bool is_there = text->at < text->end && *text->at == c;
    text->at += is_there;
    return is_there;
}

static void skip_blanks(struct text *text) {
    while (text->at < text->end && memchr(" \t\n\r", *text->at, 4)) {
        text->at++;
    }
}

// Skips a string, without looking at what it escapes. Returns true if it is `word`. text is after the first quote.
static bool skip_string(struct text *text, const char *word) {
    const char *begin = text->at;
    while (text->at < text->end && *text->at != '"') {
        text->at += *text->at == '\\' && text->at + 1 < text->end ? 2 : 1;
    }
    const size_t n = (size_t)(text->at - begin);
    return skip(text, '"') && n == strlen(word) && memcmp(begin, word, n) == 0;
}

static bool find_prompt(struct text *text) {
    int depth = 0;
    while (text->at < text->end) {
        const char c = *text->at++;
        if (c == '"') {
            const bool is_prompt = skip_string(text, "prompt") && depth == 1;
            skip_blanks(text);
            if (is_prompt && skip(text, ':')) {
                skip_blanks(text);
                return true;
            }
        }
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    }
    return false;
}

// Reads one integer as JSON has it, of at most 18 digits. *is_good_out: it can be a token's id.
static bool read_id(struct text *text, int32_t *id_out, bool *is_good_out) {
    int64_t id = 0;
    const bool is_negative = skip(text, '-');
    const char *begin = text->at;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9' && text->at - begin < 18) {
        id = id * 10 + (*text->at++ - '0');
    }
    const size_t n = (size_t)(text->at - begin);
    *id_out = (int32_t)id;
    *is_good_out = id <= INT32_MAX && (!is_negative || id == 0);
    return n > 0 && (n == 1 || *begin != '0');
}

// Reads "[1, 2, 3]" with at least one id; counts only if list->ids is NULL.
static bool read_list(struct text *text, struct sl_json_ids *list) {
    int32_t id;
    size_t n = 0;
    bool is_good, all_good = true;
    if (!skip(text, '[')) {
        return false;
    }
    do {
        skip_blanks(text);
        if (!read_id(text, &id, &is_good)) {
            return false;
        }
        if (list->ids) {
            list->ids[n] = id;
        }
        n++;
        all_good = all_good && is_good;
        list->n_good = all_good ? n : list->n_good;
        skip_blanks(text);
    } while (skip(text, ','));
    list->n = n;
    return skip(text, ']');
}

// Reads the prompt's ids. *list_out: the text of the list, with its brackets. False: the prompt is not a list of ids, or there is
// no memory.
static bool read_ids(const char *body, size_t n_bytes, struct sl_json_ids *ids_out, struct text *list_out) {
    struct text text = {body, body + n_bytes}, list;
    if (!find_prompt(&text)) {
        return false;
    }
    if (text.at + 1 < text.end && text.at[0] == '[' && text.at[1] == '[') { // a list with one prompt
        text.at++;
    }
    list = text;
    if (!read_list(&text, ids_out)) {
        return false;
    }
    ids_out->ids = take_block(ids_out->n * sizeof *ids_out->ids);
    *list_out = (struct text){list.at, text.at};
    return ids_out->ids && read_list(&list, ids_out);
}

// ---- parsing ----------------------------------------------------------------------------------------------------------

struct reading {
    struct text left;
    struct text list; // jansson sees "[  ]" in its place; NULL: none
};

static size_t read_some(void *buffer, size_t n_bytes, void *arg) {
    struct reading *reading = arg;
    const size_t n_left = (size_t)(reading->left.end - reading->left.at), n = n_left < n_bytes ? n_left : n_bytes;
    const char *begin = reading->left.at, *end = begin + n;
    memcpy(buffer, begin, n);
    if (reading->list.at) {
        const char *from = reading->list.at + 1 > begin ? reading->list.at + 1 : begin;
        const char *to = reading->list.end - 1 < end ? reading->list.end - 1 : end;
        if (from < to) {
            memset((char *)buffer + (from - begin), ' ', (size_t)(to - from));
        }
    }
    reading->left.at = end;
    return n;
}

json_t *sl_json_parse(const char *body, size_t n_bytes, size_t flags, struct sl_json_memory *memory,
                      struct sl_json_ids *ids_out, json_error_t *error, struct sl_refusal *refusal) {
    struct reading reading = {.left = {body, body + n_bytes}};
    refusal->http_status = 0;
    if (memory) {
        const int64_t most = (int64_t)n_bytes * BYTES_A_BYTE;
        memory->left = most > AT_LEAST_BYTES ? most : AT_LEAST_BYTES;
        memory->over = SL_JSON_WITHIN;
    }
    parsing = memory;
    if (ids_out && !read_ids(body, n_bytes, ids_out, &reading.list)) {
        free_block(ids_out->ids);
        *ids_out = (struct sl_json_ids){0};
        reading.list.at = NULL;
    }
    json_t *json = json_load_callback(read_some, &reading, flags, error);
    if (!json && ids_out) {
        free_block(ids_out->ids);
        *ids_out = (struct sl_json_ids){0};
    }
    parsing = NULL;
    if (memory) {
        give_back_above_used(memory);
    }
    if (!json && memory && memory->over == SL_JSON_OVER_ITS_OWN) {
        sl_refuse(refusal, 413,
                  "the body has too many small parts: its JSON takes more than %" PRId64 " bytes of memory",
                  memory->left);
    } else if (!json && memory && memory->over == SL_JSON_OVER_ALL) {
        sl_refuse(refusal, 429, "too many requests are coming in (--body-memory)");
    }
    return json;
}
