// SPDX-License-Identifier: Apache-2.0
// The registry of documents: names, quotas, what stores report, time, and what the folder keeps over restarts.
// clang-format off
#include "tests/unit/coordinator/documents/documents_fixture.h"

static void test_document_names_are_words(void **state) {
    (void)state;
    char long_name[10001];
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    const char *bad[] = {"", "a/b", "../x", ".hidden", "-r", "a b", "a\nb", "a\x1b[2J", "\xc3\xa9", "a\x7f", long_name};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sl_error err = {0};
        assert_int_equal(sl_document_check_name(bad[i], &err), SL_ERR_INVALID);
        for (const char *c = err.text; *c; c++) { // and the error shows nothing that a terminal obeys
            assert_in_range((unsigned char)*c, 0x20, 0x7e);
        }
        assert_true(strlen(err.text) < 200);
        assert_int_equal(strstr(err.text, "byte 1 is '/', 0x2f;") != NULL, strcmp(bad[i], "a/b") == 0);
    }
    const char *good[] = {"a", "GPL-3.0", "report_2026.txt", "0"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(sl_document_check_name(good[i], NULL), SL_OK);
    }
    long_name[SL_DOCUMENT_NAME_BYTES - 1] = '\0';
    assert_int_equal(sl_document_check_name(long_name, NULL), SL_OK);
}

