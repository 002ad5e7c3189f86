// SPDX-License-Identifier: Apache-2.0
// Documents in etcd: the next leader has them whole, a former one changes nothing, and what was not added is removed.
#include "tests/unit/coordinator/documents/documents_fixture.h"

#include "base/log.h"
#include "coordinator/documents/document_etcd.h"
#include "net/rpc/rpc.h"
#include "tests/unit/coordinator/election/fake_etcd.h"

static struct sl_etcd *etcd;

static int begin(void **state) {
    (void)state;
    char list[FAKE_ETCD_LIST_BYTES];
    const struct sl_tls_files none = {.ca = "", .certificate = "", .key = ""};
    fake_etcd_start(list);
    fake_etcd.created = ++fake_etcd.revision; // the term: another coordinator's, or ours
    assert_int_equal(sl_etcd_create(list, FAKE_ETCD_PREFIX, &none, true, &etcd, NULL), SL_OK);
    return 0;
}

static int end(void **state) {
    (void)state;
    sl_etcd_destroy(&etcd);
    fake_etcd_stop();
    return 0;
}

static const char *state_folder = "";

static struct sl_documents *open_leading(int64_t term) {
    const struct sl_documents_config config = {state_folder, 64, INT64_C(1) << 30, &secret, etcd};
    struct sl_documents *documents = NULL;
    assert_int_equal(sl_documents_create(&config, &documents, NULL), SL_OK);
    assert_int_equal(sl_documents_lead(documents, term, NULL), SL_OK);
    assert_int_equal(sl_documents_term(documents), term);
    return documents;
}

static enum sl_status add_text(struct sl_documents *documents, const char *name, const char *text,
                               struct sl_error *err) {
    struct sl_document *made = make("acme", name, 10), *document = NULL;
    assert_int_equal(sl_document_create("acme", name, text, &document, NULL), SL_OK);
    strcpy(document->recipe, made->recipe);
    document->salt_proof = made->salt_proof;
    document->capsule = made->capsule;
    document->capsule_bytes = 10;
    sl_document_unref(&made);
    enum sl_status status = sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), err);
    status = status == SL_OK ? sl_documents_finish(documents, document, err) : status;
    if (status != SL_OK) {
        struct sl_error ignored;
        (void)sl_documents_remove(documents, document, &ignored);
    }
    sl_document_unref(&document);
    return status;
}

static char *long_text(size_t n) {
    char *text = malloc(n + 1);
    assert_non_null(text);
    uint32_t random = 1;
    for (size_t i = 0; i < n; i++) { // nearly incompressible: as few bits as a byte of ASCII can have
        random = random * 1664525 + 1013904223;
        text[i] = (char)(1 + random / 0x2040811); // 1 to 127
    }
    text[n] = '\0';
    return text;
}

static void test_next_leader_has_documents(void **state) {
    (void)state;
    struct sl_error err = {0};
    char *text = long_text(3 * SL_ETCD_MAX_VALUE_BYTES + 5), name[16];
    struct sl_documents *old = open_leading(fake_etcd.created), *next;
    assert_int_equal(add_text(old, "long", text, &err), SL_OK);
    for (int i = 0; i < SL_ETCD_PAGE_KEYS + 2; i++) { // more than a page of records, and of pieces
        snprintf(name, sizeof name, "d%d", i);
        assert_int_equal(add_text(old, name, "what is said", &err), SL_OK);
    }
    int n_pieces = 0;
    for (int i = 0; i < fake_etcd.n_pairs; i++) {
        assert_true(fake_etcd.pairs[i].n_value <= SL_ETCD_MAX_VALUE_BYTES);
        n_pieces += strstr(fake_etcd.pairs[i].key, "/texts/") != NULL;
    }
    assert_int_equal(n_pieces, SL_ETCD_PAGE_KEYS + 2 + 3); // compressed: the long one has three
    struct sl_document *document = NULL;
    assert_int_equal(sl_documents_find(old, "acme", "d1", &document, &err), SL_OK);
    const struct sl_document_pin pin = {.sets_time = true, .expires_ms = 77, .replicas = 2};
    assert_int_equal(sl_documents_pin(old, document, &pin, &err), SL_OK);
    sl_document_unref(&document);

    fake_etcd.created = ++fake_etcd.revision;
    next = open_leading(fake_etcd.created);
    assert_int_equal(count(next, NULL), SL_ETCD_PAGE_KEYS + 3);
    assert_int_equal(sl_documents_find(next, "acme", "long", &document, &err), SL_OK);
    assert_string_equal(document->text, text);
    sl_document_unref(&document);
    assert_int_equal(sl_documents_find(next, "acme", "d1", &document, &err), SL_OK);
    assert_true(document->expires_ms == 77 && document->replicas == 2);
    int n_compactions = fake_etcd.n_compactions, n_pairs = fake_etcd.n_pairs;
    assert_int_equal(sl_documents_remove(next, document, &err), SL_OK);
    sl_document_unref(&document);
    assert_int_equal(fake_etcd.n_compactions, n_compactions + 1);
    assert_int_equal(fake_etcd.n_pairs, n_pairs - 2); // the record and the text

    // The former leader, which does not know yet, changes nothing, and then has nothing.
    assert_int_equal(add_text(old, "late", "what is said", &err), SL_ERR_PEER_LOST);
    assert_int_equal(fake_etcd.n_pairs, n_pairs - 2);
    assert_int_equal(sl_documents_find(old, "acme", "long", &document, &err), SL_OK);
    assert_int_equal(sl_documents_remove(old, document, &err), SL_ERR_PEER_LOST);
    assert_int_equal(sl_documents_pin(old, document, &pin, &err), SL_ERR_PEER_LOST);
    assert_int_equal(sl_documents_lead(old, 0, &err), SL_OK);
    assert_int_equal(count(old, NULL), 0);
    assert_int_equal(sl_documents_finish(old, document, &err), SL_ERR_PEER_LOST); // begun in the term that is over
    sl_document_unref(&document);
    assert_int_equal(fake_etcd.n_pairs, n_pairs - 2);
    sl_documents_destroy(&old);
    sl_documents_destroy(&next);
    free(text);
}

