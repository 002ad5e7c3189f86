// SPDX-License-Identifier: Apache-2.0
// The prompt of several documents has the tokens of their capsules, and names where they are.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"
#include "coordinator/documents/document_prompt.h"
#include "engine/job/job_chat.h"
#include "tests/unit/temp_folder.h"

#define ARENA (INT64_C(1) << 30)
#define MODEL 11

static const char jinja[] =
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content | trim }} #end\n{% endfor %}<assistant>";
static struct temp_folder folder;
static struct sl_coordinator *coordinator;
static struct sl_identity caller = {.role = SL_ROLE_CLIENT, .tenant = "acme"};

static int setup(void **state) {
    (void)state;
    folder = temp_folder_create();
    temp_folder_write_text(&folder, "chat_template.jinja", jinja);
    coordinator = calloc(1, sizeof *coordinator);
    coordinator->model_fingerprint = MODEL;
    coordinator->model.max_positions = 8192;
    assert_int_equal(sl_tokenizer_load("models/demo", &coordinator->tokenizer, NULL), SL_OK);
    assert_int_equal(sl_chat_template_load(folder.path, &coordinator->chat_template, NULL), SL_OK);
    coordinator->rules = (struct sl_request_rules){
        .tokenizer = coordinator->tokenizer, .chat_template = coordinator->chat_template, .model = &coordinator->model};
    coordinator->salt_secret = (struct sl_salt_secret){true, {7}};
    const struct sl_documents_config config = {"", 100, ARENA / 4, &coordinator->salt_secret, NULL};
    assert_int_equal(sl_documents_create(&config, &coordinator->documents, NULL), SL_OK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    sl_documents_destroy(&coordinator->documents);
    sl_chat_template_destroy(&coordinator->chat_template);
    sl_tokenizer_destroy(&coordinator->tokenizer);
    free(coordinator);
    temp_folder_destroy(&folder);
    return 0;
}

// Writes a text of n sentences that begins with `first`.
static char *write_text(const char *first, int n) {
    char *text = malloc(strlen(first) + (size_t)n * 64 + 1), *at = text + sprintf(text, "%s", first);
    for (int i = 0; i < n; i++) {
        at += sprintf(at, " Section %d says what no other one has said of %d.", i, i * 7);
    }
    return text;
}

static int64_t n_cut; // tokens at the end of its prompt that a document's capsule leaves out

// Encodes a document as Add does, and enters it.
static void add(const char *name, const char *text, bool chat, const char *recipe, bool stale) {
    struct sl_document *document;
    struct sl_document_reading reading;
    int32_t *ids;
    size_t n_ids;
    struct sl_hash128 salt;
    assert_int_equal(sl_document_create(caller.tenant, name, text, &document, NULL), SL_OK);
    sl_document_reading_init(&reading, name, text, recipe, chat);
    if (chat) {
        assert_int_equal(
            sl_job_chat(coordinator->chat_template, coordinator->tokenizer, reading.request.chat, &ids, &n_ids, NULL),
            SL_OK);
    } else {
        assert_int_equal(sl_tokenizer_encode(coordinator->tokenizer, text, strlen(text), true, &ids, &n_ids, NULL),
                         SL_OK);
    }
    assert_int_equal(sl_tenant_salt(&coordinator->salt_secret, caller.tenant, &salt, NULL), SL_OK);
    strcpy(document->recipe, recipe);
    document->chat = chat;
    document->model_fingerprint = MODEL;
    document->n_offloaded_heads = strstr(recipe, "place=offload") != NULL ? 4 : 0;
    document->n_tokens = (int64_t)n_ids - n_cut;
    document->capsule_tokens = document->n_tokens - 1;
    document->capsule.prefix_hash = sl_prefix_hash(&salt, ids, document->capsule_tokens - stale);
    document->first_key = (uint64_t)name[0];
    const struct sl_ranked_store store = {.name = "kvstore-0", .arena_bytes = ARENA};
    assert_int_equal(sl_documents_begin(coordinator->documents, document, &store, NULL), SL_OK);
    assert_int_equal(sl_documents_finish(coordinator->documents, document, NULL), SL_OK);
    sl_documents_found(coordinator->documents, document, "kvstore-0", 1000, SLUICE__V1__DISK_COPY__DISK_COPY_NONE);
    sl_document_unref(&document);
    free(ids);
}

// A request of up to 4 documents.
struct asked {
    Sluice__V1__GenerateRequest request;
    Sluice__V1__Chat chat;
    Sluice__V1__ChatMessage messages[3], *list[3];
    char *names[4];
};

static void ask(struct asked *asked, const char *const *names, size_t n, bool chat) {
    static const char *const said[] = {"Section by section: why?", "Because.", "Really?"};
    *asked = (struct asked){.request = SLUICE__V1__GENERATE_REQUEST__INIT, .chat = SLUICE__V1__CHAT__INIT};
    for (size_t i = 0; i < n; i++) {
        asked->names[i] = (char *)names[i];
    }
    asked->request.documents = asked->names;
    asked->request.n_documents = n;
    asked->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    asked->request.text = (char *)said[0];
    if (chat) {
        for (int i = 0; i < 3; i++) {
            sluice__v1__chat_message__init(&asked->messages[i]);
            asked->messages[i].role = (char *)(i == 1 ? "assistant" : "user");
            asked->messages[i].content = (char *)said[i];
            asked->list[i] = &asked->messages[i];
        }
        asked->chat.messages = asked->list;
        asked->chat.n_messages = 3;
        asked->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
        asked->request.chat = &asked->chat;
    }
}

static void assert_text(const struct sl_joined_prompt *prompt, const char *expected) {
    char *text = calloc(prompt->ids.n_ids, 64), *at = text;
    for (size_t i = 0; i < prompt->ids.n_ids; i++) {
        size_t n;
        const char *bytes = sl_tokenizer_token_bytes(coordinator->tokenizer, prompt->ids.ids[i], &n);
        if (!sl_tokenizer_is_special(coordinator->tokenizer, prompt->ids.ids[i])) {
            memcpy(at, bytes, n);
            at += n;
        }
    }
    assert_string_equal(text, expected);
    free(text);
}

// Every part is in its capsule, ends with a page of it, and follows what is read again.
static void assert_parts(const struct sl_joined_prompt *prompt, int n_joins, int64_t n_reread) {
    int64_t end = prompt->first_tokens, n_joined = 0;
    assert_int_equal(prompt->n_joins, n_joins);
    for (int i = 0; i < n_joins; i++) {
        const struct sl_job_join *join = &prompt->joins[i];
        assert_memory_equal(join->tokens + join->from, prompt->ids.ids + join->at,
                            (size_t)join->n_tokens * sizeof(int32_t));
        assert_int_equal((join->from + join->n_tokens) % SL_PAGE_SLOTS, 0);
        assert_true(join->from >= n_reread && join->at > end + n_reread);
        assert_true(join->from + join->n_tokens < join->n_all);
        assert_ptr_equal(join->stores, NULL); // the job's fiber names them
        end = join->at + join->n_tokens;
        n_joined += join->n_tokens;
    }
    assert_true(end < (int64_t)prompt->ids.n_ids - 1);
    assert_int_equal(n_joined, prompt->joined_tokens);
}

static void test_joined_prompt_has_the_texts_once_and_the_frame_once(void **state) {
    (void)state;
    struct asked asked;
    struct sl_joined_prompt prompt;
    struct sl_error err = {0};
    // They begin and end alike, so that only a comparison with another text tells the frame from the text.
    char *texts[3] = {write_text("Section zero.", 60), write_text("Section zero. Other.", 50), write_text("xyz", 70)};
    for (int chat = 0; chat < 2; chat++) {
        const char *names[] = {chat ? "ca" : "a", chat ? "cb" : "b", chat ? "cc" : "c"};
        for (int i = 0; i < 3; i++) {
            add(names[i], texts[i], chat, "full,format=int8", false);
        }
        ask(&asked, names, 3, chat);
        assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked.request, &err), SL_OK);
        char expected[12000];
        snprintf(expected, sizeof expected, "%s%s\n%s\n%s\nSection by section: why?%s", chat ? "<user>\n" : "",
                 texts[0], texts[1], texts[2],
                 chat ? " #end\n<assistant>\nBecause. #end\n<user>\nReally? #end\n<assistant>" : "");
        assert_text(&prompt, expected);
        assert_parts(&prompt, 2, 32);
        assert_int_equal(prompt.not_joined, SLUICE__V1__NOT_JOINED__NOT_JOINED_NOT_SAID);
        sl_joined_prompt_cleanup(&prompt);

        asked.request.reread_present_case = SLUICE__V1__GENERATE_REQUEST__REREAD_PRESENT_REREAD;
        asked.request.reread = 0;
        assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked.request, &err), SL_OK);
        assert_parts(&prompt, 2, 0);
        int64_t most = prompt.joined_tokens;
        sl_joined_prompt_cleanup(&prompt);
        asked.request.reread = 100;
        assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked.request, &err), SL_OK);
        assert_parts(&prompt, 2, 100);
        assert_int_equal(prompt.joined_tokens, most - 200);
        sl_joined_prompt_cleanup(&prompt);
        asked.request.reread = 9000; // then nothing is left to join
        assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked.request, &err), SL_OK);
        assert_text(&prompt, expected);
        assert_parts(&prompt, 0, 0);
        assert_int_equal(prompt.not_joined, SLUICE__V1__NOT_JOINED__NOT_JOINED_NOTHING);
        sl_joined_prompt_cleanup(&prompt);
    }
    for (int i = 0; i < 3; i++) {
        free(texts[i]);
    }
}

