// SPDX-License-Identifier: Apache-2.0
// Purpose: chat templates render what Jinja renders (data: tools/golden_chat.py), and refuse the rest by name and line.
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/unit/temp_folder.h"
#include "engine/text/chat/chat_internal.h"

#define GOLDEN "tests/golden/chat/"
#define NOW_MS 1735689600000 // 2025-01-01, as in tools/golden_chat.py
#define TOKENS "\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"special\": true}, \"pad_token\": null"

static json_t *golden(const char *name) {
    char path[128];
    json_error_t error;
    snprintf(path, sizeof(path), GOLDEN "%s", name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!root) {
        fail_msg("%s: %s", path, error.text);
    }
    return root;
}

// A folder with the tokens of the golden data, and the template in its configuration.
static enum sl_status load_source(const char *source, struct sl_chat_template **template_out, struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    json_error_t error;
    json_t *config = json_loads("{" TOKENS "}", 0, &error);
    json_object_set_new(config, "chat_template", json_string(source));
    char *text = json_dumps(config, 0);
    temp_folder_write_text(&folder, "tokenizer_config.json", text);
    enum sl_status status = sl_chat_template_load(folder.path, template_out, err);
    free(text);
    json_decref(config);
    temp_folder_destroy(&folder);
    return status;
}

// tests/golden/chat/templates/NAME.jinja as chat_template.jinja.
static void copy_template(const struct temp_folder *folder, const char *name) {
    char from[160], to[160];
    snprintf(from, sizeof(from), "%s.jinja", name);
    temp_folder_copy(folder, GOLDEN "templates", from);
    snprintf(from, sizeof(from), "%s/%s.jinja", folder->path, name);
    snprintf(to, sizeof(to), "%s/chat_template.jinja", folder->path);
    assert_int_equal(rename(from, to), 0);
}

static enum sl_status render_json(const struct sl_chat_template *template, const json_t *messages, bool prompt,
                                  char **text_out, struct sl_error *err) {
    struct sl_chat_message list[64];
    struct sl_chat chat = {
        .messages = list, .n_messages = json_array_size(messages), .add_generation_prompt = prompt, .time_ms = NOW_MS};
    assert_true(chat.n_messages <= 64);
    for (size_t i = 0; i < chat.n_messages; i++) {
        const json_t *message = json_array_get(messages, i);
        list[i].role = json_string_value(json_object_get(message, "role"));
        list[i].content = json_string_value(json_object_get(message, "content"));
    }
    return sl_chat_template_render(template, &chat, text_out, err);
}

// wanted: the text, or {"refused": the template's own words, or null}.
static void check(const char *name, enum sl_status status, char *text, const struct sl_error *err,
                  const json_t *wanted) {
    const char *words = json_string_value(json_object_get(wanted, "refused"));
    if (json_is_string(wanted) && status != SL_OK) {
        fail_msg("%s: %s", name, err->text);
    } else if (json_is_string(wanted)) {
        if (strcmp(text, json_string_value(wanted)) != 0) {
            fail_msg("%s:\n%s\ninstead of\n%s", name, text, json_string_value(wanted));
        }
    } else if (status == SL_OK) {
        fail_msg("%s: should have failed, gave\n%s", name, text);
    } else if (status != SL_ERR_INVALID && status != SL_ERR_UNSUPPORTED) {
        fail_msg("%s: failed with %d: %s", name, status, err->text);
    } else if (words && (status != SL_ERR_INVALID || !strstr(err->text, words))) {
        fail_msg("%s: should say \"%s\", but says \"%s\"", name, words, err->text);
    }
    free(text);
}

