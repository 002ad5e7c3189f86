// SPDX-License-Identifier: Apache-2.0
// Purpose: values of recipes that are numbers: parses, writes and checks them.
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compress/recipe/internal.h"

void sl_text_buffer_put(struct sl_text_buffer *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t room = text->bytes - text->length;
    int n = vsnprintf(text->buf + text->length, room, format, args);
    va_end(args);
    if (n > 0) {
        text->length += (size_t)n < room ? (size_t)n : room - 1;
    }
}

// --- whole numbers -----------------------------------------------------------------------------------------------

// Returns the count. Negative numbers exceed every bound.
static uint64_t get_count(const struct sl_field *field, const struct sl_recipe *recipe) {
    const void *at = (const char *)recipe + field->at;
    return field->bytes == sizeof(int) ? (uint64_t) * (const int *)at : *(const uint64_t *)at;
}

static void set_count(const struct sl_field *field, struct sl_recipe *recipe, uint64_t count) {
    void *at = (char *)recipe + field->at;
    if (field->bytes == sizeof(int)) {
        *(int *)at = (int)count;
    } else {
        *(uint64_t *)at = count;
    }
}

bool sl_is_digits(const char *text) {
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

enum sl_status sl_parse_count(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *count_out,
                              struct sl_error *err) {
    errno = 0;
    uint64_t count = sl_is_digits(text) ? strtoull(text, NULL, 10) : 0;
    SL_FAIL_IF(!sl_is_digits(text) || errno != 0 || count < min || count > max, err, SL_ERR_INVALID,
               "recipe: %s%.40s: expected a whole number from %" PRIu64 " to %" PRIu64, what, text, min, max);
    *count_out = count;
    return SL_OK;
}

static enum sl_status parse_count(const struct sl_field *field, const char *what, const char *text,
                                  struct sl_recipe *recipe, struct sl_error *err) {
    uint64_t count = 0;
    enum sl_status status = sl_parse_count(what, text, field->min, field->max, &count, err);
    SL_FAIL_IF(status == SL_OK && field->kind == &sl_kind_odd && count % 2 == 0, err, SL_ERR_INVALID,
               "recipe: %s%" PRIu64 " has no middle; use an odd number, e.g. %s%" PRIu64, what, count, what, count + 1);
    SL_FAIL_IF(status == SL_OK && field->kind == &sl_kind_pages && count % SL_PAGE_SLOTS != 0, err, SL_ERR_INVALID,
               "recipe: %s%" PRIu64 " is not a multiple of %d; try %s%" PRIu64, what, count, SL_PAGE_SLOTS, what,
               count / SL_PAGE_SLOTS * SL_PAGE_SLOTS);
    if (status == SL_OK) {
        set_count(field, recipe, count);
    }
    return status;
}

static void put_count(const struct sl_field *field, const struct sl_recipe *recipe, struct sl_text_buffer *out) {
    sl_text_buffer_put(out, "%" PRIu64, get_count(field, recipe));
}

static enum sl_status parse_fixed(const struct sl_field *field, const char *, const char *, struct sl_recipe *recipe,
                                  struct sl_error *) {
    set_count(field, recipe, field->min);
    return SL_OK;
}

const struct sl_kind sl_kind_count = {"N", ':', parse_count, put_count};
const struct sl_kind sl_kind_odd = {"N", ':', parse_count, put_count};
const struct sl_kind sl_kind_pages = {"N", ':', parse_count, put_count};
const struct sl_kind sl_kind_fixed = {"", 0, parse_fixed, NULL};

// --- ratios ------------------------------------------------------------------------------------------------------

// Parses a decimal number above 0 and below 1 (or 1 itself), or a percentage. Accepts only the characters of such a
// number: strtod() would also accept nan, inf and hexadecimal.
static bool read_ratio(const char *text, bool one_too, double *ratio_out) {
    char *end = NULL;
    size_t n = strspn(text, "0123456789.eE+-");
    bool percent = text[n] == '%' && text[n + 1] == '\0';
    double ratio = text[n] == '\0' || percent ? strtod(text, &end) : 0;
    ratio = percent ? ratio / 100 : ratio;
    if (end == NULL || end == text || end != text + n || !(ratio > 0 && (ratio < 1 || (one_too && ratio == 1)))) {
        return false;
    }
    *ratio_out = ratio;
    return true;
}

// Writes the shortest text that parses to the same number; nothing for 0.
static void put_double(double number, struct sl_text_buffer *out) {
    char text[32] = "";
    for (int digits = 1; number != 0 && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number) {
            break;
        }
    }
    sl_text_buffer_put(out, "%s", text);
}

static double *ratio_at(const struct sl_field *field, const struct sl_recipe *recipe) {
    return (double *)((char *)recipe + field->at);
}

static enum sl_status parse_ratio(const struct sl_field *field, const char *what, const char *text,
                                  struct sl_recipe *recipe, struct sl_error *err) {
    bool one_too = field->kind == &sl_kind_weight;
    return read_ratio(text, one_too, ratio_at(field, recipe))
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "recipe: %s%.40s: expected a %s", what, text,
                         one_too ? "weight above 0 and up to 1" : "ratio (above 0 and below 1)");
}

static void put_ratio(const struct sl_field *field, const struct sl_recipe *recipe, struct sl_text_buffer *out) {
    put_double(*ratio_at(field, recipe), out);
}

const struct sl_kind sl_kind_ratio = {"RATIO", ':', parse_ratio, put_ratio};
const struct sl_kind sl_kind_weight = {"WEIGHT", ':', parse_ratio, put_ratio};

// --- slots, or a share -------------------------------------------------------------------------------------------

static struct sl_amount *amount_at(const struct sl_field *field, const struct sl_recipe *recipe) {
    return (struct sl_amount *)((char *)recipe + field->at);
}

// Digits alone are a number of slots; anything else must be a ratio.
static enum sl_status parse_amount(const struct sl_field *field, const char *what, const char *text,
                                   struct sl_recipe *recipe, struct sl_error *err) {
    struct sl_amount amount = {0};
    enum sl_status status = SL_OK;
    if (field->kind == &sl_kind_budget && strcmp(text, "off") == 0) {
        // "off"
    } else if (sl_is_digits(text)) {
        uint64_t slots = 0;
        status = sl_parse_count(what, text, 1, SL_RECIPE_MAX_SLOTS, &slots, err);
        amount.slots = (int64_t)slots;
    } else if (!read_ratio(text, false, &amount.ratio)) {
        status =
            sl_fail(err, SL_ERR_INVALID,
                    "recipe: %s%.40s: expected a number of slots (1 or more) or a ratio (above 0 and below 1, or 20%%)",
                    what, text);
    }
    if (status == SL_OK) {
        *amount_at(field, recipe) = amount;
    }
    return status;
}

static void put_amount(const struct sl_field *field, const struct sl_recipe *recipe, struct sl_text_buffer *out) {
    const struct sl_amount *amount = amount_at(field, recipe);
    if (amount->slots > 0) {
        sl_text_buffer_put(out, "%" PRId64, amount->slots);
    } else if (amount->ratio > 0) {
        put_double(amount->ratio, out);
    } else if (field->kind == &sl_kind_budget) {
        sl_text_buffer_put(out, "off");
    }
}

const struct sl_kind sl_kind_amount = {"N|RATIO", ':', parse_amount, put_amount};
const struct sl_kind sl_kind_budget = {"off N RATIO", ':', parse_amount, put_amount};