// A capsule of other tokens, as an earlier template made them, is not joined.
static void test_joined_prompt_leaves_out_a_capsule_of_other_tokens(void **state) {
    (void)state;
    struct asked asked;
    struct sl_joined_prompt prompt;
    const char *const names[] = {"d", "e", "f"};
    char *text = write_text("One.", 60);
    for (int i = 0; i < 3; i++) {
        add(names[i], text, false, "full", i == 1);
    }
    free(text);
    ask(&asked, names, 3, false);
    assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked.request, NULL), SL_OK);
    assert_parts(&prompt, 1, 32);
    assert_int_equal(prompt.joins[0].first_key, 'f');
    assert_int_equal(prompt.joins[0].document, 2);
    sl_joined_prompt_cleanup(&prompt);
}

// A capsule of what questions begin with lacks what its prompt ended with.
static void test_joined_prompt_has_capsules_that_were_cut(void **state) {
    (void)state;
    struct asked asked;
    struct sl_joined_prompt prompt;
    const char *const names[] = {"cut", "also"};
    char *text = write_text("One.", 60);
    n_cut = 9;
    add("cut", text, true, "full", false);
    add("also", text, true, "full", false);
    n_cut = 0;
    free(text);
    ask(&asked, names, 2, true);
    assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked.request, NULL), SL_OK);
    assert_parts(&prompt, 1, 32);
    const struct sl_document *first = prompt.documents[0];
    struct sl_hash128 hash = sl_prefix_hash(&prompt.salt, prompt.ids.ids, first->capsule_tokens);
    assert_int_equal(prompt.first_tokens, first->capsule_tokens);
    assert_true(sl_hash128_equals(&hash, &first->capsule.prefix_hash)); // all of it
    assert_int_equal(prompt.joins[0].n_all, first->n_tokens);
    sl_joined_prompt_cleanup(&prompt);
}

