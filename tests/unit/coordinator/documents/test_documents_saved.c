// SPDX-License-Identifier: Apache-2.0
// Documents count their questions, the tokens that were not read again, and the time that reading them takes.
#include "tests/unit/coordinator/documents/documents_fixture.h"

static Sluice__V1__Document described(struct sl_documents *documents, const struct sl_document *document) {
    static struct sl_described_document described;
    sl_documents_describe(documents, document, 11, &described);
    return described.message;
}

static void test_documents_count_what_they_save(void **state) {
    (void)state;
    struct sl_documents *documents = open_registry(true, 10, 10000);
    struct sl_document *document = make("acme", "gpl", 10), *again = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), &err), SL_OK);
    sl_documents_measured(documents, document, 49, 500); // most of the text was stored: no measure of the rate
    sl_documents_measured(documents, document, 100, NAN);
    sl_documents_measured(documents, document, 100, 0);
    assert_int_equal(described(documents, document).read_tokens, 0);
    sl_documents_count(documents, "acme", "gpl", 60);
    assert_int_equal(described(documents, document).saved_tokens, 60);
    assert_true(described(documents, document).saved_ms == 0); // not known
    sl_documents_measured(documents, document, 80, 400);
    sl_documents_count(documents, "acme", "gpl", 1000); // with its own question's tokens
    sl_documents_count(documents, "acme", "gpl", -7);
    sl_documents_count(documents, "acme", "other", 60);
    sl_documents_count(documents, "umbrella", "gpl", 60);
    assert_int_equal(sl_documents_finish(documents, document, &err), SL_OK);
    Sluice__V1__Document message = described(documents, document);
    assert_int_equal(message.n_questions, 3);
    assert_int_equal(message.saved_tokens, 160);
    assert_true(message.saved_ms == 800 && message.read_tokens == 80 && message.read_ms == 400);
    char lost[SL_LOSS_BYTES];
    const struct sl_loss *loss = sl_recipe_loss("full,format=int4", document->n_tokens);
    sl_loss_format(loss, lost);
    assert_string_equal(message.lost_points, lost);
    assert_int_equal(message.lost_tokens, loss->tokens);
    assert_string_equal(message.lost_model, loss->model);
    assert_string_equal(message.caution, "");
    document->n_tokens = 8000; // longer than a tenth was measured to hold at
    strcpy(document->recipe, "kvzip,heads=pages,budget=0.33,format=int4");
    message = described(documents, document);
    assert_non_null(strstr(message.caution, "hold up to 2048 tokens"));
    assert_int_equal(message.lost_tokens, 8192);
    strcpy(document->recipe, "full,format=int2");
    message = described(documents, document);
    assert_string_equal(message.lost_points, "");
    assert_string_equal(message.caution, "");
    assert_int_equal(message.lost_tokens, 0);
    document->n_tokens = 10;
    sl_document_unref(&document);
    sl_documents_destroy(&documents);

    documents = open_registry(true, 10, 10000); // the rate survives, and the counters begin again
    assert_int_equal(sl_documents_find(documents, "acme", "gpl", &again, &err), SL_OK);
    sl_documents_count(documents, "acme", "gpl", 8);
    message = described(documents, again);
    assert_true(message.n_questions == 1 && message.saved_tokens == 8 && message.saved_ms == 40);
    sl_document_unref(&again);
    sl_documents_destroy(&documents);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_documents_count_what_they_save, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