static void test_records_that_are_not_whole_are_left_out(void **state) {
    (void)state;
    struct sl_error err = {0};
    int64_t term = fake_etcd.created;
    char digits[SL_DOCUMENT_DIGITS + 1], key[64];
    struct sl_documents *documents = open_leading(term);
    assert_int_equal(add_text(documents, "whole", "what is said", &err), SL_OK);
    assert_int_equal(add_text(documents, "short", "what is said", &err), SL_OK);
    sl_documents_destroy(&documents);
    // A coordinator that ended between the text and the record; and keys that no coordinator writes.
    assert_int_equal(sl_etcd_put(etcd, term, "texts/00112233445566778899aabbccddeeff/0000", "abc", 3, &err), SL_OK);
    assert_int_equal(sl_etcd_put(etcd, term, "texts/00112233445566778899aabbccddeeff/0001", "abc", 3, &err), SL_OK);
    assert_int_equal(sl_etcd_put(etcd, term, "documents/x", "abc", 3, &err), SL_OK);
    assert_int_equal(sl_etcd_put(etcd, term, "documents/ffffffffffffffffffffffffffffffff", "abcdefghijk", 11, &err),
                     SL_OK);
    struct sl_document *lost = make("acme", "short", 10);
    sl_document_digits(lost, digits);
    snprintf(key, sizeof key, "texts/%s/0000", digits);
    assert_int_equal(sl_etcd_put(etcd, term, key, "what is sad", 11, &err), SL_OK);
    documents = open_leading(term);
    assert_int_equal(count(documents, NULL), 1);
    for (int i = 0; i < fake_etcd.n_pairs; i++) {
        assert_null(strstr(fake_etcd.pairs[i].key, "texts/00112233"));
    }
    assert_int_equal(add_text(documents, "short", "what is said", &err), SL_OK); // its name is free
    assert_int_equal(sl_documents_lead(documents, 0, &err), SL_OK);
    assert_int_equal(sl_documents_lead(documents, term, &err), SL_OK);
    assert_int_equal(count(documents, NULL), 2);
    sl_document_unref(&lost);

    // Without etcd there is no term, and the next call tries again.
    fake_etcd.silent[0] = fake_etcd.silent[1] = true;
    assert_int_equal(sl_documents_lead(documents, term + 1, &err), SL_ERR_PEER_LOST);
    assert_true(sl_documents_term(documents) == 0 && count(documents, NULL) == 0);
    fake_etcd.silent[0] = fake_etcd.silent[1] = false;
    assert_int_equal(sl_documents_lead(documents, term, &err), SL_OK);
    assert_int_equal(count(documents, NULL), 2);
    sl_documents_destroy(&documents);
}

static void test_documents_of_one_coordinator_move_to_etcd(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(true, 64, INT64_C(1) << 30);
    assert_int_equal(add(documents, "acme", "before", 10, &err), SL_OK);
    assert_int_equal(add(documents, "acme", "taken", 10, &err), SL_OK);
    sl_documents_destroy(&documents);
    documents = open_leading(fake_etcd.created);
    assert_int_equal(add_text(documents, "taken", "another text", &err), SL_OK);
    sl_documents_destroy(&documents);
    state_folder = folder.path;
    for (int i = 0; i < 2; i++) {
        documents = open_leading(fake_etcd.created);
        assert_int_equal(count(documents, "acme"), 2);
        struct sl_document *document = NULL;
        assert_int_equal(sl_documents_find(documents, "acme", "taken", &document, &err), SL_OK);
        assert_string_equal(document->text, "another text");
        sl_document_unref(&document);
        assert_int_equal(sl_documents_find(documents, "acme", "before", &document, &err), SL_OK);
        if (i == 1) {
            assert_int_equal(sl_documents_remove(documents, document, &err), SL_OK);
        }
        sl_document_unref(&document);
        sl_documents_destroy(&documents);
    }
    state_folder = "";
    documents = open_registry(true, 64, INT64_C(1) << 30); // what has moved is not there any more
    assert_int_equal(count(documents, "acme"), 1);
    sl_documents_destroy(&documents);
}

static void test_texts_leave_room_in_etcd(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_leading(fake_etcd.created);
    char *text = long_text(SL_DOCUMENTS_ETCD_BYTES + 1);
    assert_int_equal(add_text(documents, "huge", text, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "etcd"));
    assert_int_equal(fake_etcd.n_pairs, 0);
    free(text);
    sl_documents_destroy(&documents);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_next_leader_has_documents, begin, end),
        cmocka_unit_test_setup_teardown(test_records_that_are_not_whole_are_left_out, begin, end),
        cmocka_unit_test_setup_teardown(test_documents_of_one_coordinator_move_to_etcd, begin, end),
        cmocka_unit_test_setup_teardown(test_texts_leave_room_in_etcd, begin, end),
    };
    sl_log_configure("error", NULL);
    sl_rpc_init();
    int n_failed = cmocka_run_group_tests(tests, setup, teardown);
    sl_rpc_shutdown();
    return n_failed;
}
