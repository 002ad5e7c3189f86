// SPDX-License-Identifier: Apache-2.0
// Documents whose recipe offloads layers: a store keeps them beside the capsule, and both count.
#include "tests/unit/coordinator/documents/documents_fixture.h"

// The layers that a recipe offloads count as the capsule does, with their planned bytes until a store has them.
static void test_documents_count_offloaded_layers(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 10, 1000);
    struct sl_document *one = make("acme", "one", 40), *two = make("acme", "two", 30);
    struct sl_described_document described;
    one->n_offloaded_heads = 6;
    one->offloaded_bytes = 460;
    two->offloaded_bytes = 200;
    assert_int_equal(sl_documents_begin(documents, one, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_begin(documents, two, at("kvstore-0", ARENA, 0), &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "no room for 230 bytes"));
    assert_non_null(strstr(err.text, "one (500 bytes)"));
    sl_documents_found_offloaded(documents, one, 230);
    sl_documents_found(documents, one, "kvstore-0", 40, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_int_equal(sl_documents_begin(documents, two, at("kvstore-0", ARENA, 0), &err), SL_OK);
    struct sl_document *three = make("acme", "three", 465); // with three texts of 12 bytes, one more than is allowed
    assert_int_equal(sl_documents_begin(documents, three, at("kvstore-1", ARENA, 0), &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "477 bytes of capsule and text, and 524 bytes of documents"));
    sl_documents_describe(documents, one, 11, &described);
    assert_int_equal(described.message.capsule_bytes, 40);
    assert_int_equal(described.message.offloaded_bytes, 230);
    assert_false(described.message.on_disk);
    assert_int_equal(sl_document_store_key(one).n_lanes, 6);
    sl_document_unref(&one);
    sl_document_unref(&two);
    sl_document_unref(&three);
    sl_documents_destroy(&documents);
}

// Layers that are on disk stay in memory, too: a disk that is larger than the arena makes room for more capsules alone.
static void test_documents_on_disk_count_their_layers(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 10, 10 * ARENA);
    struct sl_document *one = make("acme", "one", ARENA / 4), *two = make("acme", "two", ARENA / 4);
    one->n_offloaded_heads = 6;
    one->offloaded_bytes = ARENA / 4;
    assert_int_equal(sl_documents_begin(documents, one, at("kvstore-0", ARENA, 4 * ARENA), &err), SL_OK);
    sl_documents_found(documents, one, "kvstore-0", ARENA / 4, SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN);
    two->offloaded_bytes = 1;
    assert_int_equal(sl_documents_begin(documents, two, at("kvstore-0", ARENA, 4 * ARENA), &err), SL_ERR_PRECONDITION);
    two->offloaded_bytes = 0;
    assert_int_equal(sl_documents_begin(documents, two, at("kvstore-0", ARENA, 4 * ARENA), &err), SL_OK);
    sl_document_unref(&one);
    sl_document_unref(&two);
    sl_documents_destroy(&documents);
}

static void test_documents_remember_what_their_recipe_offloads(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(true, 4, 1000);
    struct sl_document *kept = make("acme", "gpl", 120), *found = NULL;
    kept->n_offloaded_heads = 6;
    kept->scan = SL_KV_INT1;
    kept->offloaded_bytes = 50;
    assert_int_equal(sl_documents_begin(documents, kept, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_finish(documents, kept, &err), SL_OK);
    sl_document_unref(&kept);
    sl_documents_destroy(&documents);
    documents = open_registry(true, 4, 1000);
    assert_int_equal(sl_documents_find(documents, "acme", "gpl", &found, &err), SL_OK);
    Sluice__V1__StoreKey key = sl_document_store_key(found);
    assert_int_equal(key.n_lanes, 6);
    assert_int_equal(key.scan_format, SL_KV_INT1);
    assert_int_equal(sl_document_bytes(found), 170);
    sl_document_unref(&found);
    sl_documents_destroy(&documents);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_count_offloaded_layers),
        cmocka_unit_test(test_documents_on_disk_count_their_layers),
        cmocka_unit_test_setup_teardown(test_documents_remember_what_their_recipe_offloads, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