// Layers that stores keep are those of the positions where each document was read, so the others are read after the first one.
static void test_joined_prompt_of_offloaded_layers_is_one_text(void **state) {
    (void)state;
    struct asked asked;
    struct sl_joined_prompt prompt;
    char *texts[2] = {write_text("One.", 60), write_text("Two.", 60)};
    add("l", texts[0], false, "place=offload/1-", false);
    add("m", texts[1], false, "place=offload/1-", false);
    ask(&asked, (const char *const[]){"l", "m"}, 2, false);
    assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked.request, NULL), SL_OK);
    char expected[12000];
    snprintf(expected, sizeof expected, "%s\n%s\nSection by section: why?", texts[0], texts[1]);
    assert_text(&prompt, expected);
    assert_parts(&prompt, 0, 0);
    assert_int_equal(prompt.not_joined, SLUICE__V1__NOT_JOINED__NOT_JOINED_OFFLOADED);
    assert_true(prompt.first_tokens >= prompt.documents[0]->capsule_tokens - 1);
    sl_joined_prompt_cleanup(&prompt);
    free(texts[0]);
    free(texts[1]);
}

static void assert_refused(struct asked *asked, enum sl_status expected, const char *why) {
    struct sl_joined_prompt prompt;
    struct sl_error err = {0};
    assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked->request, &err), expected);
    if (!strstr(err.text, why)) {
        fail_msg("%s", err.text);
    }
}