static void test_chat_template_renders_published_templates(void **state) {
    (void)state;
    json_t *rendered = golden("rendered.json"), *conversations = golden("conversations.json"), *cases, *item;
    const char *name;
    assert_true(json_object_size(rendered) >= 25);
    json_object_foreach(rendered, name, cases) {
        char label[256];
        struct sl_error err = {0};
        struct sl_chat_template *template = NULL;
        struct temp_folder folder = temp_folder_create();
        temp_folder_write_text(&folder, "tokenizer_config.json", "{" TOKENS ", \"chat_template\": \"not this one\"}");
        copy_template(&folder, name);
        if (sl_chat_template_load(folder.path, &template, &err) != SL_OK) {
            fail_msg("%s: %s", name, err.text);
        }
        size_t i;
        json_array_foreach(cases, i, item) {
            const char *conversation = json_string_value(json_array_get(item, 0));
            char *text = NULL;
            bool prompt = json_is_true(json_array_get(item, 1));
            snprintf(label, sizeof(label), "%s, conversation \"%s\"", name, conversation);
            enum sl_status status =
                render_json(template, json_object_get(conversations, conversation), prompt, &text, &err);
            check(label, status, text, &err, json_array_get(item, 2));
        }
        sl_chat_template_destroy(&template);
        temp_folder_destroy(&folder);
    }
    json_decref(rendered);
    json_decref(conversations);
}

static void test_chat_template_means_what_jinja_means(void **state) {
    (void)state;
    json_t *cases = golden("language.json"), *conversations = golden("conversations.json"), *item;
    size_t i;
    assert_true(json_array_size(cases) > 200);
    json_array_foreach(cases, i, item) {
        const char *source = json_string_value(json_array_get(item, 0));
        struct sl_chat_template *template = NULL;
        struct sl_error err = {0};
        char *text = NULL;
        enum sl_status status = load_source(source, &template, &err);
        if (status == SL_OK) {
            status = render_json(template, json_object_get(conversations, "system and two turns"), true, &text, &err);
        }
        check(source, status, text, &err, json_array_get(item, 1));
        sl_chat_template_destroy(&template);
    }
    json_decref(cases);
    json_decref(conversations);
}

static void test_chat_template_refuses_what_it_does_not_know(void **state) {
    (void)state;
    json_t *sources = golden("unsupported.json"), *source;
    size_t i;
    json_array_foreach(sources, i, source) {
        struct sl_chat_template *template = NULL;
        struct sl_error err = {0};
        char *text = NULL;
        enum sl_status status = load_source(json_string_value(source), &template, &err);
        if (status == SL_OK) {
            status = render_json(template, NULL, true, &text, &err);
        }
        if (status != SL_ERR_UNSUPPORTED || !strstr(err.text, "line 1: ")) {
            fail_msg("%s: %d: %s", json_string_value(source), status, err.text);
        }
        sl_chat_template_destroy(&template);
    }
    json_decref(sources);
}

