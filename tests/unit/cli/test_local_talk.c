// SPDX-License-Identifier: Apache-2.0
// A conversation in this process, turn by turn: what the cluster tests, which type, do not reach.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/cli/local_job.h"
#include "client/cli/request.h"
#include "tests/unit/temp_folder.h"

#define TEMPLATE                                                                                                       \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<assistant>"  \
    "{% endif %}"

// The demo model, with a template.
static struct temp_folder make_model(void) {
    struct temp_folder folder = temp_folder_create();
    char root[PATH_MAX], from[PATH_MAX + 32], to[PATH_MAX];
    assert_non_null(realpath("models/demo", root));
    DIR *dir = opendir(root);
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (entry->d_name[0] != '.') {
            assert_true(snprintf(from, sizeof from, "%s/%.255s", root, entry->d_name) < (int)sizeof from);
            assert_true(snprintf(to, sizeof to, "%s/%.255s", folder.path, entry->d_name) < (int)sizeof to);
            assert_int_equal(symlink(from, to), 0);
        }
    }
    closedir(dir);
    temp_folder_write_text(&folder, "chat_template.jinja", TEMPLATE);
    return folder;
}

struct seen {
    bool stop; // at the first token
    bool began;
    Sluice__V1__Finished__Reason reason;
    int64_t n_reused;
    uint64_t seed;
};

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct seen *seen = arg;
    seen->began |= event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED) {
        seen->reason = event->finished->reason;
        seen->n_reused = event->finished->statistics->n_reused_tokens;
        seen->seed = event->finished->statistics->sampling->seed;
    }
}

static bool stopped(void *arg) {
    struct seen *seen = arg;
    return seen->stop && seen->began;
}

static struct seen ask(struct sl_local_talk *talk, const char *const *said, size_t n, bool stop) {
    Sluice__V1__ChatMessage items[8], *list[8];
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    for (size_t i = 0; i < n; i++) {
        sluice__v1__chat_message__init(&items[i]);
        items[i].role = i % 2 ? "assistant" : "user";
        items[i].content = (char *)said[i];
        list[i] = &items[i];
    }
    chat.messages = list;
    chat.n_messages = n;
    struct sl_request request;
    struct sl_request_config config = {
        .recipe = "full", .max_new = 4, .has_max_new = true, .generation_config = "auto"};
    struct sl_error err = {0};
    assert_int_equal(sl_request_set_options(&request, &config, &err), SL_OK);
    request.message.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request.message.chat = &chat;
    struct seen seen = {.stop = stop};
    struct sl_watch watch = {
        .deadline_ns = sl_deadline_in_ms(600000), .on_event = on_event, .stopped = stopped, .arg = &seen};
    if (sl_local_talk_turn(talk, &request.message, &watch, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return seen;
}

// Stopped before it said anything, a question is left out; what is asked instead is not a continuation of it.
static void test_local_talk_goes_on_behind_a_question_that_was_left_out(void **state) {
    (void)state;
    struct temp_folder model = make_model();
    struct sl_local_config config = {.model_dir = model.path, .threads = 1};
    struct sl_local_talk *talk;
    struct sl_error err = {0};
    if (sl_local_talk_open(&config, &talk, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_true(sl_local_talk_takes_chats(talk));
    const char *said[] = {"What is a lantern?", "A light.", "And a sluice?", "A gate.", "And water?"};
    assert_int_equal(ask(talk, said, 1, true).reason, SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT);
    struct seen first = ask(talk, &said[2], 1, false), next = ask(talk, &said[2], 3, true),
                again = ask(talk, &said[2], 1, false);
    assert_int_equal(first.n_reused, 0);
    assert_true(next.n_reused > 0);
    assert_int_equal(again.n_reused, 0); // fewer than before
    assert_true(next.seed == first.seed && again.seed != first.seed);
    sl_local_talk_close(&talk);
    temp_folder_destroy(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_talk_goes_on_behind_a_question_that_was_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