static void test_documents_a_name_is_its_tenants_and_taken_once(void **state) {
    (void)state;
    struct sl_documents *documents = open_registry(false, 10, 10000);
    struct sl_document *first = make("acme", "gpl", 10), *second = make("acme", "gpl", 10), *found = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_documents_begin(documents, first, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_begin(documents, second, at("kvstore-0", ARENA, 0), &err), SL_ERR_EXISTS);
    assert_non_null(strstr(err.text, "another call is adding gpl"));
    assert_int_equal(sl_documents_finish(documents, first, &err), SL_OK);
    assert_int_equal(sl_documents_begin(documents, second, at("kvstore-0", ARENA, 0), &err), SL_ERR_EXISTS);
    assert_non_null(strstr(err.text, "gpl is taken, by the same text, but read under"));
    assert_int_equal(add(documents, "umbrella", "gpl", 10, &err), SL_OK); // another tenant's name is its own
    assert_int_equal(sl_documents_find(documents, "", "gpl", &found, &err), SL_ERR_NOT_FOUND);
    assert_int_equal(sl_documents_find(documents, "acme", "gpl", &found, &err), SL_OK);
    assert_ptr_equal(found, first);
    assert_int_equal(sl_documents_text_bytes(documents, "acme", "gpl"), 12);
    assert_int_equal(sl_documents_text_bytes(documents, "acme", "gp"), 0);
    assert_int_equal(count(documents, "acme"), 1);
    assert_int_equal(count(documents, NULL), 2);
    assert_int_equal(sl_documents_remove(documents, first, &err), SL_OK);
    assert_int_equal(sl_documents_remove(documents, first, &err), SL_ERR_NOT_FOUND);
    assert_string_equal(found->text, "what is said"); // a request that has it goes on
    assert_int_equal(sl_documents_begin(documents, second, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_remove(documents, first, &err), SL_ERR_NOT_FOUND); // the name is another document now
    assert_int_equal(count(documents, "acme"), 1);
    sl_document_unref(&found);
    sl_document_unref(&first);
    sl_document_unref(&second);
    sl_documents_destroy(&documents);
}

static void test_documents_a_full_tenant_and_a_full_store_say_what_they_hold(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 2, 474); // with two texts of 12 bytes; and half of ARENA: 500
    assert_int_equal(add(documents, "acme", "one", 200, &err), SL_OK);
    assert_int_equal(add(documents, "acme", "two", 251, &err), SL_ERR_PRECONDITION);
    assert_non_null(
        strstr(err.text, "263 bytes of capsule and text, and 212 bytes of documents, exceed the 474 allowed"));
    assert_non_null(strstr(err.text, "one (200 bytes)"));
    assert_int_equal(add(documents, "acme", "two", 250, &err), SL_OK);
    assert_int_equal(add(documents, "acme", "three", 0, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "2 documents are the most allowed"));
    assert_non_null(strstr(err.text, "one (200 bytes), two (250 bytes)"));
    assert_int_equal(add(documents, "umbrella", "mine", 51, &err), SL_ERR_PRECONDITION); // the store's half
    assert_non_null(strstr(err.text, "kvstore-0"));
    assert_non_null(strstr(err.text, "2 of other tenants (450 bytes)"));
    assert_null(strstr(err.text, "one (")); // but not their names
    assert_int_equal(add(documents, "umbrella", "mine", 50, &err), SL_OK);
    assert_int_equal(add(documents, "umbrella", "more", 1, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "mine (50 bytes), 2 of other tenants"));
    // A refused document is not there, and a store that has lost a capsule has room again.
    assert_int_equal(count(documents, NULL), 3);
    struct sl_document *two = NULL;
    assert_int_equal(sl_documents_find(documents, "acme", "two", &two, &err), SL_OK);
    sl_documents_found(documents, two, "kvstore-1", 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE); // another store never had it
    assert_int_equal(add(documents, "umbrella", "more", 1, &err), SL_ERR_PRECONDITION);
    sl_documents_found(documents, two, "kvstore-0", 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_int_equal(add(documents, "umbrella", "more", 250, &err), SL_OK);
    sl_document_unref(&two);
    sl_documents_destroy(&documents);
}

// A document on a store's disk needs no place in its memory. Half of either is for everything else.
static void test_documents_on_disk_need_no_memory(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 10, 100000);
    const int64_t disk_bytes = 2400;
    struct sl_document *one = make("acme", "one", 400), *two = make("acme", "two", 400), *three = make("acme", "three", 500);
    assert_int_equal(sl_documents_begin(documents, one, at("kvstore-0", ARENA, disk_bytes), &err), SL_OK);
    assert_int_equal(sl_documents_begin(documents, two, at("kvstore-0", ARENA, disk_bytes), &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "half of its arena, 500 bytes, may be documents not on its disk; it holds one (400"));
    assert_non_null(strstr(err.text, "or give it a larger --arena"));
    for (int disk = SLUICE__V1__DISK_COPY__DISK_COPY_WAITING; disk <= SLUICE__V1__DISK_COPY__DISK_COPY_FAILED; disk++) {
        sl_documents_found(documents, one, "kvstore-0", 400, (Sluice__V1__DiskCopy)disk);
        assert_int_equal(sl_documents_check_room(documents, two, at("kvstore-0", ARENA, disk_bytes), &err),
                         disk == SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN ? SL_OK : SL_ERR_PRECONDITION);
    }
    sl_documents_found(documents, one, "kvstore-0", 400, SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN);
    assert_int_equal(sl_documents_check_room(documents, two, at("kvstore-0", ARENA, ARENA), &err), SL_ERR_PRECONDITION);
    assert_int_equal(sl_documents_begin(documents, two, at("kvstore-0", ARENA, disk_bytes), &err), SL_OK);
    sl_documents_found(documents, two, "kvstore-0", 400, SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN);
    assert_int_equal(sl_documents_check_room(documents, three, at("kvstore-0", ARENA, 2599), &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "half of its disk, 1299 bytes, may be documents; it holds one (400 bytes), two (400"));
    assert_int_equal(sl_documents_check_room(documents, three, at("kvstore-0", ARENA, 2600), &err), SL_OK);
    three->capsule_bytes = 501; // its memory could not take it
    assert_int_equal(sl_documents_check_room(documents, three, at("kvstore-0", ARENA, 1 << 20), &err),
                     SL_ERR_PRECONDITION);
    sl_document_unref(&one);
    sl_document_unref(&two);
    sl_document_unref(&three);
    sl_documents_destroy(&documents);
}