static void test_chat_template_refuses_at_load_time_with_the_line(void **state) {
    (void)state;
    static const struct {
        const char *source;
        enum sl_status status;
        const char *named;
    } cases[] = {
        {"a\n{% if false %}\n{{ x | shout }}{% endif %}", SL_ERR_UNSUPPORTED, "line 3: the filter 'shout'"},
        {"{% if false %}\n{{ x is loud }}{% endif %}", SL_ERR_UNSUPPORTED, "line 2: the test 'loud'"},
        {"{% if false %}{{ shout('\n') }}{% endif %}", SL_ERR_UNSUPPORTED, "the function 'shout'"},
        {"\n\n{% if false %}{{ x.shout() }}{% endif %}", SL_ERR_UNSUPPORTED, "line 3: the method 'shout'"},
        {"{% if false %}{{ x | selectattr('a', 'loud') }}{% endif %}", SL_ERR_UNSUPPORTED, "the test 'loud'"},
        {"{% if false %}{{ x | replace('a') }}{% endif %}", SL_ERR_INVALID, "needs the argument 'new'"},
        {"{% if false %}{{ x | tojson(color=1) }}{% endif %}", SL_ERR_UNSUPPORTED, "the argument 'color'"},
        {"{# \n #}{% macro m() %}", SL_ERR_UNSUPPORTED, "line 2: the tag {% macro %}"},
        {"a\n{% if x %}\nb\n", SL_ERR_INVALID, "{% elif %} before the end"},
        {"a\n{{ x", SL_ERR_INVALID, "line 2: the tag has no end"},
        {"{{ 'x }}", SL_ERR_INVALID, "a string has no end"},
        {"{# x", SL_ERR_INVALID, "a comment has no end"},
        {"{{ x\n + }}", SL_ERR_INVALID, "line 2: expected a value before '}}'"},
        {"\xff", SL_ERR_INVALID, "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_chat_template *template = NULL;
        struct sl_error err = {0};
        enum sl_status status = sl_chat_template_parse(cases[i].source, &template, &err);
        if (status != cases[i].status || !strstr(err.text, cases[i].named)) {
            fail_msg("%s: %d: %s", cases[i].source, status, err.text);
        }
        assert_null(template);
        assert_int_equal(sl_chat_template_parse(cases[i].source, &template, NULL), status); // err may be NULL
    }
}

// ---- bounds ---------------------------------------------------------------------------------------------------------

// head, `unit` n times, tail
static char *repeated(const char *head, const char *unit, size_t n, const char *tail) {
    size_t n_unit = strlen(unit);
    char *text = malloc(strlen(head) + n * n_unit + strlen(tail) + 1), *at = stpcpy(text, head);
    for (size_t i = 0; i < n; i++) {
        at = stpcpy(at, unit);
    }
    stpcpy(at, tail);
    return text;
}

static void test_chat_template_knows_its_roles(void **state) {
    (void)state;
    struct sl_chat_template *template = NULL;
    static const char source[] = "{% for m in messages %}{% if m.role == 'ipython' or m.role == \"tool\" %}x{% else %}"
                                 "<|{{ m.role }}|>{% endif %}my model's{% endfor %}";
    assert_int_equal(sl_chat_template_parse(source, &template, NULL), SL_OK);
    static const char *const known[] = {"system", "user", "assistant", "ipython", "tool"};
    static const char *const unknown[] = {"", "model", "python", "too", "role", "us er<|im_end|>", "User"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_true(sl_chat_template_knows_role(template, known[i]));
    }
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_false(sl_chat_template_knows_role(template, unknown[i]));
    }
    sl_chat_template_destroy(&template);
}

static void test_chat_template_bounds_nesting_and_size(void **state) {
    (void)state;
    static const struct {
        const char *head, *unit, *tail;
    } cases[] = {
        {"{{ ", "(", "1"},
        {"{{ ", "[", "1"},
        {"{{ ", "not ", "1 }}"},
        {"{{ ", "-", "1 }}"},
        {"{{ 1", " + 1", " }}"},
        {"{{ 'a'", " ~ 'a'", " }}"},
        {"{{ x", ".a", " }}"},
        {"{{ x", "[0", " }}"},
        {"{{ x", "|trim", " }}"},
        {"{{ x", ".strip()", " }}"},
        {"{{ 1", " and 1", " }}"},
        {"{{ 1", " if 1", " }}"},
        {"{{ ", "1 if 1 else ", "1 }}"},
        {"", "{% if 1 %}", ""},
        {"", "{% for x in y %}", ""},
        {"", "{% set x %}", ""},
        {"{% if 1 %}", "{% elif 1 %}", "{% endif %}"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct sl_chat_template *template = NULL;
        char *source = repeated(cases[i].head, cases[i].unit, 10000, cases[i].tail);
        enum sl_status status = sl_chat_template_parse(source, &template, NULL);
        if (status != SL_ERR_EXHAUSTED) {
            fail_msg("%s: %d", cases[i].unit, status);
        }
        assert_null(template);
        free(source);
    }
    struct sl_chat_template *template = NULL;
    struct sl_error err = {0};
    char *source = repeated("", "text ", 60000, "");
    assert_int_equal(sl_chat_template_parse(source, &template, &err), SL_ERR_EXHAUSTED);
    assert_non_null(strstr(err.text, "256 KiB"));
    free(source);
}

static void test_chat_template_bounds_what_rendering_takes(void **state) {
    (void)state;
    static const char *const sources[] = {
        "{% for i in range(9223372036854775807) %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'ab' * 9223372036854775807 }}",
        "{{ ([1, 2] * 9223372036854775807) | length }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(1000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(1000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(1000000) %}{% set ns.x = ns.x + 'a' %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson "
        "}}",
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}"
        "{% endfor %}{{ ns.x == ns.y }}",
        "{% set x = ['a' * 100000] * 1000 %}{% for i in range(100) %}{{ x | join }}{% endfor %}",
        "{% set x = 'a' * 10000000 %}{% for i in range(10000) %}{{ 'b' in x }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(2000) %}{% set y = x.replace('bb', '') %}{% endfor %}",
        "{% set x = ' ' * 1000000 %}{% for i in range(1000) %}{{ x | int }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% set d = {x: 1} %}{% for i in range(3000) %}{{ d[x] }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% set d = {x: 1} %}{% for i in range(3000) %}{{ d.get(x) }}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof(sources) / sizeof(*sources); i++) {
        struct sl_chat_template *template = NULL;
        struct sl_error err = {0};
        char *text = NULL;
        assert_int_equal(sl_chat_template_parse(sources[i], &template, &err), SL_OK);
        if (render_json(template, NULL, false, &text, &err) != SL_ERR_EXHAUSTED) {
            fail_msg("%s: %s", sources[i], text ? "was rendered" : err.text);
        }
        assert_null(text);
        sl_chat_template_destroy(&template);
    }
}