static void test_joined_prompt_refuses_by_name(void **state) {
    (void)state;
    struct asked asked;
    char *text = write_text("One.", 60), *long_text = write_text("Long.", 160);
    add("g", text, false, "full", false);
    add("h", text, false, "full,format=int4", false);
    add("i", text, true, "full", false);
    add("j", long_text, false, "full", false);
    add("k", long_text, false, "full", false);
    ask(&asked, (const char *const[]){"g", "h"}, 2, false);
    assert_refused(&asked, SL_ERR_INVALID,
                   "documents: g was read under full and h under full,format=int4: only capsules of one recipe can be "
                   "joined; add one of them again, or have the texts read again (`sluice run --no-reuse`, ");
    add("o", text, false, "kvzip,heads=pages,budget=0.33", false); // whatever recipe the other one is read under
    ask(&asked, (const char *const[]){"g", "o"}, 2, false);
    assert_refused(&asked, SL_ERR_INVALID,
                   "documents: o was read under kvzip,heads=pages,budget=0.33, which evicts: it is asked alone; add it "
                   "again under another recipe, or have the texts read again (`sluice run --no-reuse`, ");
    char *endless = malloc(1000001);
    memset(endless, 'a', 1000000);
    endless[1000000] = '\0';
    ask(&asked, (const char *const[]){"g", "j"}, 2, false);
    asked.request.text = endless;
    assert_refused(&asked, SL_ERR_INVALID, "text: 1000000 bytes are at least");
    free(endless);
    ask(&asked, (const char *const[]){"g", "h"}, 2, false);
    asked.request.text = (char *)"";
    asked.request.no_reuse = true; // then the texts are read
    struct sl_joined_prompt prompt;
    assert_int_equal(sl_joined_prompt_init(&prompt, coordinator, &caller, &asked.request, NULL), SL_OK);
    assert_int_equal(prompt.not_joined, SLUICE__V1__NOT_JOINED__NOT_JOINED_OFF);
    assert_int_equal(prompt.n_joins, 0);
    sl_joined_prompt_cleanup(&prompt);
    ask(&asked, (const char *const[]){"g", "i"}, 2, false);
    assert_refused(&asked, SL_ERR_INVALID, "i was read for chats");
    ask(&asked, (const char *const[]){"i", "g"}, 2, true);
    assert_refused(&asked, SL_ERR_INVALID, "g was read for texts");
    ask(&asked, (const char *const[]){"g", "j", "k"}, 3, false);
    assert_refused(&asked, SL_ERR_INVALID, "tokens together, and the model has 8192 positions");
    ask(&asked, (const char *const[]){"g", "nope"}, 2, false);
    assert_refused(&asked, SL_ERR_NOT_FOUND, "documents: no document nope; `sluice doc ls`");
    struct sl_identity owner = caller;
    strcpy(caller.tenant, "umbrella");
    ask(&asked, (const char *const[]){"g", "j"}, 2, false);
    assert_refused(&asked, SL_ERR_NOT_FOUND, "documents: no document g");
    caller = owner;
    coordinator->model_fingerprint++;
    assert_refused(&asked, SL_ERR_PRECONDITION, "g was read by another model");
    coordinator->model_fingerprint--;
    free(text);
    free(long_text);
}

// Between two terms the list is empty: a client that asks again must not take that for a deleted document.
static void test_joined_prompt_without_the_lead_names_no_document_missing(void **state) {
    (void)state;
    const struct sl_tls_files tls = {0};
    struct asked asked;
    sl_rpc_init();
    // No thread asks etcd: the election never begins.
    assert_int_equal(sl_election_create("127.0.0.1:1", "test", &tls, &coordinator->election, NULL), SL_OK);
    ask(&asked, (const char *const[]){"nope", "none"}, 2, false);
    assert_refused(&asked, SL_ERR_PEER_LOST, "does not lead");
    sl_election_destroy(&coordinator->election);
    sl_rpc_shutdown();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_prompt_has_the_texts_once_and_the_frame_once),
        cmocka_unit_test(test_joined_prompt_leaves_out_a_capsule_of_other_tokens),
        cmocka_unit_test(test_joined_prompt_has_capsules_that_were_cut),
        cmocka_unit_test(test_joined_prompt_of_offloaded_layers_is_one_text),
        cmocka_unit_test(test_joined_prompt_refuses_by_name),
        cmocka_unit_test(test_joined_prompt_without_the_lead_names_no_document_missing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