static void test_documents_describe_what_stores_report(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 4, 1000);
    struct sl_document *document = make("acme", "gpl", 120);
    struct sl_described_document described;
    const Sluice__V1__Document *message = &described.message;
    assert_int_equal(sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(n_stores(documents, document), 0);
    sl_documents_describe(documents, document, 12, &described);
    assert_true(message->reading);
    assert_true(message->other_model); // the cluster's is 12
    assert_string_equal(message->store, "");
    sl_documents_found(documents, document, "kvstore-3", 99, SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN); // not the one that was planned
    assert_int_equal(sl_documents_finish(documents, document, &err), SL_OK);
    sl_documents_describe(documents, document, 11, &described);
    assert_false(message->reading);
    assert_false(message->other_model);
    assert_string_equal(message->store, "kvstore-3");
    assert_true(message->on_disk);
    assert_int_equal(message->capsule_bytes, 99);
    sl_documents_found(documents, document, "kvstore-4", 99, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    sl_documents_describe(documents, document, 11, &described);
    assert_int_equal(message->n_stores, 2);
    assert_string_equal(message->stores[1], "kvstore-4");
    assert_string_equal(message->not_on_disk, "");
    assert_int_equal(sl_documents_unwritten_bytes(documents, document), 0);
    sl_documents_found(documents, document, "kvstore-4", 99, SLUICE__V1__DISK_COPY__DISK_COPY_WAITING);
    assert_int_equal(sl_documents_unwritten_bytes(documents, document), 99);
    sl_documents_describe(documents, document, 11, &described);
    assert_string_equal(message->not_on_disk, "kvstore-4 has not written it to its disk yet");
    sl_documents_found(documents, document, "kvstore-4", 99, SLUICE__V1__DISK_COPY__DISK_COPY_NO_ROOM);
    assert_int_equal(sl_documents_unwritten_bytes(documents, document), 0);
    sl_documents_describe(documents, document, 11, &described);
    assert_true(message->on_disk); // at the other store
    assert_string_equal(message->not_on_disk, "the disk of kvstore-4 has no room for 0.0 MiB");
    sl_documents_found(documents, document, "kvstore-3", 99, SLUICE__V1__DISK_COPY__DISK_COPY_FAILED);
    sl_documents_found(documents, document, "kvstore-4", 99, SLUICE__V1__DISK_COPY__DISK_COPY_WRITTEN);
    sl_documents_describe(documents, document, 11, &described);
    assert_string_equal(message->not_on_disk, "the disk of kvstore-3 does not work now");
    sl_documents_found(documents, document, "kvstore-3", 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    sl_documents_describe(documents, document, 11, &described);
    assert_string_equal(message->store, "kvstore-4");
    assert_true(message->on_disk);
    assert_string_equal(message->not_on_disk, "");
    sl_documents_found(documents, document, "kvstore-4", 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    sl_documents_describe(documents, document, 11, &described);
    assert_string_equal(message->store, "");
    for (int i = 0; i < SL_MAX_HOLDERS + 2; i++) { // more stores than are recorded
        char name[16];
        snprintf(name, sizeof name, "kvstore-%d", i);
        sl_documents_found(documents, document, name, 99, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    }
    assert_int_equal(n_stores(documents, document), SL_MAX_HOLDERS);
    sl_document_unref(&document);
    sl_documents_destroy(&documents);
}

// Returns whether the registry finds this document, and releases it.
static bool is_found(struct sl_document *found, const struct sl_document *document) {
    bool is = found == document;
    sl_document_unref(&found);
    return is;
}

static void test_documents_are_copied_until_enough_stores_have_them(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 4, 1000);
    struct sl_document *document = make("acme", "gpl", 300), *same = make("acme", "gpx", 300);
    int64_t ms = SL_NS_PER_MS, now_ns = sl_now_ns();
    document->replicas = 2;
    same->replicas = 2;
    assert_int_equal(sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_plan_store(documents, document, at("kvstore-1", 599, 0), &err), SL_ERR_PRECONDITION);
    assert_int_equal(sl_documents_plan_store(documents, document, at("kvstore-1", 600, 0), &err), SL_OK);
    assert_int_equal(add(documents, "acme", "other", 201, &err), SL_ERR_PRECONDITION); // 12 + 600 + 12 + 201 bytes fit
    assert_null(sl_documents_short(documents, now_ns));                                // no store has it yet
    sl_documents_found(documents, document, "kvstore-1", 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_false(sl_documents_are_told(documents, document));
    sl_documents_found(documents, document, "kvstore-0", 300, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_true(sl_documents_are_told(documents, document));
    assert_int_equal(sl_documents_check_room(documents, document, at("kvstore-1", 600, 0), &err),
                     SL_OK); // room was kept for it
    assert_null(sl_documents_excess(documents, now_ns));
    assert_true(is_found(sl_documents_short(documents, now_ns), document)); // its call waits for it
    assert_null(sl_documents_short(documents, now_ns + SL_DOCUMENT_COPY_MS * ms - 1));
    now_ns += SL_DOCUMENT_COPY_MS * ms;
    assert_true(is_found(sl_documents_short(documents, now_ns), document)); // the copy failed
    assert_null(sl_documents_short(documents, now_ns + 2 * SL_DOCUMENT_COPY_MS * ms - 1));
    sl_documents_found(documents, document, "kvstore-1", 300, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_null(sl_documents_short(documents, INT64_MAX / 2));
    assert_int_equal(sl_documents_finish(documents, document, &err), SL_OK);
    sl_documents_found(documents, document, "kvstore-1", 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE); // it may only have been restarted
    assert_null(sl_documents_short(documents, sl_now_ns()));
    now_ns = sl_now_ns() + 2 * SL_DOCUMENT_LOST_MS * ms;
    assert_null(sl_documents_lost(documents, 11, now_ns)); // its text is not read again
    assert_true(is_found(sl_documents_short(documents, now_ns), document));
    sl_documents_found(documents, document, "kvstore-1", 300, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_null(sl_documents_excess(documents, now_ns));
    sl_documents_found(documents, document, "kvstore-2", 300, SLUICE__V1__DISK_COPY__DISK_COPY_NONE); // a store came back
    assert_true(is_found(sl_documents_excess(documents, now_ns), document));
    // It cannot be dropped now, and waits: another document has its turn.
    struct sl_document *second = make("acme", "second", 1);
    assert_int_equal(sl_documents_begin(documents, second, at("kvstore-0", ARENA, 0), &err), SL_OK);
    sl_documents_found(documents, second, "kvstore-0", 1, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    sl_documents_found(documents, second, "kvstore-1", 1, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_int_equal(sl_documents_finish(documents, second, &err), SL_OK);
    second->replicas = 1;
    assert_true(is_found(sl_documents_excess(documents, now_ns), second));
    assert_null(sl_documents_excess(documents, now_ns));
    now_ns += SL_DOCUMENT_DROP_MS * ms;
    assert_true(is_found(sl_documents_excess(documents, now_ns), document));
    assert_int_equal(sl_documents_remove(documents, second, &err), SL_OK);
    sl_document_unref(&second);
    now_ns += SL_DOCUMENT_DROP_MS * ms;
    same->capsule_bytes = 0;
    assert_int_equal(sl_documents_begin(documents, same, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_null(sl_documents_excess(documents, now_ns)); // it may be there for this one
    assert_int_equal(sl_documents_remove(documents, document, &err), SL_OK);
    sl_document_unref(&document);
    sl_document_unref(&same);
    sl_documents_destroy(&documents);
}

static void test_documents_a_store_names_its_documents_to_operators(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 40, 100000);
    assert_int_equal(add(documents, "acme", "one", 200, &err), SL_OK);
    assert_int_equal(add(documents, "", "two", 250, &err), SL_OK);
    assert_int_equal(add(documents, "", "three", 51, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "it holds two (250 bytes), one of acme (200 bytes). Delete"));
    char name[SL_DOCUMENT_NAME_BYTES];
    for (int i = 0; i < 20; i++) { // more than a message can name
        snprintf(name, sizeof name, "a-long-name-%02d", i);
        assert_int_equal(add(documents, "umbrella", name, 2, &err), SL_OK);
    }
    assert_int_equal(add(documents, "umbrella", "last", 20, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "a-long-name-00 (2 bytes), "));
    assert_non_null(strstr(err.text, "16 more (32 bytes), 2 of other tenants (450 bytes). Delete one"));
    sl_documents_destroy(&documents);
}

static void test_documents_a_second_text_under_a_name_is_refused(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 4, 1000);
    struct sl_document *document = make("acme", "gpl", 120), *same = make("acme", "gpl", 120), *other = NULL;
    assert_int_equal(sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_null(sl_documents_find_same(documents, same)); // another call is still reading it
    assert_int_equal(sl_documents_begin(documents, same, at("kvstore-0", ARENA, 0), &err), SL_ERR_EXISTS);
    assert_non_null(strstr(err.text, "another call is adding gpl now"));
    assert_int_equal(sl_documents_finish(documents, document, &err), SL_OK);
    assert_true(is_found(sl_documents_find_same(documents, same), document));
    strcpy(same->recipe, "full");
    assert_null(sl_documents_find_same(documents, same));
    assert_int_equal(sl_documents_begin(documents, same, at("kvstore-0", ARENA, 0), &err), SL_ERR_EXISTS);
    assert_non_null(strstr(err.text, "by the same text, but read under full,format=int4 for texts"));
    assert_int_equal(sl_document_create("acme", "gpl", "what was said", &other, NULL), SL_OK);
    assert_null(sl_documents_find_same(documents, other));
    assert_int_equal(sl_documents_begin(documents, other, at("kvstore-0", ARENA, 0), &err), SL_ERR_EXISTS);
    assert_non_null(strstr(err.text, "by another text: 12 bytes with SHA-256"));
    assert_non_null(strstr(err.text, "this one has 13 bytes"));
    sl_document_unref(&other);
    sl_document_unref(&same);
    sl_document_unref(&document);
    sl_documents_destroy(&documents);
}

static void test_documents_end_at_their_time_and_share_capsules(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 4, 1000);
    struct sl_document *brief = make("acme", "abc", 10), *same = make("acme", "abd", 10);
    brief->expires_ms = 1000;
    assert_int_equal(sl_documents_begin(documents, brief, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_null(sl_documents_expired(documents, 2000)); // while it is being read, its call decides
    assert_int_equal(sl_documents_finish(documents, brief, &err), SL_OK);
    assert_int_equal(sl_documents_begin(documents, same, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_finish(documents, same, &err), SL_OK);
    assert_null(sl_documents_expired(documents, 999));
    struct sl_document *expired = sl_documents_expired(documents, 1000);
    assert_ptr_equal(expired, brief);
    assert_true(sl_documents_share_capsule(documents, brief));
    assert_int_equal(sl_documents_remove(documents, same, &err), SL_OK);
    assert_false(sl_documents_share_capsule(documents, brief));
    sl_document_unref(&expired);
    sl_document_unref(&brief);
    sl_document_unref(&same);
    sl_documents_destroy(&documents);
}

// Puts a folder where the only document's file was, which neither write nor unlink can replace.
static void block_file(char path_out[512]) {
    DIR *dir = opendir(folder.path);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, "document-", 9) == 0) {
            snprintf(path_out, 512, "%s/%s", folder.path, entry->d_name);
        }
    }
    closedir(dir);
    assert_int_equal(unlink(path_out), 0);
    assert_int_equal(mkdir(path_out, 0700), 0);
}

static void test_documents_pinned_later_obey_the_quota(void **state) {
    (void)state;
    struct sl_error err = {0};
    char path[512] = "";
    struct sl_documents *documents = open_registry(true, 4, 1000);
    struct sl_document *document = make("acme", "gpl", 300);
    document->expires_ms = 1000;
    const struct sl_document_pin longer = {true, 5000, 0}, forever = {true, 0, 0}, three = {.replicas = 3},
                                 four = {.replicas = 4}, one = {.replicas = 1};
    assert_int_equal(sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_pin(documents, document, &longer, &err), SL_ERR_PRECONDITION); // its call decides
    assert_int_equal(sl_documents_finish(documents, document, &err), SL_OK);
    assert_int_equal(sl_documents_pin(documents, document, &longer, &err), SL_OK);
    assert_null(sl_documents_expired(documents, 4999));
    assert_int_equal(sl_documents_pin(documents, document, &four, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "1212 bytes of capsule and text, and 0 bytes of documents, exceed the 1000"));
    assert_int_equal(sl_documents_pin(documents, document, &three, &err), SL_OK);
    assert_int_equal(document->expires_ms, 5000);                                    // as before
    assert_int_equal(add(documents, "acme", "more", 80, &err), SL_ERR_PRECONDITION); // 912 bytes are held
    sl_document_unref(&document);
    sl_documents_destroy(&documents);

    documents = open_registry(true, 4, 1000); // the change outlives the process
    assert_int_equal(sl_documents_find(documents, "acme", "gpl", &document, &err), SL_OK);
    assert_true(document->replicas == 3 && document->is_cut);
    assert_int_equal(document->expires_ms, 5000);
    block_file(path); // what cannot be written does not change
    assert_int_equal(sl_documents_pin(documents, document, &one, &err), SL_ERR_IO);
    assert_int_equal(sl_documents_pin(documents, document, &forever, &err), SL_ERR_IO);
    assert_int_equal(document->replicas, 3);
    assert_int_equal(document->expires_ms, 5000);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(sl_documents_pin(documents, document, &forever, &err), SL_OK);
    assert_null(sl_documents_expired(documents, INT64_MAX));
    assert_int_equal(sl_documents_remove(documents, document, &err), SL_OK);
    assert_int_equal(sl_documents_pin(documents, document, &one, &err), SL_ERR_NOT_FOUND);
    sl_document_unref(&document);
    sl_documents_destroy(&documents);
    documents = open_registry(true, 4, 1000);
    assert_int_equal(count(documents, NULL), 0); // the change did not bring it back
    sl_documents_destroy(&documents);
}

static void test_documents_that_are_lost_are_read_again_ever_later(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, 4, 1000);
    struct sl_document *document = make("acme", "abc", 300), *lost;
    int64_t now_ns = sl_now_ns(), soon_ns = now_ns + 2 * SL_DOCUMENT_LOST_MS * SL_NS_PER_MS;
    assert_int_equal(sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_null(sl_documents_lost(documents, 11, soon_ns)); // its call reads it
    sl_documents_found(documents, document, "kvstore-0", 300, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_int_equal(sl_documents_finish(documents, document, &err), SL_OK);
    assert_null(sl_documents_lost(documents, 11, soon_ns));
    sl_documents_found(documents, document, "kvstore-0", 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_null(sl_documents_lost(documents, 11, sl_now_ns())); // the store may only have been restarted
    soon_ns = sl_now_ns() + SL_DOCUMENT_LOST_MS * SL_NS_PER_MS;
    assert_null(sl_documents_lost(documents, 12, soon_ns)); // the cluster has another model
    for (int64_t wait = 2; wait <= 8; wait *= 2) {          // reading it again does not help
        lost = sl_documents_lost(documents, 11, soon_ns);
        assert_ptr_equal(lost, document);
        sl_document_unref(&lost);
        soon_ns += wait * SL_DOCUMENT_LOST_MS * SL_NS_PER_MS;
        assert_null(sl_documents_lost(documents, 11, soon_ns - 1));
    }
    assert_true(sl_documents_read_now(documents, document)); // a caller wants it: at once, and once
    assert_true(is_found(sl_documents_lost(documents, 11, sl_now_ns()), document));
    assert_true(sl_documents_read_now(documents, document));
    assert_null(sl_documents_lost(documents, 11, sl_now_ns()));
    document->replicas = 2;
    sl_documents_found(documents, document, "kvstore-1", 300, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_false(sl_documents_read_now(documents, document));
    assert_null(sl_documents_lost(documents, 11, INT64_MAX));
    assert_true(is_found(sl_documents_short(documents, sl_now_ns()), document)); // at once, not at the next reading
    assert_int_equal(sl_documents_replicas(documents, document), 2);
    // Another store has documents of its own by now, and room for those that it has.
    struct sl_document *other = make("acme", "abd", 210);
    assert_int_equal(sl_documents_check_room(documents, other, at("kvstore-1", ARENA, 0), &err), SL_ERR_PRECONDITION);
    assert_int_equal(sl_documents_check_room(documents, other, at("kvstore-2", ARENA, 0), &err), SL_OK);
    sl_document_unref(&other);
    sl_documents_found(documents, document, "kvstore-1", 0, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    assert_true(sl_documents_read_now(documents, document));
    assert_int_equal(sl_documents_remove(documents, document, &err), SL_OK);
    assert_false(sl_documents_read_now(documents, document)); // who waits for it would wait in vain
    sl_document_unref(&document);
    sl_documents_destroy(&documents);
}

// The registry that fsync() below asks while a file is being written; NULL: none.
static struct sl_documents *asked;
static int n_asked;

int fsync(int fd) { // in place of libc's: a request of another document arrives meanwhile
    (void)fd;
    if (asked != NULL) {
        n_asked += sl_documents_text_bytes(asked, "acme", "gpl") == strlen("what is said");
    }
    return 0;
}

static void test_documents_requests_do_not_wait_for_the_disk(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(true, 4, 1000);
    struct sl_document *document = NULL;
    const struct sl_document_pin longer = {true, 5000, 2}, back = {.replicas = 1};
    alarm(60); // a lock that is held here would be waited for forever
    asked = documents;
    assert_int_equal(add(documents, "acme", "gpl", 300, &err), SL_OK);
    assert_int_equal(sl_documents_find(documents, "acme", "gpl", &document, &err), SL_OK);
    int n_finish = n_asked;
    assert_true(n_finish > 0);
    assert_int_equal(sl_documents_pin(documents, document, &longer, &err), SL_OK);
    assert_int_equal(sl_documents_pin(documents, document, &back, &err), SL_OK);
    assert_true(n_asked >= n_finish + 2);
    assert_int_equal(sl_documents_replicas(documents, document), 1);
    assert_int_equal(document->expires_ms, 5000);
    asked = NULL;
    alarm(0);
    assert_int_equal(sl_documents_remove(documents, document, &err), SL_OK);
    assert_int_equal(count(documents, NULL), 0);
    sl_document_unref(&document);
    sl_documents_destroy(&documents);
}

static void test_documents_of_all_tenants_are_limited(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(false, SL_MAX_DOCUMENTS, 1 << 20);
    char name[16];
    for (int i = 0; i < SL_MAX_DOCUMENTS; i++) {
        snprintf(name, sizeof name, "%d", SL_MAX_DOCUMENTS - i); // mostly inserted near the beginning
        assert_int_equal(add(documents, "acme", name, 0, &err), SL_OK);
    }
    assert_int_equal(add(documents, "umbrella", "mine", 0, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "all tenants together have 4096 documents"));
    assert_non_null(strstr(err.text, "4096 of other tenants (0 bytes)"));
    sl_documents_destroy(&documents);
    documents = open_registry(false, 0, 1 << 20);
    assert_int_equal(add(documents, "acme", "one", 0, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "0 documents are the most allowed (--max-documents)"));
    sl_documents_destroy(&documents);
}

static void test_documents_a_failed_one_leaves_the_list(void **state) {
    (void)state;
    struct sl_error err = {0};
    char path[512] = "";
    struct sl_documents *documents = open_registry(true, 1, 1000);
    struct sl_document *document = make("acme", "gpl", 120), *found = NULL;
    assert_int_equal(add(documents, "acme", "gpl", 120, &err), SL_OK);
    block_file(path);
    assert_int_equal(sl_documents_find(documents, "acme", "gpl", &found, &err), SL_OK);
    assert_int_equal(sl_documents_remove(documents, found, &err),
                     SL_ERR_IO); // a kept one stays, and may be deleted later
    assert_int_equal(count(documents, NULL), 1);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(sl_documents_remove(documents, found, &err), SL_OK);
    sl_document_unref(&found);

    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(sl_documents_begin(documents, document, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_finish(documents, document, &err), SL_ERR_IO);
    assert_int_equal(sl_documents_remove(documents, document, &err), SL_OK);
    assert_int_equal(count(documents, NULL), 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(add(documents, "acme", "gpl", 120, &err), SL_OK); // the name and the quota are free
    sl_document_unref(&document);
    sl_documents_destroy(&documents);
}

// Writes to every file of the folder whose name begins so; returns how many there are.
static int touch_files(const char *prefix, long offset, int byte) {
    int n = 0;
    DIR *dir = opendir(folder.path);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) {
            char path[512];
            snprintf(path, sizeof path, "%s/%s", folder.path, entry->d_name);
            n++;
            FILE *file = offset >= 0 ? fopen(path, "r+b") : NULL;
            if (file) {
                fseek(file, offset, SEEK_SET);
                fputc(byte, file);
                fclose(file);
            }
        }
    }
    closedir(dir);
    return n;
}

static void test_documents_survive_the_process(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_documents *documents = open_registry(true, 4, 1000);
    struct sl_document *unfinished = make("acme", "later", 10), *kept = make("acme", "gpl", 120), *found = NULL;
    kept->replicas = 3;
    assert_int_equal(sl_documents_begin(documents, kept, at("kvstore-0", ARENA, 0), &err), SL_OK);
    assert_int_equal(sl_documents_finish(documents, kept, &err), SL_OK);
    sl_document_unref(&kept);
    assert_int_equal(add(documents, "umbrella", "gpl", 130, &err), SL_OK);
    assert_int_equal(sl_documents_begin(documents, unfinished, at("kvstore-0", ARENA, 0), &err), SL_OK);
    sl_document_unref(&unfinished);
    sl_documents_destroy(&documents);

    documents = open_registry(true, 4, 1000);
    assert_int_equal(count(documents, NULL), 2); // the one that was being read ended with its call
    assert_int_equal(sl_documents_find(documents, "acme", "gpl", &found, &err), SL_OK);
    assert_string_equal(found->text, "what is said");
    assert_string_equal(found->recipe, "full,format=int4");
    assert_int_equal(found->capsule.model_fingerprint, 11);
    assert_int_equal(found->capsule.recipe_fingerprint, 22);
    assert_int_equal(found->capsule.prefix_hash.bytes[1], 'g');
    assert_int_equal(found->capsule_tokens, 99);
    assert_int_equal(found->n_tokens, 100);
    assert_int_equal(found->first_key, 77);
    assert_int_equal(found->capsule_bytes, 120);
    assert_int_equal(found->created_ms, 5);
    assert_int_equal(n_stores(documents, found), 0); // until a store reports it
    assert_int_equal(found->replicas, 3);
    assert_int_equal(sl_documents_remove(documents, found, &err), SL_OK);
    sl_document_unref(&found);
    sl_documents_destroy(&documents);

    documents = open_registry(true, 4, 1000);
    assert_int_equal(count(documents, NULL), 1); // removed for good, and only that one
    sl_documents_destroy(&documents);
    secret.bytes[0]++; // the coordinator has another --salt-file: no store has the capsule under the keys of today
    documents = open_registry(true, 4, 1000);
    assert_int_equal(sl_documents_find(documents, "umbrella", "gpl", &found, &err), SL_OK);
    assert_int_equal(found->capsule.model_fingerprint, 0);
    assert_true(sl_hash128_is_zero(&found->capsule.prefix_hash));
    sl_document_unref(&found);
    sl_documents_destroy(&documents);
    assert_int_equal(touch_files("document-", 20, 0x55), 1);
    documents = open_registry(true, 4, 1000);
    assert_int_equal(count(documents, NULL), 0); // damaged, and put aside
    assert_int_equal(touch_files("document-", -1, 0), 0);
    assert_int_equal(touch_files("damaged-document-", -1, 0), 1);
    assert_int_equal(add(documents, "umbrella", "gpl", 130, &err), SL_OK); // its name is free again
    // A document that cannot be written is not kept.
    struct sl_document *lost = make("acme", "lost", 10);
    assert_int_equal(sl_documents_begin(documents, lost, at("kvstore-0", ARENA, 0), &err), SL_OK);
    temp_folder_destroy(&folder);
    assert_int_equal(sl_documents_finish(documents, lost, &err), SL_ERR_IO);
    sl_document_unref(&lost);
    sl_documents_destroy(&documents);
    assert_int_equal(mkdir(folder.path, 0700), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_document_names_are_words),
        cmocka_unit_test(test_documents_a_name_is_its_tenants_and_taken_once),
        cmocka_unit_test(test_documents_a_full_tenant_and_a_full_store_say_what_they_hold),
        cmocka_unit_test(test_documents_on_disk_need_no_memory),
        cmocka_unit_test(test_documents_describe_what_stores_report),
        cmocka_unit_test(test_documents_are_copied_until_enough_stores_have_them),
        cmocka_unit_test(test_documents_a_store_names_its_documents_to_operators),
        cmocka_unit_test(test_documents_a_second_text_under_a_name_is_refused),
        cmocka_unit_test(test_documents_end_at_their_time_and_share_capsules),
        cmocka_unit_test(test_documents_that_are_lost_are_read_again_ever_later),
        cmocka_unit_test_setup_teardown(test_documents_pinned_later_obey_the_quota, setup, teardown),
        cmocka_unit_test_setup_teardown(test_documents_requests_do_not_wait_for_the_disk, setup, teardown),
        cmocka_unit_test(test_documents_of_all_tenants_are_limited),
        cmocka_unit_test_setup_teardown(test_documents_a_failed_one_leaves_the_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_documents_survive_the_process, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