static void test_chat_template_bounds_lookups_of_long_names(void **state) {
    (void)state;
    char *name = repeated("", "a", 50000, ""), *source = NULL, *text = NULL;
    struct sl_chat_template *template = NULL;
    struct sl_error err = {0};
    assert_true(
        asprintf(&source, "{%% set %s = 1 %%}{%% for i in range(100000) %%}{{ %s }}{%% endfor %%}", name, name) > 0);
    assert_int_equal(sl_chat_template_parse(source, &template, &err), SL_OK);
    assert_int_equal(render_json(template, NULL, false, &text, &err), SL_ERR_EXHAUSTED);
    sl_chat_template_destroy(&template);
    free(source);
    free(name);
}

static void test_chat_template_takes_a_long_document(void **state) {
    (void)state;
    char *document = repeated("  ", "The code is 48213.\n", 700000, ""), *text = NULL; // 13 MB
    struct sl_chat_message message = {"user", document};
    struct sl_chat chat = {.messages = &message, .n_messages = 1, .add_generation_prompt = true};
    struct sl_chat_template *template = NULL;
    struct temp_folder folder = temp_folder_create();
    copy_template(&folder, "qwen3");
    assert_int_equal(sl_chat_template_load(folder.path, &template, NULL), SL_OK);
    assert_int_equal(sl_chat_template_render(template, &chat, &text, NULL), SL_OK);
    assert_non_null(strstr(text, document));
    free(text);
    free(document);
    sl_chat_template_destroy(&template);
    temp_folder_destroy(&folder);
}

// ---- folders and messages -------------------------------------------------------------------------------------------

