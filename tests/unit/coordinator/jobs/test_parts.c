// SPDX-License-Identifier: Apache-2.0
// Purpose: a request in parts is the request that it was cut from; what does not fit together is refused.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/jobs/parts.h"

static Sluice__V1__GenerateRequest *copy_of(const Sluice__V1__GenerateRequest *request) {
    uint8_t packed[4096];
    size_t n = sluice__v1__generate_request__pack(request, packed);
    return sluice__v1__generate_request__unpack(NULL, n, packed);
}

static Sluice__V1__GenerateRequest *text_part(const char *text) {
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = (char *)text;
    return copy_of(&request);
}

static Sluice__V1__GenerateRequest *ids_part(int32_t first, size_t n) {
    int32_t ids[64];
    for (size_t i = 0; i < n; i++) {
        ids[i] = first + (int32_t)i;
    }
    Sluice__V1__TokenIds tokens = SLUICE__V1__TOKEN_IDS__INIT;
    tokens.ids = ids;
    tokens.n_ids = n;
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    request.tokens = &tokens;
    return copy_of(&request);
}

// Adds a part, and frees it unless `parts` keeps it.
static enum sl_status add(struct sl_request_parts *parts, Sluice__V1__GenerateRequest *part, size_t *added_out,
                          struct sl_error *err) {
    enum sl_status status = sl_request_parts_add(parts, part, added_out, err);
    if (parts->request != part) {
        sluice__v1__generate_request__free_unpacked(part, NULL);
    }
    return status;
}

static void test_text(void **state) {
    (void)state;
    struct sl_request_parts parts;
    struct sl_error err = {0};
    const Sluice__V1__GenerateRequest *whole;
    size_t added, sum = 0;
    sl_request_parts_init(&parts, 100);
    Sluice__V1__GenerateRequest *first = text_part("one ");
    first->ignore_eos = true;
    assert_int_equal(add(&parts, first, &added, &err), SL_OK);
    sum += added;
    const char *const rest[] = {"two ", "", "drei ist drei"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(add(&parts, text_part(rest[i]), &added, &err), SL_OK);
        sum += added;
    }
    assert_int_equal(sl_request_parts_finish(&parts, &whole, &err), SL_OK);
    assert_string_equal(whole->text, "one two drei ist drei");
    assert_true(whole->ignore_eos);
    assert_true(sum >= strlen(whole->text) + 1 && sum <= 101);
    sl_request_parts_cleanup(&parts);
}

static void test_ids(void **state) {
    (void)state;
    struct sl_request_parts parts;
    struct sl_error err = {0};
    const Sluice__V1__GenerateRequest *whole;
    size_t added;
    sl_request_parts_init(&parts, 400);
    assert_int_equal(add(&parts, ids_part(0, 0), &added, &err), SL_OK); // has no array at all
    assert_int_equal(add(&parts, ids_part(0, 60), &added, &err), SL_OK);
    assert_int_equal(add(&parts, ids_part(60, 40), &added, &err), SL_OK);
    assert_int_equal(sl_request_parts_finish(&parts, &whole, &err), SL_OK);
    assert_int_equal(whole->tokens->n_ids, 100);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(whole->tokens->ids[i], i);
    }
    sl_request_parts_cleanup(&parts);
}

// Returns a part with an empty text and one more field.
static Sluice__V1__GenerateRequest *part_with(const ProtobufCFieldDescriptor *field) {
    const bool is_bytes = field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE;
    uint8_t packed[] = {1 << 3 | 2, 0, 0, 0, 0, 'x'};
    size_t n = 2;
    const uint32_t tag = field->id << 3 | (is_bytes ? 2 : 0);
    if (tag < 128) {
        packed[n++] = (uint8_t)tag;
    } else {
        packed[n++] = (uint8_t)(tag | 128);
        packed[n++] = (uint8_t)(tag >> 7);
    }
    packed[n++] = field->type != PROTOBUF_C_TYPE_MESSAGE; // the number, or the length
    n += field->type == PROTOBUF_C_TYPE_STRING;
    packed[n - 1] = field->type == PROTOBUF_C_TYPE_STRING ? 'x' : packed[n - 1];
    Sluice__V1__GenerateRequest *part = sluice__v1__generate_request__unpack(NULL, n, packed);
    assert_non_null(part);
    assert_int_equal(part->prompt_case, SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT);
    assert_int_equal(part->base.n_unknown_fields, 0);
    return part;
}

static void test_what_does_not_fit_is_refused(void **state) {
    (void)state;
    struct sl_request_parts parts;
    struct sl_error err = {0};
    const Sluice__V1__GenerateRequest *whole;
    size_t added;
    sl_request_parts_init(&parts, 10);
    assert_int_equal(sl_request_parts_finish(&parts, &whole, &err), SL_ERR_INVALID); // none came
    assert_int_equal(add(&parts, text_part("0123456789"), &added, &err), SL_OK);     // as long as allowed
    assert_int_equal(add(&parts, text_part(""), &added, &err), SL_OK);
    assert_int_equal(add(&parts, text_part("x"), &added, &err), SL_ERR_RANGE);
    assert_non_null(strstr(err.text, "--max-prompt"));
    assert_int_equal(add(&parts, ids_part(0, 1), &added, &err), SL_ERR_INVALID);
    const ProtobufCMessageDescriptor *fields = &sluice__v1__generate_request__descriptor;
    int n_first = 0;
    for (unsigned i = 0; i < fields->n_fields; i++) { // what belongs into the first message
        const char *name = fields->fields[i].name;
        if (strcmp(name, "text") != 0 && strcmp(name, "tokens") != 0 && strcmp(name, "chat") != 0) {
            assert_int_equal(add(&parts, part_with(&fields->fields[i]), &added, &err), SL_ERR_INVALID);
            assert_non_null(strstr(err.text, "more than its part"));
            n_first++;
        }
    }
    assert_in_range(n_first, 15, 100);
    Sluice__V1__GenerateRequest empty = SLUICE__V1__GENERATE_REQUEST__INIT;
    assert_int_equal(add(&parts, copy_of(&empty), &added, &err), SL_ERR_INVALID);
    assert_int_equal(sl_request_parts_finish(&parts, &whole, &err), SL_OK); // what was refused left no trace
    assert_string_equal(whole->text, "0123456789");
    sl_request_parts_cleanup(&parts);

    sl_request_parts_init(&parts, 40);
    assert_int_equal(add(&parts, ids_part(0, 11), &added, &err), SL_ERR_RANGE);
    sl_request_parts_cleanup(&parts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