static void test_chat_template_is_found_where_models_keep_it(void **state) {
    (void)state;
    static const struct {
        const char *config, *file, *tokens;
        enum sl_status status;
        const char *text; // of the rendering, or in the error
    } cases[] = {
        {NULL, NULL, NULL, SL_ERR_NOT_FOUND, "no chat template"},
        {"{}", NULL, NULL, SL_ERR_NOT_FOUND, "chat_template.jinja"},
        {"{\"chat_template\": null}", NULL, NULL, SL_ERR_NOT_FOUND, "no chat template"},
        {"{\"chat_template\": \"a\"}", NULL, NULL, SL_OK, "a"},
        {"{\"chat_template\": \"a\"}", "b\n", NULL, SL_OK, "b"},
        {NULL, "b", NULL, SL_OK, "b"},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}, {\"name\": \"default\", \"template\": "
         "\"d\"}]}",
         NULL, NULL, SL_OK, "d"},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}]}", NULL, NULL, SL_ERR_INVALID, "default"},
        {"{\"chat_template\": 7}", NULL, NULL, SL_ERR_INVALID, "neither"},
        {"{", NULL, NULL, SL_ERR_INVALID, "tokenizer_config.json"},
        {"{" TOKENS "}", "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}", NULL, SL_OK, "<s></s>False"},
        {"{\"bos_token\": \"A\"}", "{{ bos_token }}{{ eos_token }}", "{\"bos_token\": \"C\", \"eos_token\": \"B\"}",
         SL_OK, "AB"},
        {NULL, "{{ 1", NULL, SL_ERR_INVALID, "chat template: line 1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *names[] = {"tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"};
        const char *texts[] = {cases[i].config, cases[i].file, cases[i].tokens};
        struct temp_folder folder = temp_folder_create();
        struct sl_chat_template *template = NULL;
        struct sl_error err = {0};
        char *text = NULL;
        for (int k = 0; k < 3; k++) {
            if (texts[k]) {
                temp_folder_write_text(&folder, names[k], texts[k]);
            }
        }
        enum sl_status status = sl_chat_template_load(folder.path, &template, &err);
        if (status == SL_OK) {
            assert_int_equal(render_json(template, NULL, false, &text, &err), SL_OK);
        }
        if (status != cases[i].status ||
            (status == SL_OK ? strcmp(text, cases[i].text) != 0 : !strstr(err.text, cases[i].text))) {
            fail_msg("case %zu: %d: %s", i, status, text ? text : err.text);
        }
        free(text);
        sl_chat_template_destroy(&template);
        temp_folder_destroy(&folder);
    }
}

static void test_chat_template_checks_messages(void **state) {
    (void)state;
    struct sl_chat_template *template = NULL;
    struct sl_error err = {0};
    char *text = NULL;
    assert_int_equal(sl_chat_template_parse("{{ messages | length }}", &template, &err), SL_OK);
    struct sl_chat_message bad_content = {"user", "ab\xff"}, bad_role = {"\xc3", "x"};
    struct sl_chat chat = {.messages = &bad_content, .n_messages = 1};
    assert_int_equal(sl_chat_template_render(template, &chat, &text, &err), SL_ERR_INVALID);
    assert_string_equal(err.text, "message 0: the content is not UTF-8 at byte 2");
    chat.messages = &bad_role;
    assert_int_equal(sl_chat_template_render(template, &chat, &text, &err), SL_ERR_INVALID);
    assert_string_equal(err.text, "message 0: the role is not UTF-8");

    struct sl_chat_message *many = calloc(SL_MAX_CHAT_MESSAGES + 1, sizeof(*many));
    for (int i = 0; i <= SL_MAX_CHAT_MESSAGES; i++) {
        many[i] = (struct sl_chat_message){"user", "x"};
    }
    chat = (struct sl_chat){.messages = many, .n_messages = SL_MAX_CHAT_MESSAGES + 1};
    assert_int_equal(sl_chat_template_render(template, &chat, &text, &err), SL_ERR_INVALID);
    assert_null(text);
    chat.n_messages--;
    assert_int_equal(sl_chat_template_render(template, &chat, &text, &err), SL_OK);
    assert_string_equal(text, "4096");
    free(text);
    free(many);
    sl_chat_template_destroy(&template);
    sl_chat_template_destroy(&template); // again, and nothing happens
}

int main(void) {
    setenv("TZ", "UTC", 1);
    tzset();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_template_renders_published_templates),
        cmocka_unit_test(test_chat_template_means_what_jinja_means),
        cmocka_unit_test(test_chat_template_refuses_what_it_does_not_know),
        cmocka_unit_test(test_chat_template_refuses_at_load_time_with_the_line),
        cmocka_unit_test(test_chat_template_knows_its_roles),
        cmocka_unit_test(test_chat_template_bounds_nesting_and_size),
        cmocka_unit_test(test_chat_template_bounds_what_rendering_takes),
        cmocka_unit_test(test_chat_template_bounds_lookups_of_long_names),
        cmocka_unit_test(test_chat_template_takes_a_long_document),
        cmocka_unit_test(test_chat_template_is_found_where_models_keep_it),
        cmocka_unit_test(test_chat_template_checks_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
